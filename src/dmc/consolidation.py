"""Many classifiers in, one out: wires teachers, auxiliary images and the training loop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypedDict, Unpack, get_args

import torch
from torch import Tensor

from dmc.data.batch import Batch
from dmc.data.decode import Geometry
from dmc.data.feed import MEMORY, Feed
from dmc.data.opening import open_images, open_labeled
from dmc.data.sources import Source
from dmc.device import pick_device
from dmc.distill.losses import LossName, loss_named
from dmc.distill.targets import Centring
from dmc.distill.teachers import Scale, Teachers
from dmc.errors import DmcError, require_one_of
from dmc.loading import load
from dmc.models.build import default_preprocessing, known_architecture
from dmc.plan import Images, Plan, taught
from dmc.progress import progress
from dmc.seeds import seed_for
from dmc.specialist import Specialist
from dmc.training.loop import Task
from dmc.training.run import CHECKPOINT_EVERY
from dmc.training.schedule import CONSOLIDATION, SPECIALIST, Schedule
from dmc.training.supervised import train

Teacher = Specialist | str | Path
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
