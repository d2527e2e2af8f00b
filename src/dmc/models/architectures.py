"""From an architecture's name to a module, and to what it wants to see.

`cifar_resnet32` (any depth 6n+2), `torchvision:NAME`, `FILE.py:FUNCTION`, and every other name is timm's.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from torch import nn
from torchvision.models import get_model_weights

from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError, nearest
from dmc.models.cifar_resnet import CifarResNet, register_with_timm
from dmc.models.hub import downloading
from dmc.models.user_network import is_factory, make
from dmc.models.weights import begin_from, fetched, read_weights

CIFAR = re.compile(r"(?:cifar_)?resnet(\d+)")


def known_architecture(arch: str) -> str:
    """The canonical name, or an error with the nearest one. Papers' `resnet32` is `cifar_resnet32`."""
    if is_factory(arch):
        return arch
    if arch.startswith("torchvision:"):
        import torchvision

        name, known = arch.removeprefix("torchvision:"), torchvision.models.list_models(module=torchvision.models)
        if name not in known:
            raise DmcError(f"torchvision has no classifier {name!r}{nearest(name, known)}")
        return arch
    cifar = CIFAR.fullmatch(arch)
    if cifar and arch.startswith("cifar_"):
        return arch
    import timm

    register_with_timm()
    name = arch.removeprefix("timm:")
    if timm.is_model(name.split(".")[0]):
        if "." in name and name not in timm.list_pretrained():
            raise DmcError(f"timm has no weights {name!r}{nearest(name, timm.list_pretrained())}")
        return name
    if cifar and int(cifar[1]) % 6 == 2:
        return f"cifar_resnet{cifar[1]}"
    raise DmcError(f"unknown architecture {arch!r}{nearest(name, timm.list_models())}")


def create(arch: str, num_classes: int, in_chans: int = 3, weights: str | None = None) -> nn.Module:
    """A module with `num_classes` outputs; its weights are random, or, but for the outputs, `imagenet` or a file's."""
    arch = known_architecture(arch)
    if weights == "imagenet":
        return _pretrained(arch, num_classes, in_chans)
    module: nn.Module
    if arch.startswith("cifar_resnet"):
        module = CifarResNet(int(arch.removeprefix("cifar_resnet")), num_classes, in_chans)
    elif is_factory(arch):
        module = make(arch, num_classes)
    elif arch.startswith("torchvision:"):
        from torchvision.models import get_model

        if in_chans != 3:
            raise DmcError(f"{arch} takes RGB images only; give three values for mean and std")
        module = get_model(arch.removeprefix("torchvision:"), weights=None, num_classes=num_classes)
    else:
        import timm

        module = timm.create_model(arch, num_classes=num_classes, in_chans=in_chans)
    if weights is not None:
        begin_from(module, read_weights(Path(weights)), Path(weights), arch, num_classes)
    return module


def _pretrained(arch: str, num_classes: int, in_chans: int) -> nn.Module:
    if arch.startswith("cifar_resnet") or is_factory(arch):
        raise DmcError(f"there are no ImageNet weights of {arch}; give a file of weights, or none")
    if arch.startswith("torchvision:"):
        url = get_model_weights(arch.removeprefix("torchvision:")).DEFAULT.url
        module = create(arch, num_classes, in_chans)
        begin_from(module, fetched(url, f"ImageNet weights of {arch}"), Path(url), arch, num_classes)
        return module
    import timm

    network: nn.Module
    with downloading(f"ImageNet weights of {arch}", hint="; give a file or random"):
        network = timm.create_model(arch, pretrained=True, num_classes=num_classes, in_chans=in_chans)
    return network


def default_preprocessing(arch: str) -> Preprocessing:
    """What the architecture was designed for, as its library states it."""
    arch = known_architecture(arch)
    if arch.startswith("cifar_resnet") or is_factory(arch):
        return Preprocessing()
    if arch.startswith("torchvision:"):
        from torchvision.models import get_model_weights

        weights = get_model_weights(arch.removeprefix("torchvision:"))
        return from_torchvision(weights.DEFAULT.transforms()) if len(weights) else Preprocessing(size=224)
    import timm

    cfg = timm.get_pretrained_cfg(arch)
    return from_timm(cfg.to_dict() if cfg else {})


def from_timm(cfg: dict[str, Any]) -> Preprocessing:
    """timm's `pretrained_cfg` (also the one in a hub model's config.json)."""
    channels, height, width = cfg.get("input_size", (3, 224, 224))
    if height != width:
        raise DmcError(f"{cfg.get('architecture')}: input {height}x{width} is not square")
    return Preprocessing(
        size=height,
        mean=tuple(cfg.get("mean", (0.485, 0.456, 0.406)))[:channels],
        std=tuple(cfg.get("std", (0.229, 0.224, 0.225)))[:channels],
        interpolation=cfg.get("interpolation", "bicubic"),
        crop_pct=min(cfg.get("crop_pct", 0.875), 1.0),
    )


def from_torchvision(transforms: Any) -> Preprocessing:
    """The evaluation transform that a torchvision weight entry carries."""
    size, resized = transforms.crop_size[0], transforms.resize_size[0]
    return Preprocessing(
        size=size,
        mean=tuple(transforms.mean),
        std=tuple(transforms.std),
        interpolation=transforms.interpolation.value,
        crop_pct=size / resized,
    )
