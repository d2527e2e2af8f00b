"""The part of consolidation that is the same for all kinds of models: verify, train, record provenance."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self

from torch import Tensor

from dmc.beginning import as_mean_if_near
from dmc.classes import counted
from dmc.config import ConsolidateConfig, RunConfig
from dmc.data.auxiliary import Images, open_auxiliary, require_room
from dmc.data.batch import Batch
from dmc.data.decode import Transform
from dmc.data.loader import ImageLoader, fits, held_loader, open_loader
from dmc.data.open import sample_of
from dmc.data.sources import Source
from dmc.data.subsets import JoinedImages, Repeated, Unlabeled, split_off
from dmc.device import pick_device
from dmc.distill.cache import AnswerCache
from dmc.distill.teachers import TeacherGroup
from dmc.errors import DmcError
from dmc.models.model import AnyModel
from dmc.precision import autocast, settled
from dmc.processes import is_main
from dmc.schedule import Schedule
from dmc.seeds import seed_for
from dmc.selection import select
from dmc.training.findings import Findings, save_findings
from dmc.training.loop import fit, require_trainable
from dmc.training.objective import Objective
from dmc.training.run_folder import Run, versions

log = logging.getLogger("dmc")
# At most a tenth of the auxiliary images is held out, to measure what the student has learned. If that tenth has fewer
# images than this, it would tell nothing: none is held out, and the student is measured on images it was trained on.
LEAST_HELD_OUT = 20
MOST_TIMES = 10  # an epoch shows each image that joins
COMPARED = 2048  # auxiliary images to compare on, where none are held out and not they alone are trained on
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


class Joining(NamedTuple):
    """Labeled images that are trained on besides the auxiliary ones."""

    images: Source
    with_labels: bool = False  # or as if they had none


class Consolidation(ABC, Generic[AnyModel]):
    """A consolidation with everything resolved and verified, and nothing trained yet."""

    teachers: TeacherGroup[AnyModel]
    student: AnyModel
    looked_at = 512  # auxiliary images that the teachers are asked about in a check
    takes_labels = False  # whether labels of images that join can be used

    def __init__(
        self, aux: Images, config: ConsolidateConfig, schedule: Schedule, joining: Joining | None = None
    ) -> None:
        """Count the images; of those that join take a sample, if they would outweigh the auxiliary ones."""
        self.aux, self.config, self.schedule = Unlabeled(open_auxiliary(aux, config)), config, settled(schedule)
        tenth = len(self.aux) // 10
        self.held_out = min(config.held_out, tenth) if tenth >= LEAST_HELD_OUT else 0
        there = len(self.aux) - self.held_out
        self.select = config.select if config.select is not None and config.select < there else None
        if config.select is not None and self.select is None:
            log.warning("%s has %s images to select from, so all are used", self.aux.name, f"{there:,}")
        self.with_labels = joining is not None and joining.with_labels
        if self.with_labels and not self.takes_labels:
            raise DmcError(
                f"labels of new images would undo what {self.teachers.specialists[0].singular}s know: leave out "
                "`use_labels`, or train on them without labels (`use_new=True`)"
            )
        most = (self.select or len(self.aux)) // 2
        self.joining = sample_of(joining.images, min(len(joining.images), most), config.seed) if joining else None

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

    def prepare(self, loader: ImageLoader, unseen: ImageLoader) -> None:
        """Measure on images what has to be known before training: on those to train on, or to compare on."""

    def require_plausible(self, batch: Batch, trained: int) -> None:
        """Refuse one of the first teachers, which are trained already, if its answers cannot be meant."""

    def adjust(self, unseen: ImageLoader) -> None:
        """Adjust the student after training, by what it answers to auxiliary images."""

    def seen_in(self, batch: Batch) -> Tensor:
        """Tell how much of each class the teachers see in each image, as a number for each image and class."""
        raise DmcError(f"images are not selected for {self.student.singular}s: leave out `select`")

    def joined(self, aux: Source) -> Source:
        """Add the images that are trained on besides the auxiliary ones."""
        if self.joining is None:
            return aux
        return JoinedImages(aux, Repeated(Unlabeled(self.joining, self.with_labels), self.times))

    @property
    def trained_on(self) -> int:
        """The number of images in an epoch."""
        return self.of_aux + (len(self.joining) * self.times if self.joining else 0)

    @property
    def different_images(self) -> int:
        """The number of images in an epoch, each counted once."""
        return self.of_aux + (len(self.joining) if self.joining else 0)

    @property
    def of_aux(self) -> int:
        """How many auxiliary images are trained on."""
        return self.select or len(self.aux) - self.held_out

    @property
    def times(self) -> int:
        """How often an epoch shows each image that joins: if they are few, so often that they are about a quarter."""
        return min(max(1, round(self.of_aux / 3 / len(self.joining))), MOST_TIMES) if self.joining else 0

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
        joining = self.joining
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
            **({"joining": {"name": joining.name, "images": len(joining), "times": self.times}} if joining else {}),
            **({"with_labels": True} if self.with_labels else {}),
            "student": self.student.settings,
            **self.config.model_dump(exclude=TOLD_ELSEWHERE | WITHOUT_EFFECT),
            **({"from_teacher": True} if self.config.from_teacher else {}),
            "views": self.cache.views if self.cache else None,
            "schedule": self.schedule.model_dump(),
            "seed": self.config.seed,
            "versions": versions(),
        }

    def scheduled(self, schedule: Schedule) -> Self:
        """Give the same consolidation with another schedule."""
        other = copy(self)
        other.schedule = schedule
        return other

    def run(
        self,
        out: str | Path | None = None,
        how: RunConfig = RunConfig(),  # noqa: B008 (frozen)
        made_by: str = "dmc consolidate",
        notes: Mapping[str, str] = {},
    ) -> AnyModel:
        """Train the student, or read it if the run in the folder `out` has finished; None writes nothing to disk.

        `made_by` and `notes` are for the model's card.
        """
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
            self.prepare(loader, unseen)
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
            self.adjust(unseen)
            findings = self.compare(unseen)
            self.student.provenance = {
                "made by": made_by,
                **self.card_lines(findings, len(loader.skipped)),
                **began,
                "training": f"{self.schedule.length}, {at.images} images seen, seed {self.config.seed}, "
                f"{self.schedule.precision}",
                **notes,
            }
            if not run.temporary and is_main():
                save_findings(run.folder, findings, self.student.pipeline_tag, bool(self.held_out), unseen)
            return run.finish(self.student)

    def card_lines(self, findings: Findings, skipped: int) -> dict[str, Any]:
        """Tell for the model's card what was merged, by which images, and how well."""
        told = zip(self.teachers.specialists, findings.of_each, strict=True)
        seen = "not trained on" if self.held_out else "not held out" if self.select else "trained on"
        chosen = f", {self.select} selected" if self.select else ""
        labels = ", with labels" if self.with_labels else ""
        often = f", {self.times} times in an epoch" if self.times > 1 else ""
        return {
            **{f"teacher {i}": f"{s.name}, {counted(s.names)}: {words}" for i, (s, words) in enumerate(told, 1)},
            "compared": f"on {findings.images} auxiliary images that were {seen}: {findings.overall}",
            **({"warning": findings.warnings} if findings.warnings else {}),
            "auxiliary images": f"{self.aux.name} ({len(self.aux)}, {skipped} skipped{chosen})",
            **({"images besides": f"{self.joining.name} ({len(self.joining)}{labels}{often})"} if self.joining else {}),
        }

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
        return AnswerCache(Path(self.config.cache), self.config.cache_bytes, views, self.different_images, seen)

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
        at_once = self.schedule.batch_size  # as in training: what fits there, fits

        def asked(batch: Batch) -> Tensor:
            with autocast(self.schedule.precision, pick_device()):
                return self.seen_in(batch)

        return select(images, self.select, self.transform, asked, at_once, self.config.seed, folder)
