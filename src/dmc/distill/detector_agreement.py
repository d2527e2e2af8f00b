"""How much of what its teachers find a student finds, without labels: what a user of the merged detector will see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from dmc.data.annotations import Objects
from dmc.data.batch import Batch
from dmc.data.detection_batch import DetectionBatch
from dmc.data.loader import ImageLoader
from dmc.distill.box_teachers import joined
from dmc.distill.detector_teachers import DetectorTeachers
from dmc.metrics.average_precision import OVERLAP, Detections, average_precision, overlaps
from dmc.models.detector import Detector
from dmc.seeds import seed_for

SURE = 0.3  # a detector is sure of what has a higher score: a user would see it
SAMPLE, BATCH = 96, 12  # auxiliary images to look at, and how many at a time


@dataclass(frozen=True)
class DetectorAgreement:
    """How much a student finds of what its teachers are sure of. A list has a number for each teacher."""

    images: int
    objects: list[int]  # how many the teacher is sure of
    precision: list[float]  # the student's mean average precision on them, over their classes; NaN if there are none
    false_alarms: int  # how many objects the student is sure of, and no teacher is
    answers: dict[str, tuple[int, int]]  # how many objects of each class the teachers are sure of, and the student

    @classmethod
    def of(cls, student: Detector, teachers: DetectorTeachers, loader: ImageLoader) -> DetectorAgreement:
        """Take what the teachers are sure of for the truth, and evaluate the student on it."""
        found: list[Detections] = []
        truth: list[Objects] = []  # what all are sure of: an object that several know is there once
        of_each: list[list[Objects]] = [[] for _ in teachers.union.columns]
        for batch in map(DetectionBatch.of, sample(loader)):
            images_N3HW = batch.images_N3HW.to(student.device)
            found += student.detections(images_N3HW, batch.sizes)
            theirs = teachers.finds(images_N3HW, batch.sizes)
            for size, of_image in zip(batch.sizes, zip(*theirs, strict=True), strict=True):
                truth.append(as_objects(joined(of_image, teachers.union.columns), size))
                for own, one, columns in zip(of_each, of_image, teachers.union.columns, strict=True):
                    own.append(as_objects(joined([one], [columns]), size))
        labels_M = np.concatenate([there.labels_M for there in truth])
        means = [mean_precision(found, own) for own in of_each]
        objects = [sum(len(there.labels_M) for there in own) for own in of_each]
        alarms = sum(false_alarms(mine, there) for mine, there in zip(found, truth, strict=True))
        mine_M = np.concatenate([one.labels_M[one.scores_M > SURE] for one in found])
        names = enumerate(teachers.union.names)
        answers = {name: (int((labels_M == i).sum()), int((mine_M == i).sum())) for i, name in names}
        return cls(len(found), objects, means, alarms, answers)


def sample(loader: ImageLoader) -> Iterator[Batch]:
    """Give some auxiliary images from all over the set."""
    return islice(loader.batches(seed_for(0, "sample"), BATCH), min(SAMPLE // BATCH, loader.steps(BATCH)))


def mean_precision(found: list[Detections], truth: list[Objects]) -> float:
    """Give the mean average precision over the classes that are there; NaN if there are none."""
    there = np.unique(np.concatenate([objects.labels_M for objects in truth]))
    precisions = [average_precision(found, truth, int(label)).area for label in there]
    return float(np.mean(precisions)) if precisions else float("nan")


def as_objects(finds: Detections, size: tuple[int, int]) -> Objects:
    """Turn finds in one image that a detector is sure of into annotations; `size` is height and width."""
    sure_M = finds.scores_M > SURE
    labels_M = finds.labels_M[sure_M].astype(np.int64)
    height, width = size
    return Objects(finds.boxes_M4[sure_M], labels_M, np.zeros(len(labels_M), dtype=bool), width, height)


def false_alarms(found: Detections, truth: Objects) -> int:
    """Count the detections with a score above `SURE` that lie on no object of their class."""
    return int((~_hits(found, truth).any(axis=1)).sum())


def missed(found: Detections, truth: Objects) -> int:
    """Count the objects, but difficult ones, on which there is no detection of their class with such a score."""
    return int((~_hits(found, truth).any(axis=0) & ~truth.difficult_M).sum())


def _hits(found: Detections, truth: Objects) -> npt.NDArray[np.bool_]:
    """Tell which of the detections with a score above `SURE` (rows) lie on which objects of their class (columns)."""
    sure_M = found.scores_M > SURE
    there_MG = overlaps(found.boxes_M4[sure_M], truth.boxes_M4) >= OVERLAP
    same_MG = found.labels_M[sure_M][:, None] == truth.labels_M
    hits_MG: npt.NDArray[np.bool_] = there_MG & same_MG
    return hits_MG
