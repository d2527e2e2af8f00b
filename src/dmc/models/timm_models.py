"""timm's architectures, weights and configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError, nearest
from dmc.models.architecture_source import ClassifierSource, Trained
from dmc.models.cifar_resnet import register_with_timm
from dmc.models.hub import downloading


class TimmModels(ClassifierSource):
    """timm's networks: every name that no other source claims."""

    scheme = "timm"

    def claims(self, arch: str) -> bool:
        return True

    def canonical(self, arch: str) -> str:
        import timm

        register_with_timm()
        name = self.bare(arch)
        if not timm.is_model(name.split(".")[0]):
            raise DmcError(f"unknown architecture {arch!r}{nearest(name, timm.list_models())}")
        if "." in name and name not in timm.list_pretrained():
            raise DmcError(f"timm has no weights {name!r}{nearest(name, timm.list_pretrained())}")
        return name

    def random(self, arch: str, num_classes: int, channels: int) -> nn.Module:
        import timm

        module: nn.Module = timm.create_model(arch, num_classes=num_classes, in_chans=channels)
        return module

    def pretrained(self, arch: str, num_classes: int, channels: int) -> nn.Module:
        import timm

        module: nn.Module
        with downloading(f"ImageNet weights of {arch}", hint="; give a file or random"):
            module = timm.create_model(arch, pretrained=True, num_classes=num_classes, in_chans=channels)
        return module

    def preprocessing(self, arch: str) -> Preprocessing:
        import timm

        cfg = timm.get_pretrained_cfg(arch)
        return preprocessing_in(cfg.to_dict() if cfg else {})

    def released(self, arch: str) -> Trained:
        import timm

        name = self.canonical(self.bare(arch))
        with downloading(arch):
            module = timm.create_model(name, pretrained=True)
        cfg = module.pretrained_cfg
        return Trained(module, name, preprocessing_in(cfg), labels_in(cfg), module.num_classes, {"weights": arch})


def preprocessing_in(cfg: Mapping[str, Any]) -> Preprocessing:
    """Read the preprocessing from timm's `pretrained_cfg`, which a saved model's config.json has, too."""
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


def labels_in(config: Mapping[str, Any]) -> Sequence[str]:
    """Read `label_names`, which timm allows to be a list or a dict from numbers to names; empty if there are none."""
    labels = config.get("label_names")
    if isinstance(labels, Mapping):
        return [labels[key] for key in sorted(labels, key=int)]
    return labels or ()
