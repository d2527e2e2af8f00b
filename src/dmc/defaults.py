"""Choose what the user did not: architecture, input size, initial weights, schedule. Every choice says why.

The paper's own choices are the profile `paper`: ResNet-32 at 32x32, 200 and 50 epochs of SGD at 0.1.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import ceil
from statistics import median
from typing import Any, Literal

from dmc.data.decode import opened, upright_size
from dmc.data.sources import Source
from dmc.device import pick_device
from dmc.errors import DmcError
from dmc.models.build import create, default_preprocessing, known_architecture
from dmc.progress import duration
from dmc.specialist import Specialist
from dmc.training.schedule import DETECTION, Schedule

ProfileName = Literal["auto", "paper"]
AUTO = "auto"  # as initial weights: ImageNet's where they can be had
SMALL_SIDE = 48  # pixels; up to here images are CIFAR's kind, and a CIFAR ResNet is the network for them
LEAST_PRETRAINED_SIDE = 64  # below, what ImageNet networks have learned is of little use
LOOKED_AT = 64  # images
log = logging.getLogger("dmc")


@dataclass(frozen=True)
class Choice:
    """A network to train, and why this one."""

    arch: str
    size: int | None  # None: what the architecture was designed for
    weights: str | None  # None: random
    why: str

    def __str__(self) -> str:
        size = f" at {self.size}x{self.size}" if self.size else ""
        return f"{self.arch}{size}, {self.weights or 'random'} weights ({self.why})"


@dataclass(frozen=True)
class Length:
    """What the user said about how long and how fast; the rest is chosen."""

    profile: ProfileName = "auto"
    schedule: Schedule | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)  # to a schedule, whichever it is
    minutes: float | None = None

    def of(self, paper: Schedule, fitting: Schedule) -> Schedule:
        """The schedule that was given, the paper's, or one that fits the images; with what was changed of it."""
        chosen = self.schedule or (paper if self.profile == "paper" else fitting)
        return chosen.changed(self.changes)

    def within(self, schedule: Schedule, images: int, images_per_second: float, share: float = 1.0) -> Schedule:
        """As many passes as the budget has room for, where there is one; `share` is the part of it to spend."""
        if self.minutes is None:
            return schedule
        passes = int(self.minutes * share * 60 * images_per_second / images)
        if not passes:
            needed = duration(images / images_per_second)
            raise DmcError(f"a pass over {images:,} images takes {needed}: allow more minutes, or take fewer images")
        return schedule.changed({"epochs": passes})


def shorter_side(source: Source) -> int:
    """The median shorter side of some images, in pixels; nothing is decoded."""
    sides = []
    for record in islice(source.records(seed=0), LOOKED_AT):
        try:
            with opened(record) as image:
                sides.append(min(upright_size(image)))
        except Exception:  # whoever decodes it will say so
            continue
    if not sides:
        raise DmcError(f"none of {LOOKED_AT} images in {source.name} can be read")
    return round(median(sides))


def classifier_for(source: Source, arch: str | None, size: int | None, weights: str | None) -> Choice:
    """A network that suits the images: a CIFAR ResNet for small ones, else a pretrained ResNet-18."""
    side = shorter_side(source)
    why = f"images of about {side} pixels"
    if arch is None and side <= SMALL_SIDE:
        arch, size = "cifar_resnet32", size or (32 if side >= 24 else max(8, side))
    elif arch is None:
        arch, size = "resnet18", size or _photograph_side(side)
    return Choice(arch, size, pretrained(arch, size, weights), why)


def _photograph_side(side: int) -> int:
    """224 pixels, as ImageNet's networks have it; fewer where the images, or the time of a CPU, have no more."""
    return min(224 if pick_device().type != "cpu" else 128, max(64, side // 32 * 32))


def student_for(
    teachers: Sequence[Specialist], aux: Source, arch: str | None, size: int | None, weights: str | None
) -> Choice:
    """The architecture of all teachers, or of the largest: it has to hold what all of them know."""
    named = [teacher for teacher in teachers if teacher.arch is not None]
    if arch is None and not named:
        return classifier_for(aux, None, size, weights)
    if arch is not None:
        return Choice(arch, size, pretrained(arch, size, weights), "as asked")
    largest = max(named, key=lambda teacher: teacher.parameter_count)
    why = "as all teachers" if len({t.arch for t in teachers}) == 1 else f"as {largest.name}, the largest teacher"
    size = size or largest.preprocessing.size
    return Choice(largest.require_arch(), size, pretrained(largest.require_arch(), size, weights), why)


def pretrained(arch: str, size: int | None, weights: str | None) -> str | None:
    """Where a network begins: as asked, or with ImageNet's weights where they help and can be had."""
    if weights != AUTO:
        return weights
    arch = known_architecture(arch)
    too_small = (size or default_preprocessing(arch).size) < LEAST_PRETRAINED_SIDE
    if arch.startswith("cifar_resnet") or too_small:
        return None
    try:
        create(arch, 2, weights="imagenet")
    except DmcError as error:
        log.warning(f"{error}: beginning at random")
        return None
    return "imagenet"


def labeled_schedule(images: int, begun: bool) -> Schedule:
    """Enough steps for a network to fit its images: few for one that has begun with ImageNet's weights."""
    if begun:
        return Schedule(epochs=_clamped(20_000 / images, 4, 30), lr=0.01, shape="one-cycle", batch_size=32)
    return Schedule(epochs=_clamped(150_000 / images, 10, 200), shape="one-cycle", batch_size=_batch(images))


def distillation_schedule(images: int, begun: bool) -> Schedule:
    """About 300,000 images seen, which is where a student on two cores stops gaining much in an hour."""
    epochs = _clamped(300_000 / images, 4, 100)
    return Schedule(epochs=epochs, lr=0.02 if begun else 0.1, shape="one-cycle", batch_size=_batch(images))


def detection_schedule(images: int) -> Schedule:
    """The paper's Adam, with as many passes as make 12,000 images."""
    return DETECTION.changed({"epochs": _clamped(12_000 / images, 8, 100), "shape": "one-cycle"})


def _clamped(wanted: float, least: int, most: int) -> int:
    return min(max(ceil(wanted), least), most)


def _batch(images: int) -> int:
    """Short trainings need steps more than they need large batches."""
    return 128 if images >= 20_000 else 32
