"""What is looked at before detectors teach."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

import dmc
from dmc.config import DetectorConsolidateConfig
from dmc.data.detection_batch import DetectionBatch
from dmc.data.loader import open_loader
from dmc.data.open import open_images
from dmc.data.preprocess import Preprocessing
from dmc.distill.anchor_teachers import AnchorTeachers
from dmc.distill.survey import Survey
from dmc.errors import DmcError
from dmc.models.detector import Detector
from dmc.models.one_stage import Answers
from dmc.tasks.detector_consolidation import DetectorConsolidation
from tests.detectors import small
from tests.distill.test_boxes import RETINANET, Sightings, sees
from tests.distill.test_detection import Fixed, fixed


def test_impossible_boxes_are_refused_and_missing_finds_named(
    unlabeled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file whose centers are taken for corners has boxes that end before they begin."""
    quick = dmc.Schedule(epochs=1, lr=1e-4, algorithm="adam", batch_size=8)
    settings: dict[str, Any] = {"weights": None, "schedule": quick, "aux_limit": 8, "arch": RETINANET, "size": 64}
    good, wrong = sees("a", [[10.0, 10, 30, 30]], [[0.9]], 64), sees("b", [[50.0, 40, 12, 10]], [[0.8]], 64)
    with pytest.raises(
        DmcError, match="sees b is misunderstood: 8 of 8 boxes in 8 auxiliary images have no size or lie"
    ):
        dmc.consolidate([good, wrong], unlabeled, **settings)
    with pytest.raises(DmcError, match="sees b is misunderstood"):
        dmc.check([good, wrong], unlabeled, **settings)
    dmc.check([good, wrong], unlabeled, **settings | {"aux_limit": 4})  # four boxes are too few to judge by
    caplog.clear()
    dmc.check([good, sees("c", [[0.0, 0, 30, 30]], [[0.02]], 64)], unlabeled, **settings)
    assert "sees c finds nothing in 8 auxiliary images (scores above 5%)" in caplog.text


class Fickle(Sightings):
    """A detector whose boxes are no numbers in images with a white corner."""

    def forward(self, images_N3HW: Tensor) -> Answers:
        found = super().forward(images_N3HW)
        white_N = images_N3HW[:, :, 0, 0].amin(dim=1) == 1
        return found._replace(boxes_NAB=found.boxes_NAB.masked_fill(white_N[:, None, None], math.nan))


def fickle(names: str) -> Detector:
    network = Fickle([[10.0, 10, 30, 30]], [[0.9] * len(names)])
    plain = Preprocessing(64, (0.0,) * 3, (1.0,) * 3)
    return Detector(network, names, plain, "sigmoid", name="fickle")


@pytest.fixture
def one_white(tmp_path: Path, unlabeled: Path) -> Path:
    """Auxiliary images, of which one is white."""
    folder = shutil.copytree(unlabeled, tmp_path / "one-white")
    Image.new("RGB", (80, 64), "white").save(folder / "005.png")
    return folder


def test_images_to_compare_on_are_looked_at_before_training(one_white: Path, tmp_path: Path) -> None:
    asked = DetectorConsolidateConfig(arch=RETINANET, size=64, weights=None)
    merge = DetectorConsolidation([sees("a", [[10.0, 10, 30, 30]], [[0.9]], 64), fickle("b")], one_white, asked)
    loader, white = (open_loader(open_images(place), merge.transform) for place in (tmp_path, one_white / "005.png"))
    with pytest.raises(DmcError, match="fickle gives answers that are not finite"):
        merge.prepare(loader, white)
    with pytest.raises(DmcError, match="fickle gives answers that are not finite"):
        dmc.check([sees("a", [[10.0, 10, 30, 30]], [[0.9]], 64), fickle("b")], one_white, **asked.model_dump())


def test_boxes_that_are_no_numbers_are_not_dropped_in_silence(one_white: Path) -> None:
    with pytest.raises(DmcError, match="fickle gives answers that are not finite"):
        dmc.predict(fickle("a"), [one_white / "005.png"])
    assert dmc.predict(fickle("a"), [one_white / "006.png"])


def test_a_teacher_that_finds_hardly_anything_is_named_with_its_share(
    one_white: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where teachers have the same anchors."""

    def blind(names: str) -> Detector:
        return Detector(Fixed([[-9.0]] * 4, [[0.0] * 4] * 4), names, Preprocessing(32), "sigmoid", name="blind")

    survey = Survey(AnchorTeachers([fixed("ab", [[3.0, -9.0]] * 4, 0), blind("c")]))
    for images in (96, 2):  # of which the last are more than enough
        pixels = torch.zeros((images, 3, 32, 32), dtype=torch.uint8)
        survey.look(DetectionBatch(pixels, torch.zeros(images), [(32, 32)] * images, [], [], []))
    survey.require_possible()
    survey.seen[1].with_finds = 4
    survey.warn()
    survey.seen[1].with_finds = 5
    survey.warn()
    assert caplog.text.count("blind finds something in 4 of 96 auxiliary images (scores above 5%)") == 1
    assert caplog.text.count("finds") == 1


def test_learn_refuses_an_old_detector_that_is_misunderstood_before_it_trains_another(
    squares: Path, unlabeled: Path, tmp_path: Path
) -> None:
    wrong = sees("b", [[50.0, 40, 12, 10]], [[0.8]], 64)
    settings: dict[str, Any] = {"weights": "random", "epochs": 1, "arch": RETINANET, "size": 64}
    with pytest.raises(DmcError, match="sees b is misunderstood"):
        dmc.learn(wrong, squares, unlabeled, tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_a_teacher_of_one_class_is_named_once_if_it_is_centred(
    unlabeled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = DetectorConsolidateConfig(centring="per-teacher", weights=None, matching="boxes")
    DetectorConsolidation([small("ab"), small("c", seed=1)], unlabeled, asked)
    assert caplog.text.count("has one class ('c'): its normalised logit is always 0") == 1
