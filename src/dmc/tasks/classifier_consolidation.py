"""Many classifiers in, one out: wires teachers, auxiliary images and the training loop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypedDict, Unpack, get_args

import torch
from torch import Tensor, nn

from dmc.consolidation import HELD_OUT, Consolidation, Findings, Images
from dmc.data.batch import Batch
from dmc.data.decode import CenterCrop
from dmc.data.loader import MEMORY, ImageLoader
from dmc.device import pick_device
from dmc.distill.agreement import Agreement, Answers, wins
from dmc.distill.balance import (
    HALF,
    balancing_factors,
    drowned,
    fair_shares,
    output_layer,
    peaks,
    scale_rows,
    sharpness,
)
from dmc.distill.losses import LossName, loss_named
from dmc.distill.targets import Centring, build_targets
from dmc.distill.teachers import Scale, Teachers
from dmc.errors import DmcError, require_one_of
from dmc.models.architectures import default_preprocessing, known_architecture
from dmc.models.load import load
from dmc.models.model import require
from dmc.models.specialist import Specialist
from dmc.progress import progress
from dmc.seeds import seed_for
from dmc.training.loop import Objective
from dmc.training.run_folder import CHECKPOINT_EVERY
from dmc.training.schedule import CONSOLIDATION, Schedule

Teacher = Specialist | str | Path
SAMPLE = 2048  # auxiliary images behind the agreement report and behind `scale: pool-std`


class Distillation(Objective):
    """The double distillation task: the student's logits against the teachers' (Eq. 2 and 3)."""

    def __init__(self, student: Specialist, teachers: Teachers, loss: LossName, temperature: float) -> None:
        self.student, self.teachers, self.module = student, teachers, student.module
        self.distance = loss_named(loss, temperature)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        target_NT = self.teachers.logits(batch.images_N3HW)
        student_NT = self.student.logits(batch.images_N3HW)
        return {"loss": self.distance(student_NT, target_NT)}


class Form(TypedDict, total=False):
    """The form of the method: how teachers and the student's blocks of outputs are set against each other."""

    scale: Scale | None
    balance: bool | None
    held_out: int


class Settings(Form, total=False):
    """The keyword arguments of `consolidate` and `learn`; what each means stands in `Consolidation`."""

    arch: str | None
    size: int | None
    loss: LossName
    temperature: float
    centring: Centring | None
    weights: str | None
    schedule: Schedule
    seed: int
    memory: int


# The paper's literal form (section 3.1): Eq. 4 and no more, and every auxiliary image is trained on.
PAPER_FORM: Form = {"scale": "none", "balance": False, "held_out": 0}


class ClassifierConsolidation(Consolidation[Specialist]):
    """Merge classifiers."""

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
        scale: Scale | None = None,  # of the teachers' logits; None: auto for softmax outputs, none for sigmoid
        balance: bool | None = None,  # the student's blocks of outputs; None: for softmax outputs
        weights: str | None = None,  # where the student begins: at random, imagenet, or a file
        schedule: Schedule = CONSOLIDATION,
        seed: int = 0,
        memory: int = MEMORY,  # bytes of pixels to hold; a larger set of images is streamed
        held_out: int = HELD_OUT,  # auxiliary images that are not trained on
    ) -> None:
        self.teachers = Teachers([require(load(teacher), Specialist) for teacher in teachers], centring)
        super().__init__(aux, schedule, seed, memory, held_out)
        self.student = self._new_student(arch, size, seed, weights)
        competing = self.student.output == "softmax" and self.teachers.centring == "per-teacher"
        self.scale: Scale = scale or ("auto" if competing else "none")
        self.balance = competing if balance is None else balance
        self.loss, self.temperature, self.weights = loss, temperature, weights
        require_one_of("loss", loss, get_args(LossName))
        require_one_of("scale", self.scale, get_args(Scale))
        if not competing and (self.balance or self.scale in ("balanced", "auto")):
            raise DmcError("balance is for softmax outputs, centred for each teacher; others do not compete")
        if self.balance:
            self._output_layer()
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
    def transform(self) -> CenterCrop:
        """The largest size that any of the networks wants."""
        return replace(self.student.transform, size=max(self.student.transform.size, self.teachers.transform.size))

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "loss": self.loss,
            "temperature": self.temperature if self.loss == "kd" else None,
            "centring": self.teachers.centring,
            "scale": self.scale,
            "balance": self.balance,
            "weights": self.weights,
        }

    def prepare(self, loader: ImageLoader) -> None:
        if self.scale != "none":
            self.teachers.measure_scales(self.scale, sample(loader))

    def settle(self, unseen: ImageLoader) -> None:
        """Balance the student's blocks of outputs, and give its probabilities their meaning."""
        if not self.balance:
            return
        union = self.teachers.union
        answers = answered(self.student, self.teachers, unseen)
        factors = balancing_factors(peaks(answers.student_NT, union.blocks), fair_shares(union.blocks))
        factors_T = answers.student_NT.new_ones(len(union.names))
        for block, factor in zip(union.blocks, factors, strict=True):
            factors_T[list(block)] = factor
        factors_T *= sharpness(answers.student_NT * factors_T, answers.teachers, union)
        scale_rows(self._output_layer(), factors_T)

    def _output_layer(self) -> nn.Module:
        layer = output_layer(self.student.module, self.student.classes.width, self.student.blank())
        if layer is None:
            raise DmcError(f"{self.student.arch} has no last layer whose outputs could be balanced: use balance=False")
        return layer

    def task(self) -> Objective:
        return Distillation(self.student, self.teachers, self.loss, self.temperature)

    def compare(self, unseen: ImageLoader) -> Findings:
        found = Agreement.of(answered(self.student, self.teachers, unseen), self.teachers.union)
        of_each = [
            f"they win {mine:.0%} of the images (with the teachers side by side, as they were taught, {theirs:.0%}; by "
            f"number {fair:.0%}); asked about them alone, student and teacher agree on {within:.1%}"
            for mine, theirs, fair, within in zip(
                found.student_wins, found.teachers_win, found.fair, found.within, strict=True
            )
        ]
        overall = f"the student answers as the teachers side by side on {found.same:.1%}"
        return Findings(found.images, of_each, overall, self._warnings(found))

    def _warnings(self, found: Agreement) -> list[str]:
        names = [teacher.name for teacher in self.teachers.specialists]
        said = [
            f"the classes of {names[i]} win only {found.student_wins[i]:.0%} of the images "
            f"({found.teachers_win[i]:.0%} with the teachers side by side): they will rarely be answered; "
            + ("train longer, or on more images" if self.balance else "balance would give them their share")
            for i in drowned(found.student_wins, found.fair)
        ]
        if found.same < HALF:
            said.append(
                f"the student answers as its teachers do on only {found.same:.0%} of these images: "
                "train longer, or on more images, or on images more like those of the teachers"
            )
        return said

    def teachers_alone(self, batches: Iterable[Batch]) -> dict[str, Any]:
        normalised = [self.teachers.normalised(batch.images_N3HW) for batch in batches]
        parts = [torch.cat(part) for part in zip(*normalised, strict=True)]
        target_NT = build_targets(parts, self.teachers.union, "none")
        won = wins(target_NT.argmax(dim=1), self.teachers.union)
        fair = [len(columns) / len(target_NT[0]) for columns in self.teachers.union.columns]
        return {
            "images": len(target_NT),
            "logit_spreads": [round(float(part.std()), 2) for part in parts],
            "wins": [round(share, 3) for share in won],
            "fair": [round(share, 3) for share in fair],
            "drowned": [self.teachers.specialists[i].name for i in drowned(won, fair)],
            "scale": self.scale,
        }


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
    return ClassifierConsolidation(teachers, aux, **settings).run(out, resume, checkpoint_every)


def sample(loader: ImageLoader) -> Iterable[Tensor]:
    """Some auxiliary images from all over the set, unaugmented, in batches on the device."""
    wanted = min(SAMPLE, loader.count)
    with progress(wanted, "asking the teachers") as bar:
        for batch in islice(loader.batches(seed_for(0, "sample"), 128), -(-wanted // 128)):
            yield batch.images_N3HW.to(pick_device())
            bar.update(len(batch))


def answered(student: Specialist, teachers: Teachers, loader: ImageLoader) -> Answers:
    """Ask the student and every teacher about some images."""
    rows = []
    with torch.no_grad():
        for images_N3HW in sample(loader):
            rows.append((student.logits(images_N3HW), *teachers.each(images_N3HW)))
    student_NT, *others = (torch.cat(parts) for parts in zip(*rows, strict=True))
    return Answers(student_NT, build_targets(others, teachers.union, teachers.centring, teachers.scales), others)
