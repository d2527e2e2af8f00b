"""Run the command line: `python -m dmc` is the same as `dmc`."""

from dmc.cli import main

main()
