"""Many detectors in, one out (section 3.2)."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from dmc.consolidation import Consolidation, Findings, Images
from dmc.data.batch import Batch
from dmc.data.detection_batch import DetectionBatch, ShorterSide
from dmc.data.loader import MEMORY, ImageLoader
from dmc.distill.balance import HALF
from dmc.distill.detector_agreement import SAMPLE, SURE, Recovered
from dmc.distill.detector_teachers import DetectorTeachers, gathered, require_same_anchors
from dmc.distill.losses import LossName, loss_named
from dmc.distill.targets import Centring
from dmc.errors import DmcError, require_one_of
from dmc.models.detector import Detector
from dmc.training.loop import Objective
from dmc.training.run_folder import CHECKPOINT_EVERY
from dmc.training.schedule import DETECTION, Schedule

ANCHORS = 64  # selected in each image


class DetectionDistillation(Objective):
    """Eq. 8: at selected anchors, the student's logits and box against the teachers'."""

    def __init__(
        self, student: Detector, teachers: DetectorTeachers, loss: LossName, anchors: int, box_weight: float
    ) -> None:
        self.student, self.teachers, self.module = student, teachers, student.module
        self.distance, self.anchors, self.box_weight = loss_named(loss, 1.0), anchors, box_weight

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        target = self.teachers.select(batch.images_N3HW, self.anchors)
        answers = self.student.answers(batch.images_N3HW)
        logits_MT = gathered(answers.logits_NAK, target.places_NS).flatten(0, 1)
        boxes_MB = gathered(answers.boxes_NAB, target.places_NS).flatten(0, 1)
        classes = self.distance(logits_MT, target.logits_NST.flatten(0, 1))
        wanted_MB = target.boxes_NSB.flatten(0, 1)
        boxes = F.smooth_l1_loss(boxes_MB, wanted_MB, reduction="none").sum(dim=1).mean()  # Eq. 6
        return {"loss": classes + self.box_weight * boxes, "classes": classes, "boxes": boxes}


class DetectorSettings(TypedDict, total=False):
    """The keyword arguments for detectors; what each means stands in `DetectorConsolidation`."""

    arch: str | None
    size: int | None
    loss: LossName
    centring: Centring | None
    weights: str | None
    anchors: int
    box_weight: float
    schedule: Schedule
    seed: int
    memory: int
    held_out: int


class DetectorConsolidation(Consolidation[Detector]):
    """Merge detectors."""

    teachers: DetectorTeachers

    def __init__(
        self,
        teachers: Sequence[Detector],
        aux: Images,
        *,
        arch: str | None = None,  # the student's; None: the first teacher's
        size: int | None = None,  # of the shorter side, for all; None: the largest teacher's
        loss: LossName = "l2",
        centring: Centring | None = None,  # None: see `DEFAULT_CENTRING`
        weights: str | None = "imagenet",  # the student's backbone: imagenet, a file, or random (None)
        anchors: int = ANCHORS,
        box_weight: float = 1.0,  # lambda, for boxes coded as torchvision does: RetinaNet's with weights (1, 1, 1, 1)
        schedule: Schedule = DETECTION,
        seed: int = 0,
        memory: int = MEMORY,
        held_out: int = SAMPLE,
    ) -> None:
        if len(teachers) < 2:
            raise DmcError("consolidation needs at least two teachers")
        self.teachers = DetectorTeachers(teachers, centring)
        super().__init__(aux, schedule, seed, memory, held_out)
        require_one_of("loss", loss, get_args(LossName))
        if loss == "kd":
            raise DmcError("loss 'kd' compares softmax distributions; detectors have log-odds: use 'l2' or 'l1'")
        if anchors < 1:
            raise DmcError(f"anchors {anchors} must be at least 1")
        if not 0 <= box_weight < math.inf:
            raise DmcError(f"box weight {box_weight} must be 0 or a positive number")
        self.loss, self.anchors, self.box_weight, self.weights = loss, anchors, box_weight, weights
        first = teachers[0]
        arch = arch or first.require_arch()
        alike = next((d.preprocessing for d in teachers if d.arch == arch), Detector.architectures.preprocessing(arch))
        preprocessing = replace(alike, size=size or self.teachers.transform.size)
        self.student = Detector.untrained(arch, self.teachers.union.names, preprocessing, seed, weights)
        answers = [(d, d.answers(self.transform.blank())) for d in (*teachers, self.student)]
        require_same_anchors(answers)
        for teacher in teachers:
            if teacher.preprocessing.size != self.transform.size:
                print(
                    f"{teacher.name} was made for images of {teacher.preprocessing.size} pixels and sees "
                    f"{self.transform.size}: all look at the same pixels, anchor by anchor (--size)",
                    file=sys.stderr,
                )

    @property
    def transform(self) -> ShorterSide:
        return self.student.transform

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "loss": self.loss,
            "centring": self.teachers.centring,
            "weights": self.weights,
            "anchors": self.anchors,
            "box_weight": self.box_weight,
        }

    def task(self) -> Objective:
        return DetectionDistillation(self.student, self.teachers, self.loss, self.anchors, self.box_weight)

    def compare(self, unseen: ImageLoader) -> Findings:
        found = Recovered.of(self.student, self.teachers, unseen)
        of_each = [
            f"{objects / found.images:.1f} finds in an image; "
            + (f"against these the student has {precision:.1%} average precision" if objects else "nothing to compare")
            for precision, objects in zip(found.precision, found.objects, strict=True)
        ]
        overall = (
            f"{found.false_alarms / found.images:.2f} false alarms in an image, "
            f"where the teachers find {sum(found.objects) / found.images:.2f} objects"
        )
        return Findings(found.images, of_each, overall, self._warnings(found))

    def _warnings(self, found: Recovered) -> list[str]:
        advice = "train longer, or on more images, or on images in which the teachers find more"
        pairs = zip(self.teachers.specialists, found.precision, strict=True)
        weak = [
            f"against what {teacher.name} finds, the student has {precision:.0%} average precision only: {advice}"
            for teacher, precision in pairs
            if precision < HALF
        ]
        if found.false_alarms > sum(found.objects):
            weak.append(f"the student has more false alarms than the teachers find objects: {advice}")
        return weak + [
            f"{teacher.name} is sure of nothing in {found.images} auxiliary images: they teach little about its classes"
            for teacher, objects in zip(self.teachers.specialists, found.objects, strict=True)
            if not objects
        ]

    def teachers_alone(self, batches: Iterable[Batch]) -> dict[str, Any]:
        images, objects = 0, [0] * len(self.teachers.specialists)
        logits = []
        for batch in batches:
            assert isinstance(batch, DetectionBatch)
            images += len(batch)
            logits.append(self.teachers.select(batch.images_N3HW, self.anchors).logits_NST.flatten(0, 1))
            for i, teacher in enumerate(self.teachers.answering):
                finds = teacher.detections(batch.images_N3HW, batch.sizes)
                objects[i] += sum(int((found.scores_M > SURE).sum()) for found in finds)
        target_MT, columns = torch.cat(logits), self.teachers.union.columns
        spreads = [round(float(target_MT[:, list(own)].std()), 2) for own in columns]
        return {"images": images, "logit_spreads": spreads, "objects": objects}


def consolidate(
    teachers: Sequence[Detector],
    aux: Images,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    checkpoint_every: float = CHECKPOINT_EVERY,
    **settings: Unpack[DetectorSettings],
) -> Detector:
    """One detector that knows every teacher's classes, from unlabeled images alone."""
    return DetectorConsolidation(teachers, aux, **settings).run(out, resume, checkpoint_every)
