"""How a detector is measured, and which of its answers a user sees."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import Tensor

from dmc.data.annotations import AnnotatedImage, DetectionImages, Objects
from dmc.errors import DmcError
from dmc.evaluation.detection import DetectedObject, evaluate
from dmc.metrics.average_precision import Detections
from dmc.models.detector import Detector
from dmc.models.pyramids import IMAGENET
from dmc.report.drawing import drawn
from tests.conftest import Answer
from tests.detectors import KINDS, TINY, scene

Dmc = Callable[..., Answer]


class Sure(Detector):
    """A detector that sees a cat in the upper left corner of every image."""

    def detections(
        self, images_N3HW: Tensor, sizes: Sequence[tuple[int, int]], min_score: float = 0, shown: int | None = None
    ) -> list[Detections]:
        one = Detections(np.array([[0, 0, 32, 32]], np.float32), np.ones(1, np.float32), np.zeros(1, np.int64))
        return [one] * len(sizes)


def scenes(cats: int, empty: int) -> DetectionImages:
    """Make images of 64 x 64 with a cat where `Sure` sees one, after images with nothing in them."""
    pixels = np.zeros((64, 64, 3), np.uint8)
    box, label, easy = np.array([[0, 0, 32, 32]], np.float32), np.zeros(1, np.int64), np.zeros(1, bool)
    full = Objects(box, label, easy, 64, 64)
    nothing = Objects(box[:0], label[:0], easy[:0], 64, 64)
    return DetectionImages(
        "made up", ["cat"], [AnnotatedImage(pixels, nothing)] * empty + [AnnotatedImage(pixels, full)] * cats
    )


def sure(*names: str) -> Sure:
    return Sure(
        Detector.architectures.create(TINY, len(names)).eval(),
        names,
        replace(IMAGENET, size=64),
        "sigmoid",
        TINY,
        "sure",
    )


def test_false_alarms_in_images_without_objects_count() -> None:
    """All scores are equal, and detections in empty images come first, so precision is 1/2 at full recall."""
    assert evaluate(sure("cat"), scenes(5, 0)).mean == 1
    for keep in (None, ["cat"]):
        found = evaluate(sure("cat"), scenes(5, 5), keep=keep)
        assert found.images == 10
        assert found.mean == pytest.approx(0.5)


def test_a_class_that_the_scenes_do_not_show_has_no_precision() -> None:
    found = evaluate(sure("cat", "dog"), scenes(3, 0), keep=["cat", "dog"])
    assert math.isnan(found.per_class["dog"].eleven_points)
    assert found.mean == 1  # over the classes that can be found
    assert [line.split() for line in found.as_text().splitlines()[1:3]] == [
        ["cat", "100.0%", "100.0%", "3"],
        ["dog", "-", "-", "0"],
    ]


@pytest.mark.parametrize("keep", [["cat"], ["Cat"], ["cat", "Cat"]])
def test_kept_classes_have_the_datas_name_or_the_models(keep: list[str]) -> None:
    pets = scenes(3, 0).rename({"cat": "Cat"})
    found = evaluate(sure("cat", "dog"), pets, keep=keep)
    assert {name: row.objects for name, row in found.per_class.items()} == {"cat": 3}
    felines = scenes(3, 0).rename({"cat": "feline"})
    found = evaluate(sure("cat", "dog"), felines, keep=["cat", "dog"], rename={"feline": "cat"})
    assert {name: row.objects for name, row in found.per_class.items()} == {"cat": 3, "dog": 0}


def test_classes_of_scenes_are_renamed_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """The detector has one class for two kinds of cats; where there is only a dog, its cat is a false alarm."""
    caplog.set_level("INFO", logger="dmc")
    one_each = [(scenes(1, 0).images[0], np.array([label])) for label in (0, 1, 1, 2)]
    pets = DetectionImages(
        "pets",
        ["Tabby", "Persian", "dog"],
        [AnnotatedImage(s.image, s.objects._replace(labels_M=m)) for s, m in one_each],
    )
    with pytest.raises(
        DmcError, match="sure does not know 3 of the 3 classes in pets: 'Tabby', 'Persian', 'dog'; known leaves"
    ):
        evaluate(sure("cat"), pets)
    found = evaluate(sure("cat"), pets, rename={"tabby": "cat", "Persian": "Cat"}, known=True)
    assert (found.images, list(found.per_class), found.per_class["cat"].objects) == (4, ["cat"], 3)
    assert caplog.messages == ["objects of 1 class that sure does not know are left out, such as 'dog'"]
    alone = evaluate(sure("cat"), pets, keep=["tabby,persian"], rename={"tabby": "cat", "Persian": "cat"})
    assert alone.per_class == found.per_class


def test_sixteen_bits_are_drawn_as_the_detector_sees_them(tmp_path: Path) -> None:
    ramp = np.broadcast_to(np.linspace(0, 4000, 200), (100, 200)).astype(np.uint16)
    Image.fromarray(ramp).save(tmp_path / "deep.png")
    picture = np.asarray(drawn(tmp_path / "deep.png", [DetectedObject("cat", 0.9, (5, 5, 20, 20))], ["cat"]))
    assert picture.shape == (100, 200, 3)
    assert picture[80:, :, 0].mean() == pytest.approx(127, abs=2)  # half of 255, not white


def write_coco(folder: Path, count: int) -> Path:
    """Write the squares of the other tests in COCO's layout."""
    draw, kinds = np.random.default_rng(0), list(KINDS)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for i in range(count):
        image, objects = scene(draw, kinds)
        image.save(folder / f"{i}.png")
        images.append({"id": i, "file_name": f"{i}.png", "width": 96, "height": 80})
        for kind, (left, top, right, bottom) in objects:
            box = [left - 1, top - 1, right - left + 1, bottom - top + 1]  # from VOC's pixels
            annotations.append({"id": len(annotations), "image_id": i, "category_id": kinds.index(kind), "bbox": box})
    categories = [{"id": i, "name": kind} for i, kind in enumerate(kinds)]
    path = folder / "instances.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return path


def test_coco_files_go_through_every_verb(dmc: Dmc, tmp_path: Path, unlabeled: Path) -> None:
    file = write_coco(tmp_path, 12)
    short = ("--weights", "random", "--size", 64)
    for name, kinds in (("rg", "red,green"), ("b", "blue")):
        said = dmc("train", file, "-o", tmp_path / name, "--arch", TINY, "--keep", kinds, "--epochs", 1, *short)
        assert said.code == 0, said.err
    said = dmc("learn", tmp_path / "rg", file, "--keep", "blue", "--aux", unlabeled, "-o", tmp_path / "l",
               "--specialist-epochs", 1, "--epochs", 1, *short)  # fmt: skip
    assert said.code == 0, said.err
    found = json.loads(dmc("evaluate", tmp_path / "l", file, "--json").out)
    assert found["images"] == 12
    counts = {name: row["objects"] for name, row in found["per_class"].items()}
    content = json.loads(file.read_text())
    assert counts == {k: sum(a["category_id"] == i for a in content["annotations"]) for i, k in enumerate(KINDS)}
