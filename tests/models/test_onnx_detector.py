"""Detectors in ONNX files of every layout: the boxes are known by construction."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
import torch

import dmc
from dmc.errors import DmcError
from dmc.models.detector import Detector
from dmc.models.one_stage import OneStage
from dmc.models.onnx_detector import OnnxDetector
from dmc.models.onnx_layouts import LAYOUTS as KNOWN
from dmc.models.onnx_layouts import Output, layout_of, pooled, spread
from tests.conftest import load_detector
from tests.detectors import small
from tests.onnx_detectors import CLASSES, SIDE, write

LAYOUTS = ("yolo", "yolo across", "yolo5", "end2end", "boxes-scores", "boxes-scores-labels", "detr")
# The bright part of each of two images of 48 x 64 and 64 x 32 pixels (height x width).
SIZES, BOXES = [(48, 64), (64, 32)], [[10, 20, 30, 40], [4, 8, 28, 60]]


def pictures() -> torch.Tensor:
    images = torch.zeros((2, 3, 64, 64), dtype=torch.uint8)
    for image, (left, top, right, bottom) in zip(images, BOXES, strict=True):
        image[:, top:bottom, left:right] = 255
    return images


def opened(folder: Path, layout: str, settings: str = "", **file: object) -> Detector:
    path = write(folder, layout, **file)  # type: ignore[arg-type]
    plain = ",mean=0/0/0,std=1/1/1" if "mean" not in settings else ""
    return load_detector(f"{path},classes={folder}/names.txt{plain}{settings}")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fit", ["letterbox", "stretch"])
def test_every_layout_finds_the_bright_part(layout: str, fit: str, tmp_path: Path) -> None:
    detector = opened(tmp_path, layout, f",fit={fit}")
    found = detector.detections(pictures(), SIZES)
    for one, box in zip(found, BOXES, strict=True):
        assert one.labels_M[0] == 0
        assert one.scores_M[0] == pytest.approx(0.9, abs=1e-3)
        assert np.abs(one.boxes_M4[0] - box).max() <= 1.5  # the image is resized to the file's 64 pixels
        assert (one.scores_M > 0.05).sum() == (2 if "label" not in layout and layout != "end2end" else 1)  # and a toy
    assert detector.network.fit == fit
    assert detector.student_arch is None


def test_usual_fits_sizes_and_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What ultralytics' exporter writes into a file is taken from there."""
    said = {"names": "{0: 'thing', 1: 'toy'}", "imgsz": "[64, 64]", "stride": "32", "task": "detect"}
    path = write(tmp_path, "yolo", said=said)
    detector = load_detector(path)
    assert detector.names == CLASSES
    assert (detector.network.fit, detector.preprocessing.size) == ("letterbox", SIDE)
    assert (detector.preprocessing.mean, detector.preprocessing.std) == ((0.0,) * 3, (1.0,) * 3)
    assert not caplog.records  # nothing had to be assumed
    assert opened(tmp_path, "detr").network.fit == "stretch"


def test_a_file_for_one_image_at_a_time(tmp_path: Path) -> None:
    one, any_number = opened(tmp_path, "yolo", batch=1), opened(tmp_path, "yolo", name="any.onnx")
    for mine, other in zip(one.detections(pictures(), SIZES), any_number.detections(pictures(), SIZES), strict=True):
        assert np.array_equal(mine.boxes_M4, other.boxes_M4)


def test_a_file_that_finds_nothing_says_nothing(tmp_path: Path) -> None:
    found = opened(tmp_path, "boxes-scores-labels").detections(
        torch.zeros((1, 3, 64, 64), dtype=torch.uint8), [(64, 64)]
    )
    assert len(found[0].scores_M) == 0


@pytest.mark.parametrize(
    ("layout", "names", "settings", "said"),
    [
        (
            "yolo",
            "a b c",
            "",
            "gives output0 1x6x3, which fits no layout with 3 classes; it would have 2 as yolo, 1 as yolo5",
        ),
        ("no layout", "a b c", "", "fits no layout with 3 classes; known layouts are yolo, yolo5"),
        ("yolo", "a b", ",layout=yolo9", "there is no layout 'yolo9'; known are yolo, yolo5"),
        (
            "yolo",
            "a b",
            ",layout=yolo5",
            "gives output0 1x6x3, which does not fit layout yolo5 with 2 classes; it would have 1 as",
        ),
        ("yolo", "a b", ",fit=crop", "there is no fit 'crop'; known are frame, stretch, letterbox"),
        ("yolo", "a b", ",fit=frame", "takes squares of 64 pixels: its fit is stretch or letterbox"),
        ("yolo", "a b", ",size=32", "takes images of 64 pixels a side, not 32"),
        ("wild scores", "a b", "", "gives scores from -1.39 to 2.2, not 0 to 1: is its layout another?"),
        ("yolo", "", "", "does not tell its classes"),
    ],
)
def test_wrong_guesses_are_refused_in_one_line(
    layout: str, names: str, settings: str, said: str, tmp_path: Path
) -> None:
    path = write(tmp_path, layout)
    (tmp_path / "some.txt").write_text("\n".join(names.split()) + "\n")
    classes = f",classes={tmp_path}/some.txt" if names else ",mean=0/0/0,std=1/1/1"
    with pytest.raises(DmcError) as error:
        dmc.load(f"{path}{classes}{settings}")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_labels_that_have_no_name_are_refused() -> None:
    with pytest.raises(ValueError, match="labels from 1 to 2, and has 2 class names, for 0 to 1; if its"):
        spread(np.ones((1, 2), np.float32), np.array([[1.0, 2.0]], np.float32), 2)


def test_labels_of_one_object_are_put_together() -> None:
    """The first two boxes overlap by 0.9; the third has its place for itself."""
    boxes = np.array([[[0, 0, 10, 10], [0, 0, 10, 9], [0, 0, 10, 5]]], np.float32)
    scores = np.array([[[0.6, 0], [0, 0.5], [0, 0.4]]], np.float32)
    assert pooled(boxes, scores).scores_NMK[0].tolist() == pytest.approx(
        np.array([[0.6, 0.5], [0.6, 0.5], [0, 0.4]], np.float32)
    )


def test_settings_of_onnx_detectors_are_theirs_alone(tmp_path: Path) -> None:
    small("ab").save(tmp_path / "saved")
    with pytest.raises(DmcError, match="'layout' is not a setting of models that are no ONNX files"):
        dmc.load(f"{tmp_path}/saved,layout=yolo")


def test_it_teaches_with_another_detector(tmp_path: Path, unlabeled: Path) -> None:
    quick = dmc.Schedule(epochs=1, lr=1e-4, algorithm="adam", batch_size=8)
    pair = [opened(tmp_path, "yolo").keep(["thing"]), small("c")]
    merged = dmc.consolidate(pair, unlabeled, weights=None, schedule=quick, aux_limit=8)
    assert merged.names == ("thing", "c")
    assert isinstance(merged.module, OneStage)
    assert merged.arch == pair[1].arch


def outputs(**tables: npt.ArrayLike) -> list[Output]:
    return [Output(name, np.array(values, np.float32)[None]) for name, values in tables.items()]


def test_a_column_more_than_there_are_classes_is_none_of_them_only_if_it_mostly_wins() -> None:
    """A DETR's softmax has such a column; RF-DETR's outputs are decided each on its own, and one means nothing."""
    boxes = [[32, 32, 8, 8]] * 10
    softmax = outputs(boxes=boxes, logits=[[3, 0, 1], *[[-2, -1, 4]] * 9])
    assert KNOWN["detr"] is layout_of(softmax, 2, None, "x")
    assert KNOWN["detr"].finds(softmax, 2).scores_NMK[0, 0, 0] == pytest.approx(np.exp(3) / (np.exp(3) + 1 + np.e))
    alone = outputs(dets=boxes, labels=[[3, -5, -5], *[[-5, -4, -5]] * 9])
    with pytest.raises(DmcError, match="it would have 3 as detr; or say layout=detr-sigmoid"):
        layout_of(alone, 2, None, "x")
    scores_MK = layout_of(alone, 2, "detr-sigmoid", "x").finds(alone, 2).scores_NMK[0]
    assert scores_MK[0] == pytest.approx([1 / (1 + np.exp(-3)), 1 / (1 + np.exp(5))])
    assert (scores_MK > 0.3).sum() == 1


@pytest.mark.parametrize("finds", [1, 3, 4])
@pytest.mark.parametrize("with_axis", [True, False])
def test_labels_are_told_from_boxes_whatever_is_found(finds: int, with_axis: bool) -> None:
    """Of four finds, scores and labels have four numbers, as a box has; of one find, as many as a count has."""
    boxes, scores, labels = np.ones((finds, 4)), np.full(finds, 0.5), np.zeros(finds)
    tables = {"boxes": boxes, "scores": scores, "labels": labels}
    found = outputs(**tables) if with_axis else [Output(name, table) for name, table in tables.items()]
    found = [*found, Output("num_dets", np.array([finds]))]
    assert layout_of(found, 2, None, "x") is KNOWN["boxes-scores-labels"]
    read = KNOWN["boxes-scores-labels"].finds(found, 2)
    assert read.boxes_NM4.shape == (1, finds, 4)
    assert (read.scores_NMK == [0.5, 0]).all()


def test_shares_of_the_image_are_told_by_the_first_boxes_that_there_are(tmp_path: Path) -> None:
    """A file that suppresses finds nothing in the noise that it is tried on."""
    module = opened(tmp_path, "boxes-scores").module
    assert isinstance(module, OnnxDetector)
    module.layout, module.shares = KNOWN["boxes-scores-labels"], None
    tables = {name: np.zeros(shape, np.float32) for name, shape in (("b", (1, 3, 4)), ("s", (1, 3)), ("l", (1, 3)))}
    module.session = SimpleNamespace(get_outputs=lambda: [SimpleNamespace(name=name) for name in tables])
    told: list[bool | None] = []
    for box, score in (([0.0] * 4, 0.0), ([0.25, 0.25, 0.75, 0.75], 0.9), ([0, 0, 48, 48], 0.9)):
        tables["b"][0, 1], tables["s"][0, 1] = box, score
        module.read([*tables.values()], 1)
        told.append(module.shares)
    assert told == [None, True, True]  # once told, it stays
    module.shares = None
    module.read([*tables.values()], 1)
    assert not module.shares


def test_files_that_find_something_else_than_boxes_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "yolo", said={"names": "{0: 'thing', 1: 'toy'}", "task": "obb"})
    with pytest.raises(DmcError, match=r"is made for 'obb', not for upright boxes \(detect\)"):
        dmc.load(path)


def test_tensorflows_boxes_begin_with_the_top() -> None:
    """The layout is told by the output's name, and can be overruled."""
    tables = {"boxes": [[0.1, 0.2, 0.3, 0.6]], "scores": [0.9], "classes": [0.0]}
    cases = (
        ("boxes", None, False),
        ("boxes", "tensorflow", True),
        ("detection_boxes:0", None, True),
        ("detection_boxes", "boxes-scores-labels", False),
    )
    for name, asked, top_first in cases:
        found = [Output(key.replace("boxes", name), np.array([table])) for key, table in tables.items()]
        box = layout_of(found, 2, asked, "x").finds(found, 2).boxes_NM4[0, 0]
        assert box == pytest.approx([0.2, 0.1, 0.6, 0.3] if top_first else [0.1, 0.2, 0.3, 0.6])


def test_a_background_is_taken_for_one_only_if_scores_add_up_to_one() -> None:
    """Otherwise a list of classes that is too short would shift all names."""
    boxes = np.zeros((1, 2, 4))
    softmax = outputs(boxes=boxes[0], scores=np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]]))
    assert layout_of(softmax, 2, None, "x").finds(softmax, 2).scores_NMK[0].tolist() == [
        pytest.approx([0.2, 0.1]),
        pytest.approx([0.3, 0.6]),
    ]
    sigmoids = outputs(boxes=boxes[0], scores=np.array([[0.7, 0.2, 0.9], [0.1, 0.3, 0.6]]))
    assert layout_of(sigmoids, 3, None, "x") is KNOWN["boxes-scores"]
    with pytest.raises(DmcError, match="fits no layout with 2 classes; it would have 3 as boxes-scores"):
        layout_of(sigmoids, 2, None, "x")


def test_class_names_are_as_many_as_the_file_has(tmp_path: Path) -> None:
    path = write(tmp_path, "end2end", said={"names": "{0: 'thing', 1: 'toy'}"})
    assert dmc.load(path, classes=["a", "b"]).names == ("a", "b")
    for wrong in (["a"], ["a", "b", "c", "d"]):
        with pytest.raises(DmcError, match=f"has 2 class names in its metadata, and is given {len(wrong)}"):
            dmc.load(path, classes=wrong)
    assert dmc.load(path, classes=["background", "a", "b"]).names == ("background", "a", "b")  # labels begin at 1


def test_class_names_of_a_file_are_numbered_from_0(tmp_path: Path) -> None:
    def named(names: str) -> Path:
        return write(tmp_path, "yolo", said={"names": names, "stride": "32", "imgsz": "[64, 64]"})

    assert dmc.load(named("{0: 'thing', 1: 'toy'}")).names == ("thing", "toy")
    for names in ("{1: 'thing', 2: 'toy'}", "{0: 'thing', 2: 'toy'}"):
        with pytest.raises(DmcError, match="does not tell its classes"):
            dmc.load(named(names))
