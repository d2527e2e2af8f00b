"""Classes that arrive in groups: find the data, and order its classes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from dmc.bench.datasets import DATASETS, LAYOUTS, open_dataset
from dmc.bench.digits import digits, letters
from dmc.data.open import open_images
from dmc.data.sources import ClassSubset, Source
from dmc.data.subsets import Unlabeled, held_out, sampled
from dmc.errors import DmcError, nearest, require_known
from dmc.metrics.incremental import Groups, in_order_of_arrival
from dmc.recipes.profile import Profile

log = logging.getLogger("dmc")
USUAL_GROUP = {"digits": 2}  # classes at a time where the user does not say; 10 for other streams
BENCHMARKS = {"icifar100": "cifar100", "cub200": "cub200", "voc": "voc2007"}  # streams and their data sets
ICARL_SEED = 1993  # order 0 is iCaRL's; order k has seed 1993 + k


@dataclass(frozen=True)
class ClassStream:
    """Labeled data for training and testing, auxiliary images, and the groups in which classes arrive."""

    name: str
    train: Source
    test: Source
    all_aux: Source | None
    aux_images: int | float | None  # how many of them to use, or (as 0.25 or 1.0) a share; None: all
    groups: Groups

    @cached_property
    def aux(self) -> Source | None:
        """The auxiliary images without labels; chosen at first use, because a sample is read in full."""
        if self.all_aux is None:
            return None
        images, wanted = Unlabeled(self.all_aux), self.aux_images or len(self.all_aux)
        wanted = round(wanted * len(images)) if isinstance(wanted, float) and wanted <= 1 else int(wanted)
        if wanted > len(images):
            log.warning(f"{images.name} has {len(images):,} images, not {wanted:,}: all of them are used")
        return sampled(images, wanted) if wanted < len(images) else images

    def so_far(self, i: int) -> tuple[str, ...]:
        """Name the classes of groups 0 to i, in order of arrival."""
        return in_order_of_arrival(self.groups[: i + 1])


def class_order(names: Sequence[str], order: int) -> tuple[str, ...]:
    """Shuffle class names as iCaRL does; `order` 0 gives its own order, 87, 0, 52, ... of CIFAR-100."""
    random, positions = np.random.RandomState(ICARL_SEED + order), np.arange(len(names))
    for _ in names:  # iCaRL's code shuffles the 500 images of each class first
        random.shuffle(np.arange(500))
    random.shuffle(positions)
    return tuple(names[int(i)] for i in positions)


def grouped(names: Sequence[str], size: int, overlap: int = 0) -> tuple[tuple[str, ...], ...]:
    """Cut names into groups of `size`; each begins with the last `overlap` of the one before, the last has the rest."""
    if overlap >= size:
        raise DmcError(f"groups of {size} classes cannot share {overlap} with the group before")
    starts = range(0, max(1, len(names) - overlap), size - overlap)
    return tuple(tuple(names[i : i + size]) for i in starts)


def validation(stream: ClassStream) -> ClassStream:
    """Keep the first two groups, to be tested on a tenth of their own training images."""
    groups = stream.groups[:2]
    train, test = held_out(ClassSubset(stream.train, [name for group in groups for name in group]), every=10)
    return replace(stream, name=f"validation part of {stream.name}", train=train, test=test, groups=groups)


def open_stream(
    name: str, group_size: int, order: int, profile: Profile, data_root: Path | None, with_aux: bool
) -> ClassStream:
    """Open a stream by name: `digits` (embedded), `icifar100`, `cub200`, `voc` (below the data root), or a folder.

    A folder has train/, test/ and aux/, or is one of classes, whose every fifth image is for testing.
    """
    train, test = _labeled(name, profile, data_root)
    aux = _aux(name, profile.aux, data_root) if with_aux else None
    if profile.classes and profile.classes > len(train.classes) and not profile.groups:
        log.warning(f"{train.name} has {len(train.classes)} classes, not {profile.classes}: all of them are learned")
    ordered = class_order(train.classes, order)[: profile.classes]
    groups = profile.groups or grouped(ordered, group_size, profile.overlap)
    for source, where in ((train, ""), (test, f", which {train.name} has")):
        absent = [name for name in in_order_of_arrival(groups) if name not in source.classes]
        if absent:
            raise DmcError(f"{source.name} has no class {absent[0]!r}{where}")
    return ClassStream(name, train, test, aux, profile.aux_images, groups)


def needed_data(stream: str, profile: Profile, with_aux: bool) -> list[str]:
    """Name the data sets that a stream needs."""
    wanted = (profile.data or BENCHMARKS.get(stream), profile.aux if with_aux else None)
    return [name for name in wanted if name in DATASETS]


def _labeled(stream: str, profile: Profile, data_root: Path | None) -> tuple[Source, Source]:
    """Open a stream's training and test images, or those of the data set that the profile names."""
    data = profile.data or BENCHMARKS.get(stream)
    if data is not None:
        require_known("data set", data, LAYOUTS)
        train, test = open_dataset(data, data_root)
        if test is None:
            raise DmcError(f"{data} has only auxiliary images, without labels to learn from")
        return train, test
    if stream == "digits":
        return digits(0, test=False), digits(0, test=True)
    if Path(stream).is_dir() and not _part(stream, "train").exists():
        found = profile.task.open_labeled(stream, None, None)[0]
        return held_out(found.keep([name for name in found.classes if name != "aux"]), every=5)
    if Path(stream).is_dir():
        parts = [profile.task.open_labeled(_part(stream, part), None, None)[0] for part in ("train", "test")]
        return parts[0], parts[1]
    known = ["digits", *BENCHMARKS]
    raise DmcError(
        f"unknown stream {stream!r}{nearest(stream, known)}: "
        f"use {', '.join(known)}, or a folder of classes, or one with train/, test/ and aux/"
    )


def _aux(stream: str, wanted: str | None, data_root: Path | None) -> Source:
    """Open auxiliary images: a data set by name, a place, or (None) the stream's own."""
    if wanted in LAYOUTS:
        return open_dataset(wanted, data_root).train
    if wanted is not None:
        return open_images(wanted)
    if stream == "digits":
        return letters(8000, 0)
    if not _part(stream, "aux").exists():
        raise DmcError(f"{stream} has no auxiliary images (aux/): say where they are, aux=FOLDER")
    return open_images(_part(stream, "aux"))


def _part(folder: str, part: str) -> Path:
    """Give the place of train, test or aux in a folder: PART.parquet if that exists, or else the folder PART."""
    table = Path(folder) / f"{part}.parquet"
    return table if table.exists() else Path(folder) / part
