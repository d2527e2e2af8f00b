"""What a report shows of models on labeled data, where it is more than numbers of `evaluate`."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image

from dmc.data.annotations import Objects
from dmc.data.batch import Batch
from dmc.data.open import open_images
from dmc.data.preprocess import Preprocessing
from dmc.distill.detector_agreement import false_alarms, missed
from dmc.distill.teachers import Teachers
from dmc.evaluation.detection import DetectedObject, evaluate
from dmc.exhibits import BarChart, Facts, Gallery, LineChart
from dmc.metrics.average_precision import Detections
from dmc.models.detector import Detector
from dmc.models.specialist import Specialist
from dmc.tasks.classifier_exhibits import STUDENT, TOGETHER, disagreements
from dmc.tasks.detection import Detection
from dmc.tasks.detector_exhibits import _scene
from tests.conftest import tiny
from tests.detectors import TINY, untrained


def test_images_are_ranked_by_the_largest_difference_of_a_probability() -> None:
    """The student has its classes in another order than the teachers; where both answer alike, nothing is shown."""
    teachers = Teachers([tiny("ab", 1), tiny("cd", 2)])
    speakers: dict[str, Specialist | Teachers] = {STUDENT: tiny("dcba"), TOGETHER: teachers}
    of_student = torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.4, 0.3, 0.2, 0.1], [0.6, 0.2, 0.1, 0.1]])  # over d, c, b, a
    of_teachers = torch.tensor([[0.6, 0.2, 0.1, 0.1], [0.3, 0.3, 0.4, 0.0], [0.0, 0.0, 0.0, 1.0]])  # over a, b, c, d
    batch = Batch(torch.zeros((3, 3, 16, 16), dtype=torch.uint8), torch.tensor([0, 1, 0]))
    found = disagreements(speakers, {STUDENT: of_student, TOGETHER: of_teachers}, batch, ("a", "b"))
    assert [one.distance for one in found] == pytest.approx([0.6, 0.4])  # of d, both times: 0.7 - 0.1 and 0.4 - 0.0
    assert {who: name for who, (name, _) in found[0].said.items()} == {STUDENT: "d", TOGETHER: "a"}
    assert [share for _, share in found[0].said.values()] == pytest.approx([0.7, 0.6])
    assert [one.label for one in found] == ["a", "b"]


def test_scenes_that_were_resized_since_show_boxes_where_they_are(tmp_path: Path) -> None:
    """The annotation is for 200 x 100 pixels, the file has 100 x 50: what is found lies in the file's own pixels."""
    Image.new("RGB", (100, 50), "grey").save(tmp_path / "a.png")
    there = Objects(np.array([[20, 20, 60, 60]], np.float32), np.array([0]), np.array([False]), 200, 100)
    record = next(open_images(tmp_path).records())
    found = [DetectedObject("x", 0.9, (10.0, 10.0, 30.0, 30.0))]
    with patch("dmc.tasks.detector_exhibits.detected", return_value=found):
        scene = _scene(record, there, {"student": untrained("x")}, ["x"])
    assert scene.picture.width == 100
    assert scene.found["labels"][0].box == scene.found["student"][0].box == (10.0, 10.0, 30.0, 30.0)


def test_mistakes_of_a_detector_are_false_alarms_and_misses() -> None:
    boxes = np.array([[0, 0, 10, 10], [20, 20, 30, 30], [50, 50, 60, 60]], np.float32)
    truth = Objects(boxes, np.array([0, 1, 1]), np.array([False, False, True]), 100, 100)
    found = Detections(boxes, np.array([0.9, 0.9, 0.2], np.float32), np.array([0, 0, 1]))
    assert false_alarms(found, truth) == 1  # the second has another class; of the third it is not sure
    assert missed(found, truth) == 1  # the third object is difficult


@pytest.mark.parametrize("other", [TINY, TINY.replace("scale=2", "scale=4")], ids=["same anchors", "others"])
def test_a_detector_is_shown_with_precisions_curves_and_scenes(squares: Path, other: str) -> None:
    def small(names: list[str], seed: int, arch: str = TINY) -> Detector:
        return Detector.untrained(arch, names, Preprocessing(size=48), seed, weights=None)

    detector = small(["red", "green", "blue"], 0)
    teachers = {"1: a": small(["red", "green"], 1), "2: b": small(["blue"], 2, other)}
    facts, bars, curves, gallery = Detection().exhibits(detector, teachers, f"{squares},split=val")
    assert isinstance(facts, Facts)
    assert isinstance(bars, BarChart)
    assert isinstance(curves, LineChart)
    assert isinstance(gallery, Gallery)
    measured = evaluate(detector, f"{squares},split=val")
    assert facts.rows["mAP (VOC 2007), student"] == f"{measured.mean:.1%}"
    assert dict(bars.rows).keys() == measured.per_class.keys()
    for name, (own, together) in bars.rows:
        assert own == measured.per_class[name].eleven_points
        assert together is not None
    assert bars.panels == ["student", "teachers side by side"]
    scene = gallery.exhibits[0]
    assert list(scene.found) == ["labels", "student", "1: a", "2: b"]
    assert (scene.picture.width, scene.picture.height) == (96, 80)
    for mark in scene.found["labels"]:
        left, top, right, bottom = mark.box
        assert 20 <= right - left < 36
        assert right - left == bottom - top
        assert (mark.score, mark.name in ("red", "green", "blue")) == (None, True)
