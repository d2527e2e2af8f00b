"""Many classifiers in, one out: wires teachers, auxiliary images and the training loop."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar, Unpack, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dmc.data.batch import Batch
from dmc.data.decode import Framing, Geometry, Skipped, decoded
from dmc.data.feed import ENOUGH, MEMORY, Feed, fits, open_feed
from dmc.data.opening import open_images, open_labeled
from dmc.data.sources import Record, Source
from dmc.device import pick_device
from dmc.distill.losses import LossName, loss_named
from dmc.distill.targets import Centring
from dmc.distill.teachers import Scale, TeacherGroup, Teachers
from dmc.errors import DmcError, require_one_of
from dmc.loading import load
from dmc.models.build import default_preprocessing, known_architecture
from dmc.progress import progress
from dmc.seeds import seed_for
from dmc.specialist import Model, Specialist
from dmc.training.loop import Task, fit
from dmc.training.run import CHECKPOINT_EVERY, Run, require_free, versions
from dmc.training.schedule import CONSOLIDATION, SPECIALIST, Schedule
from dmc.training.supervised import train

Teacher = Specialist | str | Path
Images = str | Path | Source | npt.NDArray[np.uint8]
Student = TypeVar("Student", bound=Model)
SAMPLE = 2048  # auxiliary images behind the agreement report and behind `scale: pool-std`


class Distillation(Task):
    """The double distillation task: the student's logits against the teachers' (Eq. 2 and 3)."""

    def __init__(self, student: Specialist, teachers: Teachers, loss: LossName, temperature: float) -> None:
        self.student, self.teachers, self.module = student, teachers, student.module
        self.distance = loss_named(loss, temperature)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        target_NT = self.teachers.logits(batch.images_N3HW)
        student_NT = self.student.logits(batch.images_N3HW)
        return {"loss": self.distance(student_NT, target_NT)}


class Settings(TypedDict, total=False):
    """The keyword arguments of `consolidate` and `learn`; what each means stands in `Consolidation`."""

    arch: str | None
    size: int | None
    loss: LossName
    temperature: float
    centring: Centring | None
    scale: Scale
    weights: str | None
    schedule: Schedule
    seed: int
    memory: int


class Plan(ABC, Generic[Student]):
    """A consolidation with everything resolved and verified, and nothing trained yet."""

    teachers: TeacherGroup[Student]
    student: Student
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

    def run(self, out: str | Path | None, resume: bool, checkpoint_every: float) -> Student:
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
                "teachers": [f"{s.name}: {len(s.names)} classes; {words}" for s, words in kept],
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


class Consolidation(Plan[Specialist]):
    """Of classifiers."""

    teachers: Teachers

    def __init__(
        self,
        teachers: Sequence[Teacher],
        aux: Images,
        *,
        arch: str | None = None,  # the student's; None: the first teacher's
        size: int | None = None,  # the student's input; None: what its architecture or that teacher takes
        loss: LossName = "l2",
        temperature: float = 2.0,  # of `kd`
        centring: Centring | None = None,  # None: per-teacher for softmax outputs, none for sigmoid
        scale: Scale = "none",
        weights: str | None = None,  # where the student begins: at random, imagenet, or a file
        schedule: Schedule = CONSOLIDATION,
        seed: int = 0,
        memory: int = MEMORY,  # bytes of pixels to hold; a larger set of images is streamed
    ) -> None:
        self.teachers = Teachers([load(teacher) for teacher in teachers], centring)
        super().__init__(aux, schedule, seed, memory)
        self.student = self._new_student(arch, size, seed, weights)
        self.loss, self.temperature, self.scale, self.weights = loss, temperature, scale, weights
        require_one_of("loss", loss, get_args(LossName))
        require_one_of("scale", scale, get_args(Scale))
        if loss == "kd" and self.student.output == "sigmoid":
            raise DmcError("loss 'kd' compares softmax distributions; for sigmoid outputs use 'l2' or 'l1'")
        if not 0 < temperature < math.inf:
            raise DmcError(f"temperature {temperature} must be a positive number")

    def _new_student(self, arch: str | None, size: int | None, seed: int, weights: str | None) -> Specialist:
        """Never a teacher's weights: that would favour its classes (end of section 3.1)."""
        first = self.teachers.specialists[0]
        arch = known_architecture(arch or first.require_arch())
        alike = next((s.preprocessing for s in self.teachers.specialists if s.arch == arch), None)
        preprocessing = alike or default_preprocessing(arch)
        preprocessing = replace(preprocessing, size=size or preprocessing.size)
        return Specialist.untrained(arch, self.teachers.union.names, preprocessing, first.output, seed, weights)

    @property
    def framing(self) -> Geometry:
        """The largest size that any of the networks wants."""
        return replace(self.student.geometry, size=max(self.student.geometry.size, self.teachers.geometry.size))

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "loss": self.loss,
            "temperature": self.temperature if self.loss == "kd" else None,
            "centring": self.teachers.centring,
            "scale": self.scale,
            "weights": self.weights,
        }

    def prepare(self, feed: Feed) -> None:
        if self.scale == "pool-std":
            self.teachers.measure_scales(sample(feed))

    def task(self) -> Task:
        return Distillation(self.student, self.teachers, self.loss, self.temperature)

    def kept(self, feed: Feed) -> list[str]:
        shares = agreement(self.student, self.teachers, feed)
        return [f"the student agrees on {share:.1%} of auxiliary images" for share in shares]

    def spreads(self, batch: Batch) -> list[float]:
        return self.teachers.spreads([batch.images_N3HW])


@dataclass(frozen=True)
class Estimate:
    tried: int
    undecodable: int
    images_per_second: float
    spreads: list[float]  # of each teacher's normalised logits


def consolidate(
    teachers: Sequence[Teacher],
    aux: Images,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    checkpoint_every: float = CHECKPOINT_EVERY,
    **settings: Unpack[Settings],
) -> Specialist:
    """One model that knows every teacher's classes, from unlabeled images alone.

    `teachers` are specialists or whatever `dmc.load` takes; `aux` is a folder, parquet, tar shards,
    `hf-hub:OWNER/NAME` or a uint8 array. With `out`, the run and the result are kept in that folder.
    """
    return Consolidation(teachers, aux, **settings).run(out, resume, checkpoint_every)


def learn(
    model: Teacher,
    data: str | Path | Source,
    aux: Images,
    out: str | Path | None = None,
    *,
    keep: Iterable[str] | None = None,
    specialist_schedule: Schedule = SPECIALIST,
    resume: bool = False,
    checkpoint_every: float = CHECKPOINT_EVERY,
    **settings: Unpack[Settings],
) -> Specialist:
    """Teach a model the classes of labeled `data` without its old data: train a specialist, consolidate."""
    old = load(model)
    source, images = open_labeled(data), open_images(aux)
    if keep is not None:
        source = source.keep(keep)
    arch = settings.get("arch") or old.require_arch()
    alike = old.preprocessing if known_architecture(arch) == old.arch else None
    new = partial(
        train,
        source,
        arch=arch,
        preprocessing=alike,
        size=settings.get("size"),
        output=old.output,
        weights=settings.get("weights"),
        schedule=specialist_schedule,
    )
    return taught(
        old,
        Specialist.untrained(arch, source.classes, alike, old.output),
        new,
        lambda teachers: Consolidation(teachers, images, **settings),
        source.name,
        out,
        resume,
        checkpoint_every,
    )


def taught(
    old: Student,
    stand_in: Student,
    train_new: Callable[..., Student],
    plan_for: Callable[[list[Student]], Plan[Student]],
    data: str,
    out: str | Path | None,
    resume: bool,
    checkpoint_every: float,
) -> Student:
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


def sample(feed: Feed) -> Iterable[Tensor]:
    """Some auxiliary images from all over the set, unaugmented, in batches on the device."""
    wanted = min(SAMPLE, feed.count)
    with progress(wanted, "asking the teachers") as bar:
        for batch in islice(feed.batches(seed_for(0, "sample"), 128), -(-wanted // 128)):
            yield batch.images_N3HW.to(pick_device())
            bar.update(len(batch))


def agreement(student: Specialist, teachers: Teachers, feed: Feed) -> list[float]:
    """For each teacher: how often the student, asked about its classes only, answers the same."""
    same = [0] * len(teachers.specialists)
    seen = 0
    with torch.no_grad():
        for images_N3HW in sample(feed):
            seen += len(images_N3HW)
            answer_NT = student.logits(images_N3HW)
            for i, logits_NK in enumerate(teachers.each(images_N3HW)):
                columns = list(teachers.union.columns[i])
                same[i] += int((answer_NT[:, columns].argmax(1) == logits_NK.argmax(1)).sum())
    return [count / seen for count in same]
