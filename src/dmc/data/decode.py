"""Decode records into RGB pixels of the shape that a model wants."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import ClassVar, Protocol, TypeVar

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor

from dmc.data.batch import Batch
from dmc.data.preprocess import CropMode, Interpolation
from dmc.data.scratch import Scratch
from dmc.data.sources import Record
from dmc.data.untrusted import MOST_ENCODED, Refused
from dmc.errors import DmcError, reason_of
from dmc.files import regular_size

RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}
log = logging.getLogger("dmc")
T = TypeVar("T")
MOST_SKIPPED = 0.1  # share of broken images so far; with more, the source is not what the user thinks it is
CHUNK = (
    16  # images that a thread decodes at a time at most: handing small ones over one by one costs more than decoding
)
CHUNK_BYTES = 2**20  # of their pixels
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # PostScript, say, is a program and not an image
ROUNDED = 0.02  # how far the proportions of an image may be off by its being resized
MOST_PIXELS = 10**8  # of an image that is decoded whole: 13 bytes each, for an odd colour mode, are 1.3 GB
MOST_REDUCED = 2**29  # of a JPEG that is decoded at a fraction of its size
MANY_PIXELS = 2**25  # images with more, decoded whole, take turns
turn = Lock()


class DecodeError(DmcError):
    """An image that cannot be read, and the reason."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: cannot be read: {reason}")
        self.name, self.reason = name, reason


Decoded = tuple[Record, Tensor | DecodeError]


class Transform(Protocol):
    """How an image is cropped and resized, and how such images become a batch."""

    @property
    def size(self) -> int:
        """The side of the square, or the shorter side, in pixels."""

    @property
    def bytes_per_image(self) -> int:
        """The most bytes that an image takes when it is resized."""

    @property
    def one_shape(self) -> bool:
        """Whether all images become squares of `size` pixels a side, so that one tensor can hold them."""

    def __call__(self, image: Image.Image) -> Tensor:
        """Crop and resize an image; give its pixels as uint8, 3 x height x width."""

    def frame(self, image: Tensor) -> tuple[int, int]:
        """Give the height and width of a batch of this resized image alone; images with the same make good batches."""

    def batch(self, framed: Sequence[tuple[Record, Tensor]], frame: tuple[int, int] | None = None) -> Batch:
        """Make a batch of records and their resized images, padded to a frame; None: the smallest that holds all."""


@dataclass(frozen=True)
class CenterCrop:
    """The transform to a square: the central part of the image, resized.

    The part is a square of `crop_pct` of the shorter side, or, in the mode `squash`, `crop_pct` of both sides.
    """

    size: int
    interpolation: Interpolation = "bilinear"
    crop_pct: float = 1.0
    crop_mode: CropMode = "center"
    one_shape: ClassVar[bool] = True

    @property
    def bytes_per_image(self) -> int:
        return 3 * self.size**2

    def __call__(self, image: Image.Image) -> Tensor:
        image = upright_rgb(image, at_least=self.size)
        shorter = min(image.size)
        sides = [(extent if self.crop_mode == "squash" else shorter) * self.crop_pct for extent in image.size]
        left, top = ((extent - side) / 2 for extent, side in zip(image.size, sides, strict=True))
        if sides != [self.size, self.size]:
            box = (left, top, left + sides[0], top + sides[1])
            image = image.resize((self.size, self.size), RESAMPLING[self.interpolation], box=box)
        elif image.size != (self.size, self.size):
            corner = (round(left), round(top))
            image = image.crop((*corner, corner[0] + self.size, corner[1] + self.size))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)

    def frame(self, image: Tensor) -> tuple[int, int]:
        return self.size, self.size

    def batch(self, framed: Sequence[tuple[Record, Tensor]], frame: tuple[int, int] | None = None) -> Batch:
        return Batch(torch.stack([image for _, image in framed]), torch.tensor([record.label for record, _ in framed]))


def upright_rgb(image: Image.Image, at_least: int) -> Image.Image:
    """Decode an image to 8-bit RGB, turned as EXIF says; a JPEG perhaps at a fraction of its size.

    `at_least` is the side in pixels that the caller will resize it to.
    """
    if image.format in ("JPEG", "MPO"):  # decode at 1/2, 1/4 or 1/8 of the size, as long as twice `at_least` remains
        image.draft("RGB", (2 * at_least, 2 * at_least))
    require_at_most(MOST_PIXELS, image)
    ImageOps.exif_transpose(image, in_place=True)  # otherwise it would copy, also what lies right
    if image.mode.startswith(("I", "F")):  # 16 bits and more: PIL would clip to white
        pixels = np.nan_to_num(np.array(image, dtype=np.float32), posinf=0, neginf=0)
        pixels -= min(pixels.min(), 0)  # signed, as computed tomography or heights
        pixels /= max(pixels.max(), 1)
        pixels *= 255
        image = Image.fromarray(pixels.astype(np.uint8))
    return image if image.mode == "RGB" else image.convert("RGB")


def open_image(file: Path | BytesIO) -> Image.Image:
    """Open an image without decoding it; `Image.MAX_IMAGE_PIXELS` limits all formats but JPEG.

    A large JPEG can be decoded at a fraction of its size, so it is opened by its own class, which knows no limit.
    """
    if isinstance(file, Path) and regular_size(file) > MOST_ENCODED:
        raise DmcError(f"it has more than {MOST_ENCODED:,} bytes")
    try:
        image: Image.Image = JpegImageFile(file)
    except SyntaxError:  # another format
        image = Image.open(file, formats=FORMATS)
    try:
        require_at_most(MOST_REDUCED if can_be_reduced(image) else MOST_PIXELS, image)
    except DmcError:
        image.close()
        raise
    return image


def require_at_most(pixels: int, image: Image.Image) -> None:
    """Refuse an image that has more pixels."""
    if image.width * image.height > pixels:
        raise DmcError(f"an image of {image.width}x{image.height} is too large to decode")


def can_be_reduced(image: Image.Image) -> bool:
    """Tell whether decoding at a fraction of the size saves memory: a JPEG does so if all colours are in one scan."""
    if not isinstance(image, JpegImageFile) or "progressive" in image.info or image.fp is None:
        return False
    head = bytes((0, 6 + 2 * image.layers, image.layers))  # of a scan with all colours, which Pillow has just passed
    end = image.fp.tell()
    image.fp.seek(max(0, end - head[1]))
    found = image.fp.read(3)
    image.fp.seek(end)
    return found == head


def opened(record: Record) -> Image.Image:
    """Open a record's image, not decoded yet unless only a part of it is wanted.

    A part is stretched to a square, so that no transform cuts anything off.
    """
    if isinstance(record.image, np.ndarray):
        image = Image.fromarray(record.image)
    elif isinstance(record.image, Refused):
        raise DmcError(record.image.reason)
    elif isinstance(record.image, Image.Image):
        image = record.image.copy()  # callers close what they get, and this one is the user's
    else:
        image = open_image(BytesIO(record.image) if isinstance(record.image, bytes) else record.image)
    if record.part is None:
        return image
    with image:
        require_at_most(MOST_PIXELS, image)
        part = image.convert("RGB").crop(record.part)
    return part.resize((max(part.size),) * 2, Image.Resampling.BILINEAR)


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Give width and height as EXIF turns them, without decoding a photograph."""
    lies_down = image.getexif().get(ExifTags.Base.Orientation, 1) >= 5
    return (image.height, image.width) if lies_down else image.size


def require_shape(size: tuple[int, int], annotated: tuple[int, int]) -> None:
    """Refuse an image of another shape than it was annotated in; it may have been resized since."""
    (width, height), (wide, tall) = size, annotated
    if abs(width * tall / (height * wide) - 1) > ROUNDED:
        raise DmcError(f"it has {width}x{height} pixels, and its annotation is for {wide}x{tall}")


def decode(record: Record, transform: Transform) -> Tensor:
    """Decode a record into uint8 pixels, or raise `DecodeError`."""
    try:
        with opened(record) as image, turn if _is_heavy(image) else nullcontext():
            if record.annotated_size is not None:
                require_shape(upright_size(image), record.annotated_size)
            return transform(image)
    except UnidentifiedImageError:
        raise DecodeError(record.name, "it is not an image") from None
    except Exception as error:  # broken files make PIL raise anything from SyntaxError to struct.error
        raise DecodeError(record.name, reason_of(error)) from None


def _is_heavy(image: Image.Image) -> bool:
    """Tell whether an image takes so much memory that threads must not decode several like it at once."""
    return image.width * image.height > MANY_PIXELS and not can_be_reduced(image)


def result_or_error(ask: Callable[[], T]) -> T | DecodeError:
    """Call a function on an image; if the image cannot be read, log the error and give it instead of the result."""
    try:
        return ask()
    except DecodeError as error:
        log.warning("%s", error)
        return error


def decode_or_skip(record: Record, transform: Transform) -> Tensor | DecodeError:
    """Decode a record into uint8 pixels; give the error if it is not an image that can be read."""
    try:
        return decode(record, transform)
    except DecodeError as error:
        return error.with_traceback(None)  # which would hold the image's memory


@dataclass
class Skipped:
    """The images that could not be decoded, and why; `check` stops a run if their share exceeds `most`.

    The log names the first of them, `named` at most.
    """

    source: str
    most: float = MOST_SKIPPED
    named: int = 3
    names: dict[str, str] = field(default_factory=dict)  # and the reasons

    def __len__(self) -> int:
        return len(self.names)

    def add(self, error: DecodeError) -> None:
        if error.name not in self.names and len(self.names) < self.named:
            log.warning("%s; it is skipped", error)
        self.names[error.name] = error.reason

    @property
    def first(self) -> str:
        """The first of them, and why it could not be decoded."""
        return next((f"{name}: {reason}" for name, reason in self.names.items()), "none")

    def check(self, broken: int, seen: int) -> None:
        """Stop if more than a share of `most` of the images seen is broken."""
        if broken > self.most * seen:
            raise DmcError(
                f"{broken} of {seen} images in {self.source} cannot be decoded (first: {self.first}); "
                f"at most {self.most:.0%} are skipped"
            )


def decoded(
    records: Iterable[Record],
    transform: Transform,
    workers: int | None = None,
    scratch: Scratch | None = None,
    ahead: int = 0,
) -> Generator[Decoded]:
    """Read and decode records in the background, in order; a broken image is given as the error.

    `workers` threads decode, by default as many as torch computes with, each at most two chunks ahead, or `ahead`
    images all together if that is more. What they have decoded may be kept in a `scratch` file.
    """
    workers = workers or torch.get_num_threads()  # which a user can limit
    chunk = max(1, min(CHUNK, CHUNK_BYTES // transform.bytes_per_image))
    one, rest = partial(decode_or_skip, transform=transform), iter(records)

    def decode_chunk(read: Future[list[Record]]) -> list[Decoded]:
        return [(record, scratch.pixels(record, one) if scratch else one(record)) for record in read.result()]

    reader, pool = ThreadPoolExecutor(1), ThreadPoolExecutor(workers)
    pending: deque[Future[list[Decoded]]] = deque()
    try:
        while True:
            while len(pending) < max(2 * workers, -(-ahead // chunk)):
                pending.append(pool.submit(decode_chunk, reader.submit(lambda: list(islice(rest, chunk)))))
            done = pending.popleft().result()
            if not done:
                return
            yield from done
    finally:
        reader.shutdown(cancel_futures=True)
        pool.shutdown(cancel_futures=True)
