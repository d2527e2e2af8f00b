"""What a merged detector kept of its teachers, counted by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from dmc.config import DetectorConsolidateConfig
from dmc.data.annotations import open_annotated
from dmc.data.detection_batch import DetectionBatch, ShorterSide
from dmc.data.loader import open_loader
from dmc.data.open import open_images
from dmc.distill.anchor_teachers import AnchorTeachers
from dmc.distill.box_teachers import joined
from dmc.distill.detector_agreement import DetectorAgreement, as_objects, false_alarms
from dmc.estimate import some_batches
from dmc.metrics.average_precision import Detections
from dmc.tasks.detector_consolidation import DetectorConsolidation
from tests.detectors import untrained


def test_false_alarms_are_counted_by_hand() -> None:
    """Teacher one is sure of an `a`, teacher two of a `b` in the same place; its second find has too low a score."""
    one = Detections(np.array([[0, 0, 10, 10]], "f4"), np.array([0.9], "f4"), np.array([0]))
    two = Detections(np.array([[0, 0, 10, 10], [50, 50, 60, 60]], "f4"), np.array([0.5, 0.2], "f4"), np.array([0, 0]))
    truth = as_objects(joined([one, two], [(0,), (1,)]), (64, 100))
    assert truth.labels_M.tolist() == [0, 1]
    assert (truth.width, truth.height) == (100, 64)
    student = Detections(
        np.array([[1, 0, 10, 10], [0, 0, 10, 10], [50, 50, 60, 60], [50, 50, 60, 60]], "f4"),
        np.array([0.8, 0.7, 0.6, 0.1], "f4"),
        np.array([0, 1, 1, 0]),  # right; right; no teacher is sure there; the student is not sure itself
    )
    assert false_alarms(student, truth) == 1


def test_what_the_student_finds_again(unlabeled: Path) -> None:
    """A twin of the first teacher, wider by a class that it never names, does not find what the second one does."""
    first, second = untrained("ab"), untrained("c", seed=1)
    with torch.no_grad():
        for detector in (first, second):
            detector.module.get_parameter("head.classification_head.cls_logits.bias").fill_(2.0)
    twin = first.widened("c")
    with torch.no_grad():
        twin.module.get_parameter("head.classification_head.cls_logits.bias").view(-1, 3)[:, 2] = -20
    teachers = AnchorTeachers([first, second], "none")
    loader = open_loader(open_images(unlabeled), ShorterSide(64))
    found = DetectorAgreement.of(twin, teachers, loader)
    assert found.images == loader.count
    assert min(found.objects) > 0
    assert found.precision[0] > 0.8  # not 1: equal scores are sorted by rounding
    assert found.precision[1] == 0
    assert found.false_alarms < 0.2 * found.objects[0]


def test_boxes_of_auxiliary_images_are_not_looked_at(squares: Path) -> None:
    """A step's cost and a student's beginning are measured on them, too, and must not take them for labeled scenes."""
    config = DetectorConsolidateConfig(size=64, weights=None)
    merge = DetectorConsolidation([untrained("ab"), untrained("c")], open_annotated(squares), config)
    assert [record.annotation for record in merge.aux.records()] == [None] * len(merge.aux)
    assert all(not len(boxes) for batch in some_batches(merge)[0] for boxes in DetectionBatch.of(batch).boxes)


def test_what_two_teachers_find_is_there_once(unlabeled: Path) -> None:
    """Both teachers know b and find the same: a student that finds it, too, has found all of each teacher's objects."""
    teacher = untrained("b")
    with torch.no_grad():
        teacher.module.get_parameter("head.classification_head.cls_logits.bias").fill_(2.0)
    found = DetectorAgreement.of(
        teacher, AnchorTeachers([teacher, teacher], "none"), open_loader(open_images(unlabeled), ShorterSide(64))
    )
    assert found.objects[0] == found.objects[1] == found.answers["b"][0] == found.answers["b"][1]
    assert min(found.precision) > 0.8  # not 1: equal scores are sorted by rounding
    assert found.false_alarms == 0
