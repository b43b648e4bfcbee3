"""A local web page that shows how a trained solver searches: ``dtsn view`` (needs ``dtsn[viewer]``)."""
