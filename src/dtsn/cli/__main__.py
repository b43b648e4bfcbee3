"""``python -m dtsn.cli`` is ``dtsn``."""

from dtsn.cli import main

main()
