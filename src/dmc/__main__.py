"""`python -m dmc` is `dmc`."""

from dmc.cli import main

main()
