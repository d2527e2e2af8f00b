"""The part of consolidation that is the same for all kinds of models: verify, estimate, train, record provenance."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Generic

from torch import Tensor

from dmc.beginning import as_first, as_mean_if_near
from dmc.checks import Check
from dmc.classes import counted
from dmc.config import ConsolidateConfig, RunConfig, Schedule
from dmc.cost import Cost, measured
from dmc.data.auxiliary import Images, open_auxiliary, require_room
from dmc.data.batch import Batch
from dmc.data.decode import DecodeError, Skipped, Transform, decoded
from dmc.data.loader import ENOUGH, ImageLoader, fits, held_loader, open_loader
from dmc.data.open import sample_of
from dmc.data.preprocess import Preprocessing
from dmc.data.sources import Record, Source
from dmc.data.subsets import JoinedImages, Unlabeled, split_off
from dmc.device import pick_device
from dmc.distill.cache import AnswerCache
from dmc.distill.teachers import TeacherGroup
from dmc.errors import DmcError
from dmc.models.model import AnyModel
from dmc.precision import autocast, settled
from dmc.processes import is_main
from dmc.seeds import seed_for
from dmc.selection import select
from dmc.training.findings import Findings, save_findings
from dmc.training.loop import first_of, fit, require_trainable, step_cost
from dmc.training.objective import Objective
from dmc.training.run_folder import Run, versions

log = logging.getLogger("dmc")
LOOKED_AT = 512  # auxiliary images that are looked at before training
ASKING_SECONDS = 20  # and how long that may take
# At most a tenth of the auxiliary images is held out, to measure what the student has learned. If that tenth has fewer
# images than this, it would tell nothing: none is held out, and the student is measured on images it was trained on.
LEAST_HELD_OUT = 20
COMPARED = 2048  # auxiliary images to compare on, if none are held out and others are trained on besides them
# By other keys of run.json.
TOLD_ELSEWHERE = {
    "arch",
    "size",
    "seed",
    "memory",
    "aux_limit",
    "select",
    "held_out",
    "views",
    "recipe",
    "from_teacher",
}
WITHOUT_EFFECT = {"workers", "cache", "cache_limit"}  # on the result


@dataclass(frozen=True)
class Estimate:
    """What is known about a consolidation before it trains."""

    tried: int  # images that were opened
    undecodable: Skipped  # of those
    images_per_second: float
    cost: Cost
    teachers: dict[str, Any]  # what `teachers_alone` found on some of the images


class Consolidation(ABC, Generic[AnyModel]):
    """A consolidation with everything resolved and verified, and nothing trained yet."""

    teachers: TeacherGroup[AnyModel]
    student: AnyModel
    made_by = "dmc consolidate"  # for the model's card
    notes: Mapping[str, str] = {}  # also for the card
    looked_at = LOOKED_AT  # auxiliary images that the teachers are asked about in a check
    joining: Source | None = None  # images that are trained on besides the auxiliary ones
    with_labels = False  # whether their labels are used
    takes_labels = False  # whether they can be

    def __init__(self, aux: Images, config: ConsolidateConfig, schedule: Schedule) -> None:
        self.aux, self.config, self.schedule = Unlabeled(open_auxiliary(aux, config)), config, settled(schedule)
        tenth = len(self.aux) // 10
        self.held_out = min(config.held_out, tenth) if tenth >= LEAST_HELD_OUT else 0
        there = len(self.aux) - self.held_out
        self.select = config.select if config.select is not None and config.select < there else None
        if config.select is not None and self.select is None:
            log.warning("%s has %s images to select from, so all are used", self.aux.name, f"{there:,}")

    @property
    @abstractmethod
    def transform(self) -> Transform:
        """How images are shaped before they are held in memory and augmented."""

    @abstractmethod
    def objective(self) -> Objective:
        """Give the training objective: the double distillation."""

    @abstractmethod
    def compare(self, unseen: ImageLoader) -> Findings:
        """Compare the trained student with its teachers on some auxiliary images."""

    @abstractmethod
    def measure_teachers(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """Measure the teachers side by side, before training: whether one of them would drown the others."""

    def prepare(self, loader: ImageLoader) -> None:
        """Measure on the auxiliary images what has to be known before training."""

    def settle(self, unseen: ImageLoader) -> None:
        """Adjust the student after training, by what it answers to auxiliary images."""

    def seen_in(self, batch: Batch) -> Tensor:
        """Tell how much of each class the teachers see in each image, as a number for each image and class."""
        raise DmcError(f"images are not selected for {self.student.singular}s (select)")

    def as_first_teacher(self, arch: str, preprocessing: Preprocessing) -> AnyModel:
        """Make a student that begins as its first teacher."""
        return as_first(self.teachers.specialists[0], self.teachers.union.names, arch, preprocessing, self.config.seed)

    def join(self, images: Source, with_labels: bool = False) -> None:
        """Train on these images, too; on a sample of them if they would outweigh the others."""
        if with_labels and not self.takes_labels:
            raise DmcError(
                f"labels of new images would undo the old classes of {self.student.singular}s: leave out use_labels, "
                "or train on them without labels (use_new=True)"
            )
        self.joining = sample_of(images, min(len(images), len(self.aux) // 2), self.config.seed)
        self.with_labels = with_labels

    def joined(self, aux: Source) -> Source:
        """Add the images that are trained on besides the auxiliary ones."""
        return JoinedImages(aux, Unlabeled(self.joining, self.with_labels)) if self.joining else aux

    @property
    def trained_on(self) -> int:
        """The number of images in an epoch."""
        joining = len(self.joining) if self.joining else 0
        return (self.select or len(self.aux) - self.held_out) + joining

    @property
    def held(self) -> bool:
        """Whether the images fit in memory. It is a part of run.json, since streamed images come in another order."""
        return fits(self.trained_on + self.held_out, self.transform, self.config.memory_bytes)

    def require_room(self) -> None:
        """Refuse to hold more images than the machine has memory for, before they are read."""
        images = self.trained_on + self.held_out
        require_room(self.joined(self.aux).name, images, self.transform, self.config.memory_bytes)

    @property
    def run_json(self) -> dict[str, Any]:
        """Everything that determines the result, as run.json holds it; a resumed run must have the same."""
        return {
            "command": "consolidate",
            "teachers": [
                {"from": s.name, **s.settings, "fingerprint": s.fingerprint} for s in self.teachers.specialists
            ],
            "aux": {
                "name": self.aux.name,
                "images": len(self.aux),
                "held": self.held,
                "held_out": self.held_out,
                **({"select": self.select} if self.select else {}),
            },
            **({"joining": {"name": self.joining.name, "images": len(self.joining)}} if self.joining else {}),
            **({"with_labels": True} if self.with_labels else {}),
            "student": self.student.settings,
            **self.config.model_dump(exclude=TOLD_ELSEWHERE | WITHOUT_EFFECT),
            **({"from_teacher": True} if self.config.from_teacher else {}),
            "views": self.cache.views if self.cache else None,
            "schedule": self.schedule.model_dump(),
            "seed": self.config.seed,
            "versions": versions(),
        }

    def run(self, out: str | Path | None = None, how: RunConfig = RunConfig()) -> AnyModel:  # noqa: B008 (frozen)
        """Train the student, or read it if the run in the folder `out` has finished; None writes nothing to disk."""
        self.require_room()
        if (
            out is not None
            and self.config.cache is not None
            and Path(out).resolve() == Path(self.config.cache).resolve()
        ):
            raise DmcError(f"{out} is for the result; name another folder for the cache")
        with Run(out, self.run_json, how) as run:
            if run.finished:
                return run.result(self.student)
            self.teachers.to(pick_device()).fold()
            loader, unseen = self.open_loaders(run.folder)
            require_trainable(self.student.module, self.objective(), loader, self.schedule)
            began: dict[str, str] = {}
            # New images would speak for their own teacher, and selected ones are clearer than others.
            self.prepare(unseen if self.joining or self.select else loader)
            if self.config.from_teacher:
                mean = as_mean_if_near(self.student, self.teachers.specialists, self.objective(), unseen)
                began = {"began as": "the mean of its teachers" if mean else "the first teacher"}
            with self.remembering():
                at = fit(
                    self.student.module,
                    self.objective(),
                    loader,
                    self.schedule,
                    run,
                    self.config.seed,
                    "consolidating",
                    views=self.cache.views if self.cache else None,
                )
            self.settle(unseen)
            findings = self.compare(unseen)
            told = zip(self.teachers.specialists, findings.of_each, strict=True)
            seen = "not trained on" if self.held_out else "not held out" if self.select else "trained on"
            chosen = f", {self.select} selected" if self.select else ""
            labels = ", with labels" if self.with_labels else ""
            self.student.provenance = {
                "made by": self.made_by,
                **{f"teacher {i}": f"{s.name}, {counted(s.names)}: {words}" for i, (s, words) in enumerate(told, 1)},
                "compared": f"on {findings.images} auxiliary images that were {seen}: {findings.overall}",
                **({"warning": findings.warnings} if findings.warnings else {}),
                "auxiliary images": f"{self.aux.name} ({len(self.aux)}, {len(loader.skipped)} skipped{chosen})",
                **({"images besides": f"{self.joining.name} ({len(self.joining)}{labels})"} if self.joining else {}),
                **began,
                "training": f"{self.schedule.length}, {at.images} images seen, seed {self.config.seed}, "
                f"{self.schedule.precision}",
                **self.notes,
            }
            if not run.temporary and is_main():
                save_findings(run.folder, findings, self.student.pipeline_tag, bool(self.held_out), unseen)
            return run.finish(self.student)

    @property
    def different_views(self) -> int | None:
        """How many views of an image differ, at most; None: very many."""
        return None

    @property
    def cache(self) -> AnswerCache | None:
        """The cache of the teachers' answers; None: they are asked in every pass."""
        if self.config.cache is None:
            return None
        views = min(self.config.views, self.different_views or self.config.views)
        seen = {"pad": self.schedule.pad, "flip": self.schedule.flip, "precision": self.schedule.precision}
        return AnswerCache(Path(self.config.cache), self.config.cache_bytes, views, self.trained_on, seen)

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """Keep what the teachers answer in the cache, if there is one."""
        if self.cache is None:
            yield
            return
        with self.cache as cache:
            self.teachers.remember(cache)
            try:
                yield
            finally:
                self.teachers.tables = []

    def open_loaders(self, folder: Path) -> tuple[ImageLoader, ImageLoader]:
        """Open the images to train on, and those to compare on afterwards.

        These are auxiliary images that are not trained on; if none are held out, some that are.
        """
        memory, workers = self.config.memory_bytes, self.config.workers
        if not self.held_out:
            loader = open_loader(self.joined(self.selected(self.aux, folder)), self.transform, memory, workers)
            some = sample_of(self.aux, min(COMPARED, len(self.aux)), self.config.seed)
            apart = self.joining or self.select
            return loader, held_loader(some, self.transform, most_skipped=1) if apart else loader
        sample, rest = split_off(self.aux, self.held_out, seed_for(self.config.seed, "held out"))
        unseen = held_loader(sample, self.transform, most_skipped=1)  # too few to refuse a set by; the rest is judged
        if not unseen.count:
            raise DmcError(f"none of {len(sample)} images of {self.aux.name} that were looked at can be decoded")
        return open_loader(self.joined(self.selected(rest, folder)), self.transform, memory, workers), unseen

    def selected(self, images: Source, folder: Path) -> Source:
        """Give the images that teach most, if not all are to be trained on."""
        if self.select is None:
            return images
        return select(images, self.select, self.transform, self.seen_in, self.config.seed, folder)

    def selecting_seconds(self, cost: Cost) -> float:
        """Give the seconds that a selection takes: one process asks about every image."""
        return (len(self.aux) - self.held_out) * cost.asking_seconds if self.select else 0.0

    def some_batches(self, kept: int = LOOKED_AT, mixed: bool = False) -> tuple[list[Batch], int, Skipped]:
        """Give some auxiliary images, how many were tried, and which of them are broken; refuse if too many are.

        They are from all over the set if that is held, or `mixed`; else those that come first.
        """
        skipped = Skipped(self.aux.name, named=0)  # they are named when all images are read
        framed: list[tuple[Record, Tensor]] = []
        tried = min(max(ENOUGH, kept), len(self.aux))
        # To shuffle a stream, more of it has to be read.
        seed = self.config.seed if self.held or mixed else None
        for record, image in islice(decoded(self.aux.records(seed), self.transform), tried):
            if isinstance(image, DecodeError):
                skipped.add(image)
            elif len(framed) < max(kept, self.schedule.batch_size):
                framed.append((record, image))
        skipped.check(len(skipped), tried)
        size = self.schedule.batch_size
        batches = [self.transform.batch(framed[start : start + size]) for start in range(0, len(framed), size)]
        return batches, tried, skipped

    def cost(self, batch: Batch) -> Cost:
        """Count and time a step on a batch, and the teachers' part of it; the student's weights stay as they are."""
        device = pick_device()
        batch = batch.to(device)
        self.teachers.to(device).fold()
        self.student.to(device)
        if self.trained_on // -(-self.trained_on // self.schedule.batch_size) == 1:  # images in the smallest batch
            step_cost(self.student.module, self.objective(), first_of(batch, 1), self.schedule.precision)

        def ask() -> None:
            with autocast(self.schedule.precision, device):
                self.teachers.each(batch.images_N3HW)
            self.teachers.require_finite()  # waits for the device

        flops, seconds = step_cost(self.student.module, self.objective(), batch, self.schedule.precision)
        asking_flops, asking_seconds = measured(ask, len(batch))
        asking_seconds = min(asking_seconds, 0.95 * seconds)  # timings are noisy
        cache, kept = self.cache, self.teachers.kept() if self.cache else []
        if cache:
            cache.require_room(kept)
        return Cost(
            asking_flops=asking_flops,
            student_flops=flops - asking_flops,
            asking_seconds=asking_seconds,
            student_seconds=seconds - asking_seconds,
            cache_bytes=cache.bytes_for(kept) if cache else 0,
            views=cache.views if cache else None,
        )

    def estimate(self) -> Estimate:
        """Time two steps on real images, and measure the teachers side by side."""
        started = time.monotonic()
        batches, tried, broken = self.some_batches(self.looked_at, mixed=True)
        decoding = tried / (time.monotonic() - started)
        cost = self.cost(batches[0])
        epochs = self.schedule.epochs
        training = epochs / cost.seconds(1, epochs)
        rate = training if self.held else min(training, decoding)
        asked = within(ASKING_SECONDS, (batch.to(pick_device()) for batch in batches))
        return Estimate(tried, broken, rate, cost, self.measure_teachers(asked))

    def check(self) -> Check:
        """Say what can be said before anything trains: time two steps on real images, write nothing."""
        estimate = self.estimate()
        cost, selecting = estimate.cost, self.selecting_seconds(estimate.cost)
        passes = self.schedule.epochs
        images = passes * self.trained_on
        return {
            "task": self.student.pipeline_tag,
            "teachers": [
                {"name": s.name, "parameters": s.parameter_count, **s.settings} for s in self.teachers.specialists
            ],
            "side_by_side": estimate.teachers,
            "student": {"parameters": self.student.parameter_count, **self.student.settings},
            "shared": list(self.teachers.union.shared),
            "aux": {
                "name": self.aux.name,
                "images": len(self.aux),
                "size": self.transform.size,
                "held_in_memory": self.held,
                "tried": estimate.tried,
                "undecodable": len(estimate.undecodable),
                "first_undecodable": estimate.undecodable.first,
                "held_out": self.held_out,
                "selected": self.select,
            },
            "cost": {
                "teachers_gflops": round(cost.asking_flops / 1e9, 3),
                "student_gflops": round(cost.student_flops / 1e9, 3),
                "gflops_per_second": round(cost.flops_per_second / 1e9, 1),
                "total_gflops": round(cost.flops(self.trained_on, passes) / 1e9),
                "image_bytes": self.transform.bytes_per_image * (self.trained_on + self.held_out),
                "cache": self.config.cache,
                "cache_bytes": cost.cache_bytes,
                "asking_epochs": cost.asking_passes(passes),
            },
            "estimate": {
                "epochs": passes,
                "images": images,
                "images_per_second": round(estimate.images_per_second, 1),
                "seconds": round(images / estimate.images_per_second + selecting),
            },
        }


def within(seconds: float, batches: Iterable[Batch]) -> Iterator[Batch]:
    """Give as many batches as there is time for, and at least one."""
    started = time.monotonic()
    for batch in batches:
        yield batch
        if time.monotonic() - started > seconds:
            return
