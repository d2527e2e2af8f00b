"""torchvision's classifiers and their ImageNet weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torchvision
from torch import nn
from torchvision.models import get_model, get_model_weights

from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError, nearest
from dmc.models.architecture_source import ClassifierSource, Trained
from dmc.models.weights import download_state_dict, load_backbone_weights, load_weights

# With their weights, torchvision builds these so that they turn ImageNet's mean and std into these inside the network.
HALVES = ("googlenet", "inception_v3")


class TorchvisionModels(ClassifierSource):
    """torchvision's networks, by the name `torchvision:NAME`."""

    def canonical(self, arch: str) -> str:
        name, known = self.bare(arch), torchvision.models.list_models(module=torchvision.models)
        if name not in known:
            raise DmcError(f"torchvision has no classifier {name!r}{nearest(name, known)}")
        return arch

    def random(self, arch: str, num_classes: int, channels: int) -> nn.Module:
        if channels != 3:
            raise DmcError(f"{arch} takes RGB images only; give three values for mean and std")
        module: nn.Module = get_model(self.bare(arch), weights=None, num_classes=num_classes)
        return module

    def pretrained(self, arch: str, num_classes: int, channels: int) -> nn.Module:
        url = get_model_weights(self.bare(arch)).DEFAULT.url
        module = self.random(arch, num_classes, channels)
        load_backbone_weights(
            module, download_state_dict(url, f"ImageNet weights of {arch}"), Path(url), arch, num_classes
        )
        return module

    def preprocessing(self, arch: str) -> Preprocessing:
        weights = get_model_weights(self.bare(arch))
        if not len(weights):
            return Preprocessing(size=224)
        seen = _preprocessing_of(weights.DEFAULT.transforms())
        return replace(seen, mean=(0.5,) * 3, std=(0.5,) * 3) if self.bare(arch) in HALVES else seen

    def released(self, arch: str) -> Trained:
        arch = self.canonical(arch)
        weights = get_model_weights(self.bare(arch)).DEFAULT
        labels = weights.meta["categories"]
        module = self.random(arch, len(labels), channels=3)
        load_weights(module, download_state_dict(weights.url, arch), Path(weights.url), arch, len(labels))
        return Trained(module, arch, self.preprocessing(arch), labels, len(labels), {"weights": str(weights)})


def _preprocessing_of(transforms: Any) -> Preprocessing:
    """Read the preprocessing from the evaluation transform that comes with torchvision's weights."""
    size, resized = transforms.crop_size[0], transforms.resize_size[0]
    return Preprocessing(
        size=size,
        mean=tuple(transforms.mean),
        std=tuple(transforms.std),
        interpolation=transforms.interpolation.value,
        crop_pct=size / resized,
    )
