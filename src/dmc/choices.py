"""Choose what the user did not give: architecture, input size, initial weights, schedule. Every choice has a reason.

The paper's own choices are the profile `paper`: ResNet-32 at 32x32, 200 and 50 epochs of SGD at 0.1.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import islice
from math import ceil
from pathlib import Path
from statistics import median

from dmc.config import AUTO, Length, NetworkConfig
from dmc.cost import Cost
from dmc.data.decode import opened, upright_size
from dmc.data.sources import Source
from dmc.documents import RunRecord, read_json
from dmc.errors import DmcError
from dmc.models.architectures import CLASSIFIERS
from dmc.processes import is_main, together
from dmc.progress import duration
from dmc.schedule import Schedule

LEAST_PRETRAINED_SIDE = 64  # pixels; at smaller sizes ImageNet weights are of little use
LOOKED_AT = 64  # images that are opened to find their usual size
log = logging.getLogger("dmc")


@dataclass(frozen=True)
class NetworkChoice:
    """A network to train, and why this one."""

    arch: str
    size: int | None  # None: what the architecture was designed for
    weights: str | None  # None: random
    why: str
    begins_as: str = ""  # whose weights it begins with instead: "a's"

    def __str__(self) -> str:
        size = f" at {self.size} pixels" if self.size else ""
        return f"{self.arch}{size} from {self.begins_as or self.weights or 'random'} weights ({self.why})"


@dataclass(frozen=True)
class ResumedRun:
    """The network and schedule that were chosen when a run began; resuming it keeps them."""

    network: NetworkChoice
    schedule: Schedule

    @classmethod
    def in_folder(cls, out: str | Path | None, resume: bool) -> ResumedRun | None:
        """Read the run in a folder; give None if nothing is to be resumed, or if it cannot be read."""
        if out is None or not resume:
            return None
        return together().agreed(cls._read(Path(out)) if is_main() else None)

    @classmethod
    def _read(cls, folder: Path) -> ResumedRun | None:
        try:
            record = read_json(folder / "run.json", RunRecord)
            schedule = Schedule(**(record.schedule or {}))
        except (OSError, DmcError):
            return None  # opening the run will say what is wrong
        network, begun = record.student or record.model, record if record.student else record.task
        if not (network and network.arch and network.preprocessing and begun and record.schedule):
            return None
        return cls(NetworkChoice(network.arch, network.preprocessing.size, begun.weights, "as it was begun"), schedule)

    def unless(self, asked: NetworkConfig) -> NetworkChoice:
        """Give the run's network, changed by what is asked for now; the run will refuse a difference."""
        was, weights = self.network, asked.weights
        return NetworkChoice(
            asked.arch or was.arch, asked.size or was.size, was.weights if weights == AUTO else weights, was.why
        )


def schedule_for(length: Length, paper: Schedule, fitting: Schedule, begun: ResumedRun | None = None) -> Schedule:
    """Choose the given schedule, a resumed run's, the paper's, or one that fits the images; apply the changes to it."""
    fitting = fitting.changed({"precision": "auto"})  # the paper's is fp32
    chosen = length.schedule or (begun.schedule if begun else paper if length.profile == "paper" else fitting)
    return chosen.changed(length.changes)


def timed(length: Length, schedule: Schedule, images: int, cost: Cost, what: str, before: float = 0.0) -> Schedule:
    """Set the epochs to what fits in the minutes, if these are given; log what will be trained, and about how long.

    `before` are the seconds that pass before the first epoch.
    """
    own = -(-images // together().count)  # of several processes each trains on its share, at its own rate
    if length.minutes is not None:
        passes = together().agreed(cost.epochs_in(length.share * length.minutes * 60 - before, own))
        if passes < 1:
            needed = duration(cost.seconds(own, epochs=1))
            more = f", and to select them {duration(before)}" if before else ""
            raise DmcError(
                f"a pass over {images:,} images takes {needed}{more}: allow more minutes, or take fewer images"
            )
        schedule = schedule.changed({"epochs": passes})
    seconds = before + cost.seconds(own, schedule.epochs)
    log.info(f"{what}: {schedule.length} of {images:,} images, about {duration(seconds)}")
    return schedule


def shorter_side(source: Source) -> int:
    """Give the median shorter side of some images in pixels, without decoding them."""
    sides = []
    for record in islice(source.records(seed=0), LOOKED_AT):
        try:
            with opened(record) as image:
                sides.append(min(upright_size(image)))
        except Exception:  # decoding will report it
            continue
    if not sides:
        raise DmcError(f"none of {LOOKED_AT} images in {source.name} can be read")
    return round(median(sides))


def pretrained(arch: str, size: int | None, weights: str | None) -> str | None:
    """Choose initial weights; `auto` becomes ImageNet's where they help and can be had, else None, which is random."""
    if weights != AUTO:
        return weights
    arch = CLASSIFIERS.known(arch)
    too_small = (size or CLASSIFIERS.preprocessing(arch).size) < LEAST_PRETRAINED_SIDE
    if too_small or not CLASSIFIERS.find(arch).has_imagenet_weights:
        return None
    try:
        CLASSIFIERS.create(arch, 2, weights="imagenet")
    except DmcError as error:
        reason, _, _ = str(error).partition(";")  # the rest is advice to those who asked for these weights
        log.warning(f"{reason}; training starts from random weights instead")
        return None
    return "imagenet"


def clamped(wanted: float, least: int, most: int) -> int:
    """Round up, and keep the result within the limits."""
    return min(max(ceil(wanted), least), most)


def batch_size(images: int) -> int:
    """Choose a batch size: with few images, more steps help more than larger batches."""
    return 128 if images >= 20_000 else 32
