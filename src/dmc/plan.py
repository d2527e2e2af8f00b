"""What consolidating classifiers and detectors have in common: verify, estimate, train, tell where it came from."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Generic

import numpy as np
import numpy.typing as npt
from torch import Tensor

from dmc.classes import counted
from dmc.data.batch import Batch
from dmc.data.decode import Framing, Skipped, decoded
from dmc.data.feed import ENOUGH, Feed, fits, open_feed
from dmc.data.opening import open_images
from dmc.data.sources import Record, Source
from dmc.device import pick_device
from dmc.distill.teachers import TeacherGroup
from dmc.specialist import AnyModel
from dmc.training.loop import Task, fit
from dmc.training.run import Run, require_free, versions
from dmc.training.schedule import Schedule

Images = str | Path | Source | npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Estimate:
    tried: int
    undecodable: int
    images_per_second: float
    spreads: list[float]  # of each teacher's normalised logits


class Plan(ABC, Generic[AnyModel]):
    """A consolidation with everything resolved and verified, and nothing trained yet."""

    teachers: TeacherGroup[AnyModel]
    student: AnyModel
    made_by = "dmc consolidate"  # for the model's card

    def __init__(self, aux: Images, schedule: Schedule, seed: int, memory: int) -> None:
        self.aux, self.schedule, self.seed, self.memory = open_images(aux), schedule, seed, memory

    @property
    @abstractmethod
    def framing(self) -> Framing:
        """The shape in which images are held and augmented."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """How the student is compared with its teachers."""

    @abstractmethod
    def task(self) -> Task:
        """The double distillation."""

    @abstractmethod
    def kept(self, feed: Feed) -> list[str]:
        """For each teacher, what the student has taken over, in words."""

    @abstractmethod
    def spreads(self, batch: Batch) -> list[float]:
        """The standard deviation of each teacher's target logits: a teacher with larger ones weighs more."""

    def prepare(self, feed: Feed) -> None:
        """What has to be measured on the auxiliary images before training."""

    @property
    def held(self) -> bool:
        """Whether the images fit in memory: a part of the configuration, since streaming has another order."""
        return fits(self.aux, self.framing, self.memory)

    @property
    def config(self) -> dict[str, Any]:
        return {
            "command": "consolidate",
            "teachers": [
                {"from": s.name, **s.settings, "fingerprint": s.fingerprint} for s in self.teachers.specialists
            ],
            "aux": {"name": self.aux.name, "images": len(self.aux), "held": self.held},
            "student": self.student.settings,
            **self.settings,
            "schedule": self.schedule.model_dump(),
            "seed": self.seed,
            "versions": versions(),
        }

    def run(self, out: str | Path | None, resume: bool, checkpoint_every: float) -> AnyModel:
        with Run(out, self.config, resume, checkpoint_every) as run:
            if run.finished:
                return run.result(self.student)
            feed = open_feed(self.aux, self.framing, self.memory)
            self.teachers.to(pick_device()).fold()
            self.prepare(feed)
            at = fit(self.task(), feed, self.schedule, run, self.seed, "consolidating")
            kept = zip(self.teachers.specialists, self.kept(feed), strict=True)
            self.student.provenance = {
                "made by": self.made_by,
                "teachers": [f"{s.name}: {counted(s.names)}; {words}" for s, words in kept],
                "auxiliary images": f"{self.aux.name} ({feed.count}, {len(feed.skipped)} skipped)",
                "training": f"{self.schedule.epochs} epochs, {at.images} images seen, seed {self.seed}",
            }
            return run.finish(self.student)

    def first_batch(self) -> tuple[Batch, int, int]:
        """Some auxiliary images; how many were tried, and how many of them cannot be decoded, if not too many."""
        skipped = Skipped(self.aux.name)
        framed: list[tuple[Record, Tensor]] = []
        tried = min(ENOUGH, len(self.aux))
        for record, image in islice(decoded(self.aux.records(), self.framing), tried):
            if image is None:
                skipped.add(record.name)
            elif len(framed) < self.schedule.batch_size:
                framed.append((record, image))
        skipped.check(len(skipped), tried)
        return self.framing.batch(framed), tried, len(skipped)

    def estimate(self) -> Estimate:
        """Time two steps on real images. The student is never kept, and its weights are not stepped."""
        started = time.monotonic()
        batch, tried, broken = self.first_batch()
        decoding = tried / (time.monotonic() - started)
        device = pick_device()
        self.teachers.to(device).fold()
        self.student.to(device)
        task = self.task()
        task.module.train()
        batch = batch.to(device)
        training = 0.0
        for _ in range(2):  # the first one warms up
            started = time.monotonic()
            loss = task.losses(batch)["loss"]
            loss.backward()  # type: ignore[no-untyped-call]
            loss.item()  # waits for the device
            training = len(batch) / (time.monotonic() - started)
        return Estimate(tried, broken, training if self.held else min(training, decoding), self.spreads(batch))


def taught(
    old: AnyModel,
    stand_in: AnyModel,
    train_new: Callable[..., AnyModel],
    plan_for: Callable[[list[AnyModel]], Plan[AnyModel]],
    data: str,
    out: str | Path | None,
    resume: bool,
    checkpoint_every: float,
) -> AnyModel:
    """An old model and the one that `train_new` makes, merged. `stand_in` is like that one, but untrained: what is
    wrong with the merger should show before days of training."""
    if out is not None:
        require_free(Path(out), resume)
    plan = plan_for([old, stand_in])
    plan.teachers.each(plan.first_batch()[0].images_N3HW)
    new = train_new(
        Path(out) / "specialist" if out is not None else None,
        seed=plan.seed,
        memory=plan.memory,
        resume=resume,
        checkpoint_every=checkpoint_every,
    )
    merging = plan_for([old, new])
    merging.made_by = f"dmc learn, new classes from {data}"
    return merging.run(out, resume, checkpoint_every)
