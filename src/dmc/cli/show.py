"""The verb `show`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from dmc.cli.options import MODEL, AsJson

PLACE = f"A model, or the folder of a run or a comparison, also of one that is still going. Models: {MODEL}"
Place = Annotated[str, typer.Argument(metavar="MODEL|RUN", help=PLACE)]


def show(place: Place, as_json: AsJson = False) -> None:
    """Show what is in a folder: classes, architecture, preprocessing, where a model comes from, how a run is doing."""
    from dmc.report.show import as_text, described, shown

    if Path(place).is_dir():
        found = shown(Path(place))
    else:
        import dmc

        found = described(dmc.load(place))
    print(json.dumps(found, indent=2) if as_json else as_text(found))
    if not as_json and any(run["state"] == "stopped" for run in found.get("runs", [])):
        print("  to go on: the same command with --resume")
