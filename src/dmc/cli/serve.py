"""The verb `serve`: a page on this machine on which models can be tried."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dmc.cli.options import MODEL, expands
from dmc.config import PredictConfig
from dmc.serving.config import ServeConfig
from dmc.text import one_line

Shown = Annotated[list[str], typer.Argument(metavar="MODEL...", help=f"One or more models. {MODEL}")]
Examples = Annotated[Path | None, typer.Option(help="Folder of images to choose from [default: a few drawn shapes]")]


@expands(ServeConfig, *PredictConfig.__subclasses__())
def serve(models: Shown, settings: dict[str, Any], examples: Examples = None) -> None:
    """Open a page on which models answer side by side, and the same as JSON; Ctrl-C ends it."""
    from dmc.serving.server import serving

    config, rest = ServeConfig.taken_from(settings)
    with serving(models, config, rest, examples) as server:
        where = f"{server.url} (JSON: POST {server.url}/api/predict); Ctrl-C ends it"
        print(one_line(f"{', '.join(models)}: {where}"), flush=True)  # also into a pipe or a log, before it waits
        server.run()
