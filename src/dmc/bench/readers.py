"""Readers for the files of the paper's data sets.

They unpickle nothing: they take the binary version of CIFAR-100, and the npz version of ImageNet32x32. The classes that
auxiliary images must not show are data, in recipes/*_excluded.csv.
"""

from __future__ import annotations

import csv
import gzip
import logging
import re
import zlib
from collections.abc import Callable, Iterator
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dmc.data.readers import ArrayImages, read_arrays
from dmc.data.sources import UNLABELED, Record, Source, permuted
from dmc.data.tables import ParquetImages
from dmc.data.untrusted import Below
from dmc.errors import DmcError, first_line, reason_of
from dmc.extras import require_extra
from dmc.files import read_bytes, read_text, regular_size

log = logging.getLogger("dmc")
WITHOUT_CIFAR = 1_082_340  # images that the paper counts in ImageNet32x32 without the CIFAR-100 classes
IMAGENET = 1_281_167  # images of all of ImageNet32x32
MOST_BYTES = 2**28  # of a file that is read whole; CIFAR-100's training set, the largest, has 154 MB


class Splits(NamedTuple):
    """The training and the test part of a data set."""

    train: Source
    test: Source | None = None  # None for auxiliary images


def excluded(file: str) -> list[dict[str, str]]:
    """Read the rows of an exclusion list; `file` is its name in recipes/."""
    with (files("dmc.recipes") / file).open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def table(label: str = "label") -> Callable[..., Splits]:
    """Make a reader of parquet files in the hub's format, for training and test; `label` is the column of labels."""

    def read(train: list[Path], test: list[Path]) -> Splits:
        return Splits(*(ParquetImages(part, True, None, label) for part in (train, test)))

    return read


def unlabeled_table(shards: list[Path]) -> Splits:
    """Read parquet files in the hub's format without their labels."""
    return Splits(ParquetImages(shards, False, None, None))


def _without(source: Source, unwanted: Callable[[str], bool]) -> Source:
    return source.keep([name for name in source.classes if not unwanted(name)])


def cifar_binary(train: list[Path], test: list[Path], names: list[Path]) -> Splits:
    """Read CIFAR-100's binary version: records of 3,074 bytes are coarse label, fine label, three planes of 32x32."""
    classes = read_text(names[0]).split()

    def part(path: Path) -> Source:
        content = np.frombuffer(read_bytes(path, MOST_BYTES), dtype=np.uint8)
        if not len(content) or len(content) % 3074:
            raise DmcError(f"{path} is not CIFAR-100's binary version: {len(content)} bytes are not records of 3074")
        records = content.reshape(-1, 3074)
        images = records[:, 2:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return ArrayImages(np.ascontiguousarray(images), records[:, 1].astype(np.int64), classes, str(path))

    return Splits(part(train[0]), part(test[0]))


class DownsampledImageNet(Source):
    """ImageNet32x32's ten npz batches without the classes of CIFAR-100; one batch is in memory at a time.

    The files' labels are 1 to 1,000 in the order of the ILSVRC development kit, not in that of sorted WordNet ids.
    """

    def __init__(self, batches: list[Path]) -> None:
        self.name = f"{batches[0].parent} without CIFAR-100's classes"
        dropped = [int(row["imagenet32_label"]) for row in excluded("imagenet_excluded.csv")]
        self.places: dict[Path, npt.NDArray[np.intp]] = {}
        total = 0
        for path in batches:
            labels = self._array(path, "labels", "iu", ())
            total += len(labels)
            self.places[path] = np.flatnonzero(~np.isin(labels, dropped))
        _compare_count(len(self), total)

    def __len__(self) -> int:
        return sum(map(len, self.places.values()))

    def records(self, seed: int | None = None) -> Iterator[Record]:
        for path in permuted(list(self.places), seed):
            images = self._array(path, "data", "u", (3 * 32 * 32,))
            if len(images) <= self.places[path].max(initial=-1):
                raise DmcError(f"{path}: 'data' has {len(images)} images, fewer than there are 'labels'")
            images = images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            for i in permuted(self.places[path].tolist(), seed):
                yield Record(np.ascontiguousarray(images[i]), UNLABELED, f"{path}[{i}]")

    @staticmethod
    def _array(path: Path, key: str, kinds: str, row: tuple[int, ...]) -> npt.NDArray[Any]:
        """Read an array, and refuse one whose type is of another kind, or whose rows have another shape."""
        found = read_arrays(path, (key,))[key]
        if found.dtype.kind not in kinds or found.ndim == 0 or found.shape[1:] != row:
            raise DmcError(f"{path}: {key!r} has the wrong type or shape: {found.dtype} of shape {found.shape}")
        return found


def _compare_count(kept: int, total: int) -> None:
    """Warn if all of ImageNet32x32 is there and another number of images is kept than in the paper."""
    if total == IMAGENET and kept != WITHOUT_CIFAR:
        log.warning(
            f"ImageNet32x32 without CIFAR-100's classes has {kept:,} images here, {WITHOUT_CIFAR:,} in the paper, "
            "which did not publish its list of classes; the one here is stricter"
        )


def imagenet_table(shards: list[Path]) -> Splits:
    """Read a hub copy of ImageNet32x32, whose labels number the sorted WordNet ids, without CIFAR-100's classes."""
    source = ParquetImages(shards, True, None, "label")
    dropped = {int(row["sorted_index"]) for row in excluded("imagenet_excluded.csv")}
    kept = source.keep([name for i, name in enumerate(source.classes) if i not in dropped])
    _compare_count(len(kept), len(source))
    return Splits(kept)


def tiny_imagenet(source: Source) -> Splits:
    """Leave the classes of CIFAR-100 out of Tiny-ImageNet."""
    dropped = {row["wnid"] for row in excluded("imagenet_excluded.csv")}
    if not any(re.match(r"n\d{8}", name) for name in source.classes):
        raise DmcError(
            f"{source.name} does not name its classes by WordNet ids (one is {source.classes[0]!r}), so the classes "
            "of CIFAR-100 cannot be left out; if it has none of them, give the folder as aux"
        )
    return Splits(_without(source, lambda name: name.split()[0] in dropped))


def mnist(images: list[Path]) -> Splits:
    """Read MNIST's image file (idx3), packed with gzip or not."""
    content = read_bytes(images[0], MOST_BYTES)
    try:
        if images[0].suffix == ".gz":
            content = gzip.GzipFile(fileobj=BytesIO(content)).read(MOST_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise DmcError(f"cannot read {images[0]}: {first_line(error)}") from None
    magic, count, height, width = np.frombuffer(content[:16].ljust(16, b"\0"), dtype=">u4").tolist()
    if magic != 2051 or len(content) != 16 + count * height * width:
        raise DmcError(f"{images[0]} is not MNIST's image file (idx3)")
    pixels = np.frombuffer(content, dtype=np.uint8, offset=16).reshape(count, height, width)
    return Splits(ArrayImages(pixels, name=str(images[0])))


def svhn(files_: list[Path]) -> Splits:
    """Read SVHN's MATLAB file."""
    require_extra("bench", "scipy")
    from scipy.io import loadmat

    try:
        regular_size(files_[0])
        images = loadmat(str(files_[0]), variable_names=["X"])["X"].transpose(3, 0, 1, 2)
    except Exception as error:  # scipy raises many kinds of errors for a broken file
        raise DmcError(f"cannot read {files_[0]}: {reason_of(error)}") from None
    return Splits(ArrayImages(np.ascontiguousarray(images), name=str(files_[0])))


class CubImages(Source):
    """CUB-200-2011's own files; images are cut to the bird's box, as in the paper, which follows REWC."""

    def __init__(self, folder: Path, train: bool) -> None:
        self.name = f"{folder} ({'train' if train else 'test'})"
        table = {file: _columns(folder / f"{file}.txt") for file in ("images", "image_class_labels", "bounding_boxes")}
        split = _columns(folder / "train_test_split.txt")
        self.classes = tuple(row[0] for row in _columns(folder / "classes.txt").values())
        self.folder = folder / "images"
        self.entries: list[tuple[str, int, tuple[int, int, int, int]]] = []
        for i, (path, *_) in table["images"].items():
            try:
                if (split[i][0] == "1") == train:
                    x, y, width, height = (round(float(number)) for number in table["bounding_boxes"][i])
                    label = range(len(self.classes))[int(table["image_class_labels"][i][0]) - 1]
                    self.entries.append((path, label, (x, y, x + width, y + height)))
            except (LookupError, ValueError, OverflowError) as error:
                raise DmcError(
                    f"{folder}: the entries of image {i!r} do not fit together: {first_line(error)}"
                ) from None

    def __len__(self) -> int:
        return len(self.entries)

    def labels(self) -> Iterator[int]:
        return (label for _, label, _ in self.entries)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        below = Below(self.folder)
        for path, label, box in permuted(self.entries, seed):
            yield Record(below(path), label, str(self.folder / path), part=box)


def _columns(path: Path) -> dict[str, list[str]]:
    """Read a file whose lines are an id and some values; give the values by id."""
    rows = [line.split() for line in read_text(path).splitlines() if line.strip()]
    if any(len(row) < 2 for row in rows):
        raise DmcError(f"cannot read {path}: each line must be an id and a value")
    return {number: values for number, *values in rows}


def cub(classes: list[Path]) -> Splits:
    """Read CUB-200-2011 from the folder of its `classes.txt`."""
    return Splits(CubImages(classes[0].parent, train=True), CubImages(classes[0].parent, train=False))


def cub_table(train: list[Path], test: list[Path]) -> Splits:
    """Read a hub copy of CUB-200, which has no boxes to cut images to."""
    log.warning("a hub copy of CUB-200 is used with whole images; the paper cuts them to the birds' boxes")
    return table()(train, test)


def birdsnap(source: Source) -> Splits:
    """Leave the kinds of CUB-200 out of BirdSnap."""
    dropped = {_plain(row["birdsnap"]) for row in excluded("birdsnap_excluded.csv")}
    if not any(re.search("[a-z]", name.lower()) for name in source.classes):
        raise DmcError(f"{source.name} does not name its birds, so the kinds of CUB-200 cannot be left out")
    return Splits(_without(source, lambda name: _plain(name) in dropped))


def _plain(name: str) -> str:
    """Spell a bird's name plainly: `Anna's Hummingbird` and `annas_hummingbird` are the same."""
    return re.sub(r"[^a-z]+", "_", name.lower().replace("'", ""))
