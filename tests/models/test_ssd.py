"""What is different about SSDs: a background class, square images, a normalisation of their own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torchvision.ops import remove_small_boxes

import dmc
from dmc.config import DetectorConsolidateConfig, NetworkConfig
from dmc.data.detection_batch import ShorterSide
from dmc.data.fitting import fitted
from dmc.data.open import open_images
from dmc.data.preprocess import Preprocessing
from dmc.data.sources import Record
from dmc.errors import DmcError
from dmc.models.detector import Detector
from dmc.models.one_stage import Answers, OneStage
from dmc.models.ssd import SsdDetector
from dmc.tasks.detection import Detection
from dmc.tasks.detector_consolidation import DetectorConsolidation
from tests.detectors import small


def test_ssd_scores_are_a_softmax_against_the_background() -> None:
    network = Detector.architectures.create("ssdlite320_mobilenet_v3_large", 2).eval()
    assert isinstance(network, OneStage)
    images = torch.randn(1, 3, 320, 320)
    with torch.no_grad():
        features = list(network.backbone(images).values())
        own = F.softmax(network.head(features)["cls_logits"], dim=-1)
        answers = network.forward(images)
        torch.testing.assert_close(network.scores(answers.logits_NAK, answers.boxes_NAB), own[..., 1:])


def test_the_best_finds_are_those_of_torchvisions_own_postprocessing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers are made up: random weights would give ties, whose order is not defined."""
    detector = Detector.untrained("ssdlite320_mobilenet_v3_large", "ab", weights=None)
    network: Any = detector.module.eval()
    images = torch.zeros((1, 3, 320, 320), dtype=torch.uint8)
    with torch.no_grad():
        fresh = detector.answers(images)
    draw = torch.Generator().manual_seed(0)
    raw_1AJ = 3 * torch.randn((1, len(fresh.anchors_A4), 3), generator=draw)  # with the background in front
    boxes_1A4 = torch.randn((1, len(fresh.anchors_A4), 4), generator=draw)
    answers = fresh._replace(logits_NAK=raw_1AJ[..., 1:] - raw_1AJ[..., :1], boxes_NAB=boxes_1A4)
    monkeypatch.setattr(detector, "answers", lambda _: answers)
    ours = detector.detections(images, [(320, 320)])[0]
    network.score_thresh, network.nms_thresh = 0.05, 0.5
    head = {"cls_logits": raw_1AJ, "bbox_regression": boxes_1A4}
    theirs = network.postprocess_detections(head, [fresh.anchors_A4], [(320, 320)])[0]
    best = remove_small_boxes(theirs["boxes"], 1e-3)[:20]  # it also gives boxes that clipping left nothing of
    np.testing.assert_allclose(ours.scores_M[:20], theirs["scores"][best].numpy(), rtol=1e-4)
    np.testing.assert_allclose(ours.boxes_M4[:20], theirs["boxes"][best].numpy(), rtol=1e-4, atol=1e-2)
    assert (ours.labels_M[:20] + 1).tolist() == theirs["labels"][best].tolist()


@pytest.mark.parametrize(
    "arch", [pytest.param("ssd300_vgg16", marks=pytest.mark.slow), "ssdlite320_mobilenet_v3_large"]
)
def test_an_ssd_sees_what_torchvisions_does(arch: str) -> None:
    from torchvision.models import detection

    own = getattr(detection, arch)(weights=None, weights_backbone=None).transform
    found = Detector.architectures.preprocessing(arch)
    assert (found.size, found.mean, found.std) == (own.fixed_size[0], tuple(own.image_mean), tuple(own.image_std))


@pytest.mark.slow
def test_an_ssd_begins_with_the_weights_that_fit_its_normalisation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision.models.vgg import cfgs, make_layers

    state = {f"features.{key}": value for key, value in make_layers(cfgs["D"]).state_dict().items()}
    asked: list[str] = []

    def download_state_dict(url: str, what: str) -> dict[str, Tensor]:
        asked.append(url)
        return state

    monkeypatch.setattr("dmc.models.ssd.download_state_dict", download_state_dict)
    detector = Detector.untrained("ssd300_vgg16", "ab", weights="imagenet")
    assert "vgg16_features" in asked[0]  # made for a standard deviation of 1/255, as the preprocessing is
    assert torch.equal(detector.module.get_parameter("backbone.features.0.weight"), state["features.0.weight"])
    detector.save(tmp_path / "d")
    assert dmc.load(tmp_path / "d").fingerprint == detector.fingerprint
    with pytest.raises(DmcError, match="no ImageNet weights for the reduced tail of ssdlite320_mobilenet_v3_large"):
        Detector.untrained("ssdlite320_mobilenet_v3_large", "ab", weights="imagenet")


@pytest.mark.parametrize("score", [0.35, 0.5, 0.9])
def test_a_target_of_many_classes_has_its_score(score: float) -> None:
    """79 classes that are not there have a score of 1% each in a sigmoid, which a softmax must not add up."""
    network = Detector.architectures.create("ssdlite320_mobilenet_v3_large", 2)
    assert isinstance(network, OneStage)
    odds_1K = torch.full((1, 80), math.log(0.01 / 0.99))
    odds_1K[0, 7] = math.log(score / (1 - score))
    scores_K = network.scores(network.logits_for(odds_1K), torch.zeros(1, 4))[0]
    assert scores_K[7].item() == pytest.approx(score, abs=0.02)
    assert scores_K.sum() - scores_K[7] < 0.01


def test_squares_are_seen_alike_in_training_and_in_use() -> None:
    """An SSD300's anchors are fractions of its image: a batch padded to 320 would have larger ones than its finds."""
    shown = ShorterSide(300, square=True)
    batch = shown.batch([(Record(Path("a"), 0, "a"), shown(Image.new("RGB", (400, 200))))])
    seen = fitted(batch.images_N3HW, batch.sizes, SsdDetector.fit, 300, 300, "bilinear")
    assert tuple(batch.images_N3HW.shape) == tuple(seen.images_N3HW.shape) == (1, 3, 300, 300)


def test_an_ssd_without_a_class_takes_it_for_background() -> None:
    """With odds of e^2, e^10 and e^-5 against e^0, the share of a is e^2 in the sum of all: not in e^2 + e^0."""
    network = Detector.architectures.create("ssdlite320_mobilenet_v3_large", 3)
    assert isinstance(network, OneStage)
    whole = Answers(torch.tensor([[[2.0, 10.0, -5.0]]]), torch.zeros(1, 1, 4), torch.zeros(1, 4), [1])
    score = network.scores(network.kept(whole, [0]).logits_NAK, whole.boxes_NAB).item()
    assert score == pytest.approx(math.exp(2) / (math.exp(2) + math.exp(10) + math.exp(-5) + 1), rel=1e-5)


def test_the_mean_of_ssds_has_the_mean_of_their_background() -> None:
    """Each anchor has an output for the background, then those of the classes."""
    models = [Detector.untrained("ssdlite320_mobilenet_v3_large", names, weights=None) for names in ("a", "b", "ba")]
    name = "head.classification_head.module_list.0.1.bias"  # of six anchors
    for model, start in zip(models, (0.0, 100.0), strict=False):
        model.module.get_parameter(name).data.copy_(torch.arange(12) + start)
    found = models[2].as_mean_of(models[:2]).module.get_parameter(name).view(6, 3)
    assert found[0].tolist() == [50, 101, 1]
    assert found[5].tolist() == [60, 111, 11]


def test_an_ssd300_sees_300_pixels_whatever_its_teachers_see(unlabeled: Path, caplog: pytest.LogCaptureFixture) -> None:
    """torchvision lays its anchors a fixed number of pixels apart, so that they fit no other size."""
    asked = DetectorConsolidateConfig.of({"arch": "ssd300_vgg16", "weights": "random"})
    planned = DetectorConsolidation([small("a"), small("b", seed=1)], unlabeled, asked)
    assert planned.student.preprocessing.size == 300
    assert "small-0, small-1 will see images that are squeezed into squares" in caplog.text
    with pytest.raises(DmcError, match="has its anchors where they are for images of 300 pixels: leave `size` out"):
        Detector.untrained("ssd300_vgg16", "ab", Preprocessing(320), weights=None)


def test_an_ssdlite_begins_at_random_unless_asked_otherwise(unlabeled: Path) -> None:
    """There are no ImageNet weights for its network."""
    lite = [Detector.untrained("ssdlite320_mobilenet_v3_large", name, weights=None) for name in "ab"]
    assert DetectorConsolidation(lite, unlabeled).config.weights is None
    chosen = Detection().network_for(open_images(unlabeled), NetworkConfig(arch="ssdlite320_mobilenet_v3_large"))
    assert chosen.weights is None
    paper = Detection().as_in_paper(DetectorConsolidateConfig(arch="ssdlite320_mobilenet_v3_large"), "ssd300_vgg16")
    assert paper.weights is None
    assert Detection().as_in_paper(DetectorConsolidateConfig(), "ssd300_vgg16").weights == "imagenet"
    assert Detection().network_for(open_images(unlabeled), NetworkConfig(arch="ssd300_vgg16")).weights == "imagenet"


def test_a_name_with_its_library_is_the_same_network(unlabeled: Path) -> None:
    asked = DetectorConsolidateConfig.of({"arch": "torchvision:ssd300_vgg16", "weights": "random"})
    student = DetectorConsolidation([small("a"), small("b", seed=1)], unlabeled, asked).student
    assert (student.arch, student.preprocessing.size) == ("ssd300_vgg16", 300)
