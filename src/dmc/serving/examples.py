"""Images to begin with: the user's, or shapes that are drawn."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from PIL import Image, ImageDraw

from dmc.data.decode import open_image
from dmc.data.readers import image_files
from dmc.errors import DmcError

MOST = 24  # examples on the page
SIDE = 160  # of a drawn shape, in pixels
COLOURS = {"disc": "#d55e00", "square": "#0072b2", "triangle": "#009e73"}
log = logging.getLogger("dmc")


def as_files(given: Path | None, folder: Path, max_bytes: int) -> list[Path]:
    """Write the examples to a folder: copies of the first images below `given`, or shapes if it is None."""
    folder.mkdir()
    if given is None:
        return list(_shapes(folder))
    if not given.is_dir():
        raise DmcError(f"{given} is not a folder of example images")
    found = list(islice((file for file in image_files(given) if _is_shown(file, max_bytes)), MOST))
    if not found:
        raise DmcError(f"{given} holds no images that can be shown as examples")
    return [Path(shutil.copyfile(file, folder / f"{i:02}{file.suffix}")) for i, file in enumerate(found)]


def _is_shown(file: Path, max_bytes: int) -> bool:
    """Tell whether an image can be opened and would be accepted as an upload; say so if not."""
    try:
        if file.stat().st_size > max_bytes:
            raise DmcError("it is larger than an upload may be")
        open_image(file).close()
    except Exception as error:  # broken files make PIL raise anything
        log.warning("%s is left out of the examples: %s", file, error)
        return False
    return True


def _shapes(folder: Path) -> Iterator[Path]:
    """Draw a disc, a square and a triangle."""
    margin, end = SIDE // 5, SIDE - SIDE // 5
    for name, colour in COLOURS.items():
        image = Image.new("RGB", (SIDE, SIDE), "#e8e8e8")
        pen = ImageDraw.Draw(image)
        if name == "disc":
            pen.ellipse((margin, margin, end, end), fill=colour)
        elif name == "square":
            pen.rectangle((margin, margin, end, end), fill=colour)
        else:
            pen.polygon([(SIDE // 2, margin), (end, end), (margin, end)], fill=colour)
        path = folder / f"{name}.png"
        image.save(path)
        yield path
