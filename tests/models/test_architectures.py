"""Architectures by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError
from dmc.models import create, default_preprocessing, known_architecture


def parameters(depth: int, classes: int) -> int:
    """Count parameters as described in He et al. 2016, section 4.2: 3x3 convolutions with two norm vectors each."""
    n = (depth - 2) // 6
    total, before = 9 * 3 * 16 + 2 * 16, 16
    for width in (16, 32, 64):
        total += 9 * before * width + 2 * width + (2 * n - 1) * (9 * width * width + 2 * width)
        before = width
    return total + 64 * classes + classes


@pytest.mark.parametrize("depth", [8, 20, 32, 56])
def test_cifar_resnets_have_the_papers_size(depth: int) -> None:
    module = create(f"cifar_resnet{depth}", 10)
    assert sum(p.numel() for p in module.parameters()) == parameters(depth, 10)
    layers = [m for m in module.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(layers) == depth  # "n stacked weighted layers"


def test_cifar_resnet_halves_the_image_twice() -> None:
    features = create("cifar_resnet8", 10).forward_features(torch.zeros(2, 3, 32, 32))  # type: ignore[operator]
    assert features.shape == (2, 64, 8, 8)


def test_papers_short_names_mean_the_cifar_kind_where_timm_has_none() -> None:
    assert known_architecture("resnet32") == "cifar_resnet32"
    assert known_architecture("resnet50") == "resnet50"  # ImageNet's, timm's
    assert known_architecture("timm:resnet18") == "resnet18"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar_resnet31", "depth 6n\\+2"),
        ("resnet51", "unknown architecture 'resnet51'; did you mean 'resnet51q'"),
        ("torchvision:fasterrcnn_resnet50_fpn", "torchvision has no classifier"),
        ("resnet18.bogus", "timm has no weights 'resnet18.bogus'; did you mean 'resnet18"),
        ("torchvision:resnet1", "torchvision has no classifier 'resnet1'; did you mean 'resnet1"),
    ],
)
def test_unknown_architectures_come_with_the_nearest(name: str, message: str) -> None:
    with pytest.raises(DmcError, match=message):
        create(name, 10)


def test_preprocessing_is_what_each_library_states() -> None:
    assert default_preprocessing("cifar_resnet32") == Preprocessing()
    lite = default_preprocessing("tf_efficientnet_lite0")
    assert (lite.size, lite.mean, lite.interpolation, lite.crop_pct) == (224, (0.5, 0.5, 0.5), "bicubic", 0.875)
    vision = default_preprocessing("torchvision:resnet18")
    assert (vision.size, vision.interpolation, vision.crop_pct) == (224, "bilinear", 0.875)


def test_timm_and_torchvision_networks_get_the_head_that_is_asked_for() -> None:
    for arch in ("test_resnet", "torchvision:squeezenet1_1"):
        assert create(arch, 7).eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 7)


def test_layers_as_wide_as_there_are_classes_are_not_taken_for_the_head(tmp_path: Path) -> None:
    whole = create("cifar_resnet8", 64).state_dict()  # the last stage has 64 channels, too
    torch.save({k: v for k, v in whole.items() if not k.startswith("blocks.2.")}, tmp_path / "cut.pth")
    with pytest.raises(DmcError, match=r"cut.pth does not fit cifar_resnet8: 'blocks.2."):
        create("cifar_resnet8", 64, weights=str(tmp_path / "cut.pth"))
    headless = {key: value for key, value in whole.items() if not key.startswith("fc")}
    torch.save(headless, tmp_path / "headless.pth")
    begun = create("cifar_resnet8", 64, weights=str(tmp_path / "headless.pth")).state_dict()
    assert all(torch.equal(begun[key], value) for key, value in headless.items())
