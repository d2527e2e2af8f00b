"""timm's architectures and weights."""

from __future__ import annotations

import re

import timm
from torch import nn

from dmc.data.preprocess import Preprocessing, preprocessing_in
from dmc.errors import DmcError, nearest
from dmc.model_config import PretrainedCfg, labels_in
from dmc.models.architecture_source import ClassifierSource, Trained
from dmc.models.cifar_resnet import register_with_timm
from dmc.models.hub import INSTEAD, downloading

PAPERS = re.compile(r"resnet(\d{1,4})")  # how papers write the CIFAR ResNets, too


class TimmModels(ClassifierSource):
    """timm's networks: every name that no other source claims."""

    def canonical(self, arch: str) -> str:
        """Spell a name; `resnet32`, as papers write, is a CIFAR ResNet where timm has no network of that name."""
        register_with_timm()
        name = self.bare(arch)
        if not timm.is_model(name.split(".")[0]):
            depth = PAPERS.fullmatch(arch)
            if depth is not None and int(depth[1]) % 6 == 2:
                return f"cifar_{arch}"
            raise DmcError(f"unknown architecture {arch!r}{nearest(name, timm.list_models())}")
        if "." in name and name not in timm.list_pretrained():
            raise DmcError(f"timm has no weights {name!r}{nearest(name, timm.list_pretrained())}")
        return name

    def random(self, arch: str, num_classes: int, channels: int) -> nn.Module:
        module: nn.Module = timm.create_model(arch, num_classes=num_classes, in_chans=channels)
        return module

    def pretrained(self, arch: str, num_classes: int, channels: int) -> nn.Module:
        module: nn.Module
        with downloading(f"ImageNet weights of {arch}", hint=f"; {INSTEAD}"):
            module = timm.create_model(arch, pretrained=True, num_classes=num_classes, in_chans=channels)
        return module

    def preprocessing(self, arch: str) -> Preprocessing:
        cfg = timm.get_pretrained_cfg(arch)
        return preprocessing_in(PretrainedCfg.model_validate(cfg.to_dict() if cfg else {}, strict=False))

    def released(self, arch: str) -> Trained:
        name = self.canonical(arch)
        with downloading(arch):
            module = timm.create_model(name, pretrained=True)
        cfg = module.pretrained_cfg
        preprocessing = preprocessing_in(PretrainedCfg.model_validate(cfg, strict=False))
        return Trained(module, name, preprocessing, labels_in(cfg), module.num_classes, {"weights": arch})
