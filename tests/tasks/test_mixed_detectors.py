"""The walk-through of docs/detection.md, on small data: four classes of one's own and a person from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dmc import evaluate
from dmc.evaluation.detection import DetectionEvaluation
from tests.conftest import Answer, load_detector
from tests.detectors import small
from tests.onnx_detectors import write

Dmc = Callable[..., Answer]
QUICK = ("--weights", "random", "--epochs", "1", "--aux-limit", "8", "--batch-size", "8")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Make a folder with `mine`, `yolo.onnx` and its class names, and `photos` that show something bright."""
    small("abcd").save(tmp_path / "mine")
    write(tmp_path, "yolo", "yolo.onnx", said={"names": "['person', 'toy']", "stride": "32", "imgsz": "[64, 64]"})
    (tmp_path / "photos").mkdir()
    for i in range(12):
        pixels = np.full((64, 80, 3), 40, np.uint8)
        pixels[10 : 30 + i, 20:50] = 255
        Image.fromarray(pixels).save(tmp_path / f"photos/{i}.png")
    return tmp_path


def test_four_classes_of_mine_and_a_person(dmc: Dmc, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    mix = ("mine", "yolo.onnx", "--keep", "2:person", "--rename", "person=pedestrian", "--aux", "photos")
    looked = dmc("check", *mix, *QUICK, "--draw", "drawn")
    assert looked.code == 0, looked.err
    assert "in 0% / 100% of the images" in looked.out
    assert "what the teachers find: 16 pictures in drawn" in looked.out
    pictures = [np.asarray(Image.open(path)) for path in sorted(Path("drawn").glob("image-*-teacher-2.png"))]
    assert len(pictures) == 8
    red = (pictures[0] == (0xE6, 0x19, 0x4B)).all(axis=2)  # the colour of the first class
    assert red[8:45, 19:52].any()  # around the bright part

    made = dmc("consolidate", *mix, *QUICK, "-o", "merged")
    assert made.code == 0, made.err
    merged = load_detector(place / "merged")
    assert merged.names == ("a", "b", "c", "d", "pedestrian")
    told = json.loads(Path("merged/run.json").read_text())
    assert told["matching"] == "boxes"
    assert "teacher 2: yolo.onnx, 1 class: 1.0 finds in an image" in made.out

    seen = dmc("predict", "yolo.onnx", "photos/0.png", "--json")
    (found,) = json.loads(seen.out)[0]["objects"]
    assert found["class"] == "person"
    assert np.abs(np.array(found["box"]) - [20, 10, 50, 30]).max() < 2


def test_what_cannot_be_done_is_one_line(dmc: Dmc, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    pair = ("mine", "yolo.onnx", "--aux", "photos")
    for said, *settings in (
        ("only detectors of one family with the same anchors can be distilled", "--matching", "anchors"),
        ("can teach, but not learn: a student is a one-stage detector", "--arch", "fasterrcnn_resnet50_fpn"),
        ("yolo.onnx has no class 'dog'", "--keep", "2:dog"),
    ):
        answer = dmc("consolidate", *pair, *QUICK, "-o", "out", *settings)
        assert answer.code == 2
        assert said in answer.err
        assert answer.err.strip().count("\n") == 0
    answer = dmc("check", "yolo.onnx", "yolo.onnx,layout=end2end", "--aux", "photos")
    assert "which does not fit layout end2end with 2 classes" in answer.err
    assert not Path("out/model.safetensors").exists()


def test_recipe_best_begins_as_a_detector_that_can_learn(
    dmc: Dmc, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    settings = ("--aux", "photos", "--recipe", "best", *QUICK[2:], "-o", "best")
    said = dmc("consolidate", "yolo.onnx", "mine", *settings)
    assert said.code == 2
    assert "no student can begin with the weights of yolo.onnx, which only teaches: name a model that can" in said.err
    made = dmc("consolidate", "mine", "yolo.onnx", *settings)
    assert made.code == 0, made.err
    assert json.loads(Path("best/run.json").read_text())["from_teacher"]


def test_unlike_detectors_are_evaluated_side_by_side(place: Path, squares: Path) -> None:
    mine, other = load_detector(place / "mine").rename({"a": "red"}), load_detector(place / "yolo.onnx")
    other = other.rename({"person": "blue"})
    found = evaluate([mine, other], f"{squares},split=val", keep=["red", "blue"])
    assert isinstance(found, DetectionEvaluation)
    assert found.images == 20
    assert found.per_class["blue"].objects > 0


def test_pictures_of_finds_are_not_drawn_among_the_images(
    dmc: Dmc, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    answer = dmc("check", "mine", "yolo.onnx", "--aux", "photos", "--draw", "photos/drawn")
    assert (answer.code, "photos/drawn lies in photos, which holds images" in answer.err) == (2, True)
    assert dmc("check", "mine", "yolo.onnx", "--aux", "nowhere", "--draw", "drawn").code == 2
    assert not Path("drawn").exists()
