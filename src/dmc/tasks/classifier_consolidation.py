"""Merge classifiers: connect the teachers, the auxiliary images and the training loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from dmc.beginning import as_first
from dmc.config import AUTO, KD_TEMPERATURE, ClassifierConsolidateConfig
from dmc.consolidation import Consolidation, Joining
from dmc.data.auxiliary import Images
from dmc.data.batch import Batch
from dmc.data.decode import CenterCrop
from dmc.data.loader import ImageLoader
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
from dmc.distill.classifier_objective import Distillation
from dmc.distill.pool import Pool, verdict
from dmc.distill.targets import build_targets
from dmc.distill.teachers import Teachers
from dmc.errors import DmcError
from dmc.models.architectures import default_preprocessing, known_architecture
from dmc.models.specialist import Specialist
from dmc.progress import progress
from dmc.schedule import CONSOLIDATION, Schedule
from dmc.seeds import seed_for
from dmc.training.findings import Findings, Measure
from dmc.training.objective import Objective

SAMPLE = 2048  # auxiliary images behind the agreement report and behind `scale: pool-std`


class ClassifierConsolidation(Consolidation[Specialist]):
    """A consolidation of classifiers."""

    teachers: Teachers
    config: ClassifierConsolidateConfig
    looked_at = SAMPLE  # enough to tell which of a hundred classes the images never suggest

    def __init__(
        self,
        teachers: Sequence[Specialist],
        aux: Images,
        config: ClassifierConsolidateConfig = ClassifierConsolidateConfig(),  # noqa: B008 (frozen)
        schedule: Schedule = CONSOLIDATION,
        joining: Joining | None = None,
    ) -> None:
        self.teachers = Teachers(teachers, config.centring)
        self.competing = competing = teachers[0].output == "softmax" and self.teachers.centring == "per-teacher"
        chosen = {
            "weights": None if config.weights == AUTO else config.weights,
            "centring": self.teachers.centring,
            "scale": config.scale or ("auto" if competing else "none"),
            "balance": competing if config.balance is None else config.balance,
            "temperature": (config.temperature or KD_TEMPERATURE) if config.loss == "kd" else None,
        }
        super().__init__(aux, config.changed(chosen), schedule, joining)
        self.student = self._new_student()
        if not competing and (self.config.balance or self.config.scale in ("balanced", "auto")):
            raise DmcError("balance is for softmax outputs with per-teacher centring: other outputs do not compete")
        if self.config.balance:
            self._output_layer()
        if config.loss == "kd" and self.student.output == "sigmoid":
            raise DmcError("loss 'kd' compares softmax distributions; for sigmoid outputs use 'l2' or 'l1'")

    def _new_student(self) -> Specialist:
        """Make the student; from a teacher's weights only on request: it favours its classes (end of section 3.1)."""
        first, asked = self.teachers.specialists[0], self.config
        arch = known_architecture(asked.arch or first.require_arch())
        alike = [s.preprocessing for s in self.teachers.specialists if s.arch == arch]
        # A student that sees grey could not learn colours.
        preprocessing = max(alike, key=lambda seen: seen.channels, default=None) or default_preprocessing(arch)
        preprocessing = replace(preprocessing, size=asked.size or preprocessing.size)
        names = self.teachers.union.names
        if asked.from_teacher:
            return as_first(first, names, arch, preprocessing, asked.seed)
        return Specialist.untrained(arch, names, preprocessing, first.output, asked.seed, asked.weights)

    @property
    def transform(self) -> CenterCrop:
        """How images are shaped: to the largest size that any of the networks wants."""
        return replace(self.student.transform, size=max(self.student.transform.size, self.teachers.transform.size))

    @property
    def different_views(self) -> int | None:
        return None if self.schedule.pad != 0 else 2 if self.schedule.flip else 1

    def prepare(self, loader: ImageLoader, unseen: ImageLoader) -> None:
        if self.config.scale not in (None, "none"):
            # New images would speak for their own teacher, and selected ones are clearer than others.
            images = unseen if self.joining or self.select else loader
            self.teachers.measure_scales(self.config.scale, sample(images))

    def adjust(self, unseen: ImageLoader) -> None:
        """Scale the outputs so that each block of classes wins its share and the student is as sure as its teachers."""
        if not self.config.balance:
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
            raise DmcError(f"{self.student.arch} has no last layer to balance: go without (`balance=False`)")
        return layer

    def seen_in(self, batch: Batch) -> Tensor:
        return self.teachers.logits(batch.images_N3HW)

    def objective(self) -> Objective:
        return Distillation(self.student, self.teachers, self.config.loss, self.config.temperature)

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
        measures = [
            Measure(label="student answers as this teacher, among its classes", of_each=tuple(found.within)),
            Measure(label="its classes win, with the student", of_each=tuple(found.student_wins)),
            Measure(label="its classes win, teachers side by side", of_each=tuple(found.teachers_win)),
            Measure(label="its share of all classes", of_each=tuple(found.fair)),
        ]
        return Findings(found.images, of_each, overall, self._warnings(found), measures, found.answers)

    def _warnings(self, found: Agreement) -> list[str]:
        names = [teacher.name for teacher in self.teachers.specialists]
        balanced_instead = self.competing and not self.config.balance
        said = [
            f"the classes of {names[i]} win only {found.student_wins[i]:.0%} of the images "
            f"({found.teachers_win[i]:.0%} with the teachers side by side): they will rarely be answered; "
            + ("balance would give them their share" if balanced_instead else "train longer, or on more images")
            for i in drowned(found.student_wins, found.fair)
        ]
        if found.same < HALF:
            said.append(
                f"the student answers as its teachers do on only {found.same:.0%} of these images: "
                "train longer, or on more images, or on images more like those of the teachers"
            )
        return said

    def measure_teachers(self, batches: Iterable[Batch]) -> dict[str, Any]:
        normalised = [self.teachers.normalised(batch.images_N3HW) for batch in batches]
        parts = [torch.cat(part).cpu() for part in zip(*normalised, strict=True)]
        target_NT = build_targets(parts, self.teachers.union, "none")
        won = wins(target_NT.argmax(dim=1), self.teachers.union)
        fair = [len(columns) / len(target_NT[0]) for columns in self.teachers.union.columns]
        return {
            "images": len(target_NT),
            "logit_spreads": [round(float(part.std()), 2) for part in parts],
            "wins": [round(share, 3) for share in won],
            "fair": [round(share, 3) for share in fair],
            "drowned": [self.teachers.specialists[i].name for i in drowned(won, fair)],
            "scale": self.config.scale,
            "competing": self.competing,
            "pool": self._pool(parts),
        }

    def _pool(self, answers: Sequence[Tensor]) -> dict[str, Any]:
        """Tell how well the images will teach, from what each teacher answers about some of them."""
        softmax = self.student.output == "softmax"
        probabilities = [part.softmax(dim=1) if softmax else part.sigmoid() for part in answers]
        found = Pool.of(probabilities, self.teachers.union, competing=softmax)
        return {
            "score": round(found.score, 3),
            "varieties": [round(one, 3) for one in found.varieties],
            "verdict": verdict(found.score),
            "suggested": found.suggested,
            "rare": found.rare,
        }


def sample(loader: ImageLoader) -> Iterable[Tensor]:
    """Give some auxiliary images from all over the set, without augmentation, in batches on the device."""
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
    teachers.require_finite()
    # On the host, since what is made of them takes double precision, which Apple's GPUs do not have.
    student_NT, *others = (torch.cat(parts).cpu() for parts in zip(*rows, strict=True))
    student.require_finite(student_NT)
    return Answers(student_NT, build_targets(others, teachers.union, teachers.centring, teachers.scales), others)
