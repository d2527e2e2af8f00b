"""Many detectors in, one out (section 3.2)."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypedDict, Unpack, get_args

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from dmc.data.batch import Batch
from dmc.data.feed import MEMORY, Feed
from dmc.data.opening import open_images
from dmc.data.sources import Source
from dmc.detect.annotations import open_scenes
from dmc.detect.detector import Detector, detector_preprocessing
from dmc.detect.precision import OVERLAP, overlaps
from dmc.detect.scenes import SceneBatch, Scenes
from dmc.detect.teachers import DetectorTeachers, gathered, require_same_anchors
from dmc.detect.training import train
from dmc.distill.losses import LossName, loss_named
from dmc.distill.targets import Centring
from dmc.errors import DmcError, require_one_of
from dmc.plan import Images, Plan, taught
from dmc.seeds import seed_for
from dmc.training.loop import Task
from dmc.training.run import CHECKPOINT_EVERY
from dmc.training.schedule import DETECTION, Schedule

ANCHORS = 64  # selected in each image
SAMPLE_BATCHES = 8  # of auxiliary images behind the report of what the student kept


class DetectionDistillation(Task):
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


class DetectorConsolidation(Plan[Detector]):
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
    ) -> None:
        if len(teachers) < 2:
            raise DmcError("consolidation needs at least two teachers")
        self.teachers = DetectorTeachers(teachers, centring)
        super().__init__(aux, schedule, seed, memory)
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
        alike = next((d.preprocessing for d in teachers if d.arch == arch), detector_preprocessing(arch))
        preprocessing = replace(alike, size=size or self.teachers.framing.size)
        self.student = Detector.untrained(arch, self.teachers.union.names, preprocessing, seed, weights)
        answers = [(d, d.answers(self.framing.blank())) for d in (*teachers, self.student)]
        require_same_anchors(answers)
        for teacher in teachers:
            if teacher.preprocessing.size != self.framing.size:
                print(
                    f"{teacher.name} was made for images of {teacher.preprocessing.size} pixels and sees "
                    f"{self.framing.size}: all look at the same pixels, anchor by anchor (--size)",
                    file=sys.stderr,
                )

    @property
    def framing(self) -> Scenes:
        return self.student.framing

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "loss": self.loss,
            "centring": self.teachers.centring,
            "weights": self.weights,
            "anchors": self.anchors,
            "box_weight": self.box_weight,
        }

    def task(self) -> Task:
        return DetectionDistillation(self.student, self.teachers, self.loss, self.anchors, self.box_weight)

    def kept(self, feed: Feed) -> list[str]:
        """How much of what a teacher finds the student finds, too."""
        words = []
        for found, total in found_again(self.student, self.teachers, feed):
            words.append(
                f"the student finds {found} of its {total} objects in a sample of the images"
                if total
                else "finds nothing in a sample of the images"
            )
        return words

    def spreads(self, batch: Batch) -> list[float]:
        target = self.teachers.select(batch.images_N3HW, self.anchors)
        return [float(target.logits_NST[..., list(columns)].std()) for columns in self.teachers.union.columns]


def found_again(student: Detector, teachers: DetectorTeachers, feed: Feed, sure: float = 0.3) -> list[tuple[int, int]]:
    """For each teacher: of the objects that it is sure of, how many the student sees there as that class, and all."""
    again, seen = [0] * len(teachers.specialists), [0] * len(teachers.specialists)
    for batch in islice(feed.batches(seed_for(0, "sample"), 12), min(SAMPLE_BATCHES, feed.steps(12))):
        assert isinstance(batch, SceneBatch)
        images_N3HW = batch.images_N3HW.to(student.device)
        ours = student.detections(images_N3HW, batch.sizes)
        for i, teacher in enumerate(teachers.answering):
            label_of = np.array(teachers.union.columns[i])
            for mine, theirs in zip(ours, teacher.detections(images_N3HW, batch.sizes), strict=True):
                sure_M = theirs.scores_M > sure
                there = overlaps(theirs.boxes_M4[sure_M], mine.boxes_M4) >= OVERLAP
                same = label_of[theirs.labels_M[sure_M]][:, None] == mine.labels_M
                again[i] += int((there & same).any(axis=1).sum())
                seen[i] += int(sure_M.sum())
    return list(zip(again, seen, strict=True))


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


def learn(
    old: Detector,
    data: str | Path | Source,
    aux: Images,
    out: str | Path | None = None,
    *,
    keep: Iterable[str] | None = None,
    specialist_schedule: Schedule = DETECTION,
    resume: bool = False,
    checkpoint_every: float = CHECKPOINT_EVERY,
    **settings: Unpack[DetectorSettings],
) -> Detector:
    """Teach a detector the classes of labeled scenes without its old data: train another one, consolidate."""
    source, images = open_scenes(data), open_images(aux)
    if keep is not None:
        source = source.keep(keep)
    arch, weights = settings.get("arch") or old.require_arch(), settings.get("weights", "imagenet")
    alike = old.preprocessing if arch == old.arch else detector_preprocessing(arch)
    alike = replace(alike, size=settings.get("size") or old.preprocessing.size)
    new = partial(train, source, arch=arch, preprocessing=alike, weights=weights, schedule=specialist_schedule)
    return taught(
        old,
        Detector.untrained(arch, source.classes, alike, weights=weights),
        new,
        lambda teachers: DetectorConsolidation(teachers, images, **settings),
        source.name,
        out,
        resume,
        checkpoint_every,
    )
