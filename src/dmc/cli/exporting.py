"""The verb `export`: a model as a file for other programs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from dmc.cli.options import OneModel, names_from
from dmc.text import one_line

ENDINGS = {"onnx": ".onnx", "torch-export": ".pt2", "torchscript": ".pt"}


def export(
    model: OneModel,
    format: Annotated[Literal["onnx", "torch-export", "torchscript"], typer.Option(help="What to write")] = "onnx",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File [default: the model's name, in the current folder]")
    ] = None,
    pixels: Annotated[
        bool, typer.Option("--pixels", help="Put the preprocessing inside: uint8 images in, probabilities out")
    ] = False,
    keep: Annotated[list[str] | None, typer.Option(help="Only these classes: NAME,NAME,... or @FILE")] = None,
    images: Annotated[
        list[str] | None, typer.Option(help="Images, or folders of them, to compare on [default: made for this]")
    ] = None,
    tolerance: Annotated[float, typer.Option(min=0, help="Largest difference between file and model")] = 1e-3,
) -> None:
    """Write a model to one file for other programs, and check that the file answers as the model does."""
    import dmc

    loaded = dmc.load(model)
    kept = names_from(keep)
    path = out or Path(f"{Path(loaded.name.rpartition(':')[2]).resolve().name}{ENDINGS[format]}")
    made = dmc.export(
        loaded.keep(kept) if kept else loaded, path, format, pixels=pixels, images=images, tolerance=tolerance
    )
    print(one_line(f"{made.path}: {format}, {made.path.stat().st_size:,} bytes, classes and preprocessing inside"))
    print(f"  compared on {made.images} images ({made.shown}): largest difference {made.difference:.2g}")
