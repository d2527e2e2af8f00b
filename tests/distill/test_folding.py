"""A folded network computes what the network computes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from timm.layers import FrozenBatchNormAct2d
from torch import nn
from torch.nn.utils import parametrizations, prune
from torchvision.ops import FrozenBatchNorm2d

from dmc.distill.folding import folded
from dmc.models.architectures import create
from dmc.models.detector import Detector

NORMS = (nn.BatchNorm2d, FrozenBatchNorm2d, FrozenBatchNormAct2d)  # timm's BatchNormAct2d is a BatchNorm2d


def with_statistics(module: nn.Module) -> nn.Module:
    """Give the norms random statistics, as if the network had been trained."""
    torch.manual_seed(0)
    for part in module.modules():
        if isinstance(part, NORMS):
            for name, low, high in (("running_mean", -1, 1), ("running_var", 0.5, 2), ("weight", 0.5, 2)):
                getattr(part, name).data.uniform_(low, high)
    return module.eval()


@pytest.mark.parametrize("arch", ["cifar_resnet14", "test_efficientnet", "test_byobnet", "torchvision:resnet18"])
def test_classifiers(arch: str) -> None:
    module = with_statistics(create(arch, 5))
    images = torch.randn(2, 3, 64, 64)
    twin = folded(module, images[:1])
    with torch.no_grad():
        torch.testing.assert_close(twin(images), module(images), rtol=1e-3, atol=1e-3)
    assert any(isinstance(part, NORMS) for part in module.modules())  # the network itself is as it was
    assert not any(isinstance(part, NORMS) for part in twin.modules())


def test_an_answer_may_carry_its_logits() -> None:
    """Hugging Face's classifiers answer with an object that has `logits`."""

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = create("cifar_resnet8", 5)

        def forward(self, images_N3HW: torch.Tensor) -> SimpleNamespace:
            return SimpleNamespace(logits=self.inner(images_N3HW))

    twin = folded(with_statistics(Wrapped()), torch.zeros(1, 3, 32, 32))
    assert not any(isinstance(part, NORMS) for part in twin.modules())


class PreActivation(nn.Module):
    """The beginning of a pre-activation ResNet: a convolution's output goes through a norm and around it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)

    def forward(self, images_N3HW: torch.Tensor) -> torch.Tensor:
        stem = self.conv(images_N3HW)
        around: torch.Tensor = self.last(stem)
        return torch.relu(self.norm(stem)) + around


@pytest.mark.parametrize(
    "module",
    [PreActivation(), nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.BatchNorm2d(4))],
    ids=["used twice", "changed in place"],
)
def test_a_norm_that_does_not_belong_to_its_convolution_alone_is_left(module: nn.Module) -> None:
    with_statistics(module)
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(folded(module, torch.zeros(1, 3, 16, 16))(images), module(images))


@pytest.mark.parametrize(
    "arch", ["retinanet_resnet18_fpn,width=16,depth=1", "retinanet:timm/test_efficientnet,width=16"]
)
def test_detectors(arch: str) -> None:
    module = with_statistics(Detector.architectures.create(arch, 3))
    images = torch.randn(1, 3, 96, 64)
    twin = folded(module, torch.zeros(1, 3, 64, 64))
    with torch.no_grad():
        for ours, theirs in zip(twin(images)[:3], module(images)[:3], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    assert not any(isinstance(part, NORMS) for part in twin.modules())


def pruned(conv: nn.Conv2d) -> nn.Module:
    prune.l1_unstructured(conv, "weight", amount=0.5)  # type: ignore[no-untyped-call]
    return conv


@pytest.mark.filterwarnings("ignore:.torch.jit.script:FutureWarning")
@pytest.mark.parametrize("change", [pruned, nn.utils.spectral_norm, parametrizations.spectral_norm, torch.jit.script])
def test_weights_that_cannot_be_changed_are_left(change: Callable[[nn.Conv2d], nn.Module]) -> None:
    module = with_statistics(nn.Sequential(change(nn.Conv2d(3, 4, 3)), nn.BatchNorm2d(4)))
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(folded(module, images[:1])(images), module(images), rtol=1e-3, atol=1e-3)


def test_too_little_memory_is_still_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def deepcopy(_: nn.Module) -> nn.Module:
        raise MemoryError

    monkeypatch.setattr("dmc.distill.folding.copy.deepcopy", deepcopy)
    with pytest.raises(MemoryError):
        folded(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), torch.zeros(1, 3, 8, 8))
