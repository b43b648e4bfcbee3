"""``python -m dtsn`` is ``dtsn``."""

from dtsn.cli.main import main

main()
