"""Classes that arrive in groups: where the data is, and in which order its classes come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dmc.bench.digits import digits, letters
from dmc.data.opening import open_images, open_labeled
from dmc.data.sources import ListedImages, Source
from dmc.errors import DmcError

ICARL_SEED = 1993  # order 0 is iCaRL's; order k has seed 1993 + k


@dataclass(frozen=True)
class ClassStream:
    """Labeled data for training and for testing, unlabeled images, and the groups in which classes arrive."""

    name: str
    train: Source
    test: Source
    aux: Source
    groups: tuple[tuple[str, ...], ...]

    def so_far(self, i: int) -> tuple[str, ...]:
        return tuple(name for group in self.groups[: i + 1] for name in group)


def class_order(names: Sequence[str], order: int) -> tuple[str, ...]:
    positions = np.arange(len(names))
    np.random.RandomState(ICARL_SEED + order).shuffle(positions)
    return tuple(names[int(i)] for i in positions)


def grouped(names: Sequence[str], size: int) -> tuple[tuple[str, ...], ...]:
    """Groups of `size` classes; the last one has what is left."""
    return tuple(tuple(names[i : i + size]) for i in range(0, len(names), size))


def open_stream(
    name: str, group_size: int, order: int, classes: int | None, aux_images: int | None, data_root: Path | None
) -> ClassStream:
    """`digits` (embedded), `icifar100` (from the data root), or a folder with `train/`, `test/` and `aux/`.

    `classes` takes only the first so many of the order, `aux_images` only so many of the unlabeled images.
    """
    train: Source
    test: Source
    aux: Source
    if name == "digits":
        train, test, aux = digits(0, test=False), digits(0, test=True), letters(8000, 0)
    elif name == "icifar100":
        root = _root(data_root, "cifar100/train.parquet, cifar100/test.parquet and aux/tiny_imagenet/train.parquet")
        train = open_labeled(root / "cifar100" / "train.parquet")
        test = open_labeled(root / "cifar100" / "test.parquet")
        aux = open_images(root / "aux" / "tiny_imagenet" / "train.parquet")
    elif Path(name).is_dir():
        train, test = open_labeled(Path(name) / "train"), open_labeled(Path(name) / "test")
        aux = open_images(Path(name) / "aux")
    else:
        raise DmcError(f"unknown stream {name!r}: use digits, icifar100, or a folder with train/, test/ and aux/")
    if aux_images is not None and aux_images < len(aux):
        aux = ListedImages(aux, aux_images)
    ordered = class_order(train.classes, order)[:classes]
    return ClassStream(name, train, test, aux, grouped(ordered, group_size))


def _root(data_root: Path | None, wanted: str) -> Path:
    if data_root is None:
        raise DmcError(f"this stream needs data: give --data-root (or set DMC_DATA) to a folder with {wanted}")
    return data_root
