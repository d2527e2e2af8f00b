"""The verb `report`: something to look at."""

from pathlib import Path
from typing import Annotated

import typer

from dmc.cli.options import DATA
from dmc.text import one_line


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders that train, consolidate, learn, bench or reproduce has written"),
    ],
    data: Annotated[
        str | None, typer.Option(help=f"Also measure the run's model, and its teachers, on these. {DATA}")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder [default: the run's own; for several runs: report]")
    ] = None,
) -> None:
    """Write what happened in a run as one page, report.html, and its figures; also of a run that is still going."""
    import dmc

    print(one_line(dmc.write_report(runs, out, data)))
