"""What is different about SSDs: a background class, a square, weights of their own normalisation."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import dmc
from dmc.detect.detector import Detector, detector_preprocessing
from dmc.errors import DmcError
from dmc.models.blueprint import create_detector
from dmc.models.one_stage import Answers, OneStage


def test_ssd_scores_are_a_softmax_against_the_background() -> None:
    network = create_detector("ssdlite320_mobilenet_v3_large", 2).eval()
    assert isinstance(network, OneStage)
    images = torch.randn(1, 3, 320, 320)
    with torch.no_grad():
        features = list(network.backbone(images).values())  # type: ignore[operator]
        own = F.softmax(network.head(features)["cls_logits"], dim=-1)  # type: ignore[operator]
        answers = network.forward(images)
        torch.testing.assert_close(network.scores(answers.logits_NAK, answers.boxes_NAB), own[..., 1:])


@pytest.mark.parametrize("arch", ["ssd300_vgg16", "ssdlite320_mobilenet_v3_large"])
def test_an_ssd_sees_what_torchvisions_does(arch: str) -> None:
    from torchvision.models import detection

    own = getattr(detection, arch)(weights=None, weights_backbone=None).transform
    found = detector_preprocessing(arch)
    assert (found.size, found.mean, found.std) == (own.fixed_size[0], tuple(own.image_mean), tuple(own.image_std))


def test_an_ssd_begins_with_the_weights_that_fit_its_normalisation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision.models import vgg16

    state = {f"features.{key}": value for key, value in vgg16().features.state_dict().items()}
    asked: list[str] = []

    def fetched(url: str, what: str) -> dict[str, Tensor]:
        asked.append(url)
        return state

    monkeypatch.setattr("dmc.models.blueprint.fetched", fetched)
    detector = Detector.untrained("ssd300_vgg16", "ab", weights="imagenet")
    assert "vgg16_features" in asked[0]  # made for a standard deviation of 1/255, as the preprocessing is
    assert torch.equal(detector.module.get_parameter("backbone.features.0.weight"), state["features.0.weight"])
    detector.save(tmp_path / "d")
    assert dmc.load(tmp_path / "d").fingerprint == detector.fingerprint
    with pytest.raises(DmcError, match="no ImageNet weights for the reduced tail of ssdlite320_mobilenet_v3_large"):
        Detector.untrained("ssdlite320_mobilenet_v3_large", "ab", weights="imagenet")


def test_an_ssd_without_a_class_takes_it_for_background() -> None:
    """Of e^2, e^10 and e^-5 against e^0, what is left for a is e^2 in all of them: not in e^2 + e^0."""
    network = create_detector("ssdlite320_mobilenet_v3_large", 3)
    assert isinstance(network, OneStage)
    whole = Answers(torch.tensor([[[2.0, 10.0, -5.0]]]), torch.zeros(1, 1, 4), torch.zeros(1, 4), [1])
    score = network.scores(network.kept(whole, [0]).logits_NAK, whole.boxes_NAB).item()
    assert score == pytest.approx(math.exp(2) / (math.exp(2) + math.exp(10) + math.exp(-5) + 1), rel=1e-5)
