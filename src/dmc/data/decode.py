"""An undecoded record to square RGB pixels."""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from dmc.data.preprocess import Interpolation
from dmc.data.sources import Record
from dmc.errors import DmcError

RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}
MOST_SKIPPED = 0.1  # of the images seen so far; beyond this the source is not what the user thinks it is


@dataclass(frozen=True)
class Geometry:
    """The square that an image becomes: its central part, resized."""

    size: int
    interpolation: Interpolation = "bilinear"
    crop_pct: float = 1.0

    def __call__(self, image: Image.Image) -> Tensor:
        if image.format == "JPEG":  # decode at half, quarter, ... scale where twice the size still remains
            image.draft("RGB", (2 * self.size, 2 * self.size))
        image = ImageOps.exif_transpose(image).convert("RGB")
        side = min(image.size) * self.crop_pct
        left, top = ((extent - side) / 2 for extent in image.size)
        if (side, side) != (self.size, self.size):
            box = (left, top, left + side, top + side)
            image = image.resize((self.size, self.size), RESAMPLING[self.interpolation], box=box)
        elif image.size != (self.size, self.size):
            corner = (round(left), round(top))
            image = image.crop((*corner, corner[0] + self.size, corner[1] + self.size))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def decode(record: Record, geometry: Geometry) -> Tensor | None:
    """uint8 pixels 3 x size x size, or None where the file is not an image that can be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd EXIF data and the like: the pixels are what counts
            if isinstance(record.image, np.ndarray):
                return geometry(Image.fromarray(record.image))
            source = BytesIO(record.image) if isinstance(record.image, bytes) else record.image
            with Image.open(source) as image:
                return geometry(image)
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


@dataclass
class Skipped:
    """Counts what could not be decoded, and stops a run whose images are mostly broken."""

    source: str
    names: list[str] = field(default_factory=list)

    def add(self, name: str) -> None:
        self.names.append(name)

    def check(self, seen: int) -> None:
        if len(self.names) > MOST_SKIPPED * seen:
            raise DmcError(
                f"{len(self.names)} of {seen} images in {self.source} cannot be decoded (first: {self.names[0]}); "
                f"at most {MOST_SKIPPED:.0%} are skipped"
            )

    def __str__(self) -> str:
        return f"{len(self.names)} images could not be decoded and were skipped (first: {self.names[0]})"


def decoded(records: Iterable[Record], geometry: Geometry) -> Iterator[tuple[Record, Tensor | None]]:
    """Decode on all cores, in order, with a bounded number of images under way."""
    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        pending: deque[tuple[Record, Future[Tensor | None]]] = deque()
        for record in records:
            pending.append((record, pool.submit(partial(decode, record, geometry))))
            if len(pending) > 64 * workers:
                first, future = pending.popleft()
                yield first, future.result()
        for first, future in pending:
            yield first, future.result()
