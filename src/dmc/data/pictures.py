"""Images that a user asks a model about: files, folders, PIL images, arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from dmc.data.readers import image_files, require_undisguised
from dmc.data.sources import UNLABELED, Record
from dmc.errors import DmcError

Picture = str | Path | Image.Image | npt.NDArray[np.uint8]


def pictures(images: Picture | Sequence[Picture]) -> list[Record]:
    """Give a record for each image, without reading any; a folder stands for all images below it."""
    given = [images] if isinstance(images, str | Path | Image.Image | np.ndarray) else images
    return [record for i, one in enumerate(given) for record in _records(one, f"image {i}")]


def _records(one: Picture, name: str) -> Iterator[Record]:
    """Give the records of one path, image or array; `name` is used in messages where there is no path."""
    if isinstance(one, np.ndarray) and not (one.dtype == np.uint8 and (one.ndim == 2 or one.shape[2:] == (3,))):
        raise DmcError(f"{name}: an array is uint8 of shape H x W or H x W x 3, not {one.dtype} of shape {one.shape}")
    if not isinstance(one, str | Path):
        yield Record(one, UNLABELED, name)
        return
    if not str(one).strip():  # an empty path would mean the current folder
        raise DmcError("the path is empty; is a variable unset?")
    require_undisguised(Path(one))
    files = image_files(Path(one)) if Path(one).is_dir() else [Path(one)]
    if not files:
        raise DmcError(f"{one} holds no images")
    for file in files:
        yield Record(file, UNLABELED, str(file))
