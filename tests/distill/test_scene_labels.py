"""New scenes with their labels while detectors are merged, and the old objects that nobody marked in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import dmc
from dmc.data.annotations import Objects, open_annotated
from dmc.data.detection_batch import DetectionBatch
from dmc.data.subsets import Unlabeled
from dmc.distill.anchor_teachers import AnchorTeachers
from dmc.distill.detector_objective import DetectionDistillation
from dmc.distill.scene_labels import SceneLabels
from dmc.errors import DmcError
from dmc.metrics.average_precision import Detections
from dmc.training.detection import DetectionLoss
from tests.conftest import tiny
from tests.detectors import small

STILL = dmc.Schedule(epochs=1, batch_size=16, lr=1e-12, weight_decay=0, algorithm="adam")
NOTHING = Objects(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros(0, bool), 96, 80)


class Finding(AnchorTeachers):
    """Teachers that find what the test says, in every image."""

    found: Sequence[Detections] = ()

    def finds(self, images_N3HW: Tensor, sizes: Any) -> list[list[Detections]]:
        return [[found] * len(images_N3HW) for found in self.found]


def finds(*of_image: tuple[tuple[int, ...], float, int]) -> Detections:
    """Give boxes, scores and labels in the form of a detector."""
    boxes, scores, labels = zip(*of_image, strict=True)
    return Detections(np.array(boxes, np.float32), np.array(scores, np.float32), np.array(labels))


def batch(marked: Sequence[list[tuple[tuple[int, ...], int]] | None]) -> DetectionBatch:
    """Give noise with these boxes and labels; None: an image without labels."""
    count = len(marked)
    images_N3HW = torch.randint(0, 256, (count, 3, 64, 64), dtype=torch.uint8)
    boxes = [torch.tensor([box for box, _ in one or []], dtype=torch.float).view(-1, 4) for one in marked]
    labels = [torch.tensor([label for _, label in one or []], dtype=torch.long) for one in marked]
    objects = [None if one is None else NOTHING for one in marked]
    return DetectionBatch(images_N3HW, torch.zeros(count), [(64, 64)] * count, boxes, labels, objects)


def test_old_objects_count_if_they_are_certain_and_no_label_is_there() -> None:
    """The union is a b | c d. People marked a d and a c (their labels are 0: d, 1: c)."""
    teachers = Finding([small("ab", seed=1), small("cd", seed=2)])
    teachers.found = [
        finds(
            ((40, 40, 60, 60), 0.9, 1),  # a certain b where nobody marked anything
            ((0, 40, 20, 60), 0.4, 0),  # not certain enough
            ((1, 1, 20, 20), 0.8, 0),  # certain, but people say that this is a d: the overlap is 361 / 400
            ((10, 0, 30, 20), 0.7, 0),  # overlaps it by 200 / 600 only
        ),
        finds(((40, 0, 60, 20), 0.9, 0)),  # a c: people mark these themselves, and did not
    ]
    (target,) = SceneLabels(teachers, ["d", "c"])(batch([None, [((0, 0, 20, 20), 0), ((30, 30, 38, 38), 1)]]), [1])
    assert target["labels"].tolist() == [3, 2, 1, 0]
    wanted = [[0, 0, 20, 20], [30, 30, 38, 38], [40, 40, 60, 60], [10, 0, 30, 20]]
    assert target["boxes"].tolist() == wanted


def test_a_scene_without_any_object_teaches_background() -> None:
    teachers = Finding([small("ab", seed=1), small("cd", seed=2)])
    teachers.found = [Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))] * 2
    (target,) = SceneLabels(teachers, ["c", "d"])(batch([[]]), [0])
    assert (target["boxes"].shape, target["labels"].shape) == ((0, 4), (0,))


def test_labels_add_the_detectors_own_loss_as_a_mean_over_all_images() -> None:
    """Two of four images have labels, so half of what the supervised loss is on these two."""
    torch.manual_seed(0)
    teachers = Finding([small("ab", seed=1), small("cd", seed=2)])
    teachers.found = [finds(((40, 40, 60, 60), 0.9, 1)), finds(((40, 0, 60, 20), 0.9, 0))]
    student = small("abcd", seed=3)
    whole = batch([None, [((0, 0, 20, 20), 0)], None, [((2, 2, 30, 30), 1), ((40, 0, 60, 20), 0)]])
    distilled = DetectionDistillation(student, teachers, "l2", 1.0).losses(student.module, whole)
    labels = SceneLabels(teachers, ["c", "d"])
    found = DetectionDistillation(student, teachers, "l2", 1.0, labels=labels).losses(student.module, whole)

    old = torch.tensor([[40.0, 40.0, 60.0, 60.0]])  # a b, whose label among b, c, d is 0
    scenes = replace(
        whole,
        images_N3HW=whole.images_N3HW[[1, 3]],
        boxes=[torch.cat([whole.boxes[i], old]) for i in (1, 3)],
        labels=[torch.tensor([1, 0]), torch.tensor([2, 1, 0])],
    )
    alone = DetectionLoss(student, ["b", "c", "d"]).losses(student.module, scenes)["loss"]
    torch.testing.assert_close(found["labels"], alone / 2, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found["loss"], distilled["loss"] + found["labels"])
    unlabeled = batch([None, None])
    assert (
        DetectionDistillation(student, teachers, "l2", 1.0, labels=labels).losses(student.module, unlabeled)["labels"]
        == 0
    )


def test_learn_uses_labels_of_new_scenes_on_request(squares: Path, unlabeled: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"schedule": STILL, "specialist_schedule": STILL, "weights": "random"}
    told = {}
    for name, asked in {"with": "use_labels", "without": "use_new"}.items():
        merged = dmc.learn(small("ab", seed=1), squares, unlabeled, tmp_path / name, **settings | {asked: True})
        assert set(merged.names) == {"a", "b", "red", "green", "blue"}
        curve = (tmp_path / name / "metrics.jsonl").read_text()
        told[name] = ('"labels"' in curve, "with labels" in merged.provenance["images besides"])
    assert told == {"with": (True, True), "without": (False, False)}


def test_unlabeled_images_have_no_boxes(squares: Path) -> None:
    """Old objects that are marked in auxiliary images are out of a method's reach."""
    scenes = open_annotated(squares)
    assert all(record.annotation for record in scenes.records())
    assert not any(record.annotation or record.annotated_size for record in Unlabeled(scenes).records())


def test_classifiers_do_not_take_labels(labeled_folder: Path, unlabeled: Path) -> None:
    with pytest.raises(DmcError, match=r"labels of new images would undo what classifiers know: leave out"):
        dmc.learn(tiny("ab", 1), labeled_folder, unlabeled, use_labels=True, epochs=1)


def test_labels_without_scenes_are_refused(squares: Path, unlabeled: Path) -> None:
    with pytest.raises(DmcError, match="`use_labels` is about new scenes that join"):
        dmc.learn(small("ab"), squares, unlabeled, use_labels=True, use_new=False)
