"""A family of detectors: what its names mean, and how their weights for COCO are found."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

from torch import nn
from torchvision.models import get_model_weights

from dmc.errors import DmcError, nearest
from dmc.models.architecture_source import ArchitectureSource, Trained
from dmc.models.one_stage import DetectorNetwork
from dmc.models.weights import download_state_dict, load_weights


class DetectorFamily(ArchitectureSource):
    """Detectors that are built alike. Their names are torchvision's; settings may follow: `NAME,width=64`."""

    pattern: ClassVar[str]  # regular expression: the names that it knows
    network: ClassVar[type[DetectorNetwork]]
    with_coco_weights: ClassVar[tuple[str, ...]] = ()
    without_epsilon: ClassVar[tuple[str, ...]] = ()  # those whose norms had none in training; torchvision sets it to 0

    def canonical(self, arch: str) -> str:
        arch = self.bare(arch)
        self.parsed(arch)
        return arch

    def parsed(self, arch: str) -> tuple[re.Match[str], dict[str, str]]:
        """Split a name into the match of the pattern and the settings."""
        name, *pairs = arch.split(",")
        match, settings = re.fullmatch(self.pattern, name), dict(pair.partition("=")[::2] for pair in pairs)
        if match is None:
            raise DmcError(f"unknown detector {name!r}: use {self.usage}")
        for key in settings:
            if key not in self.listed.settings:
                raise DmcError(f"{arch}: {key} is not a setting of {name}{nearest(key, self.listed.settings)}")
        return match, settings

    def released(self, arch: str) -> Trained:
        """Get a detector of COCO's 80 classes, with its weights; outputs for no class are left out."""
        name = self.bare(arch)
        if name not in self.with_coco_weights:
            known = ", ".join(self.with_coco_weights)
            raise DmcError(f"torchvision has no weights of {name!r} (it has: {known})")
        weights = get_model_weights(name).DEFAULT
        categories = weights.meta["categories"]
        background = self.network.background  # its output is no class of ours
        real = [i for i, category in enumerate(categories) if category not in ("__background__", "N/A")]
        labels, columns = [categories[i] for i in real], [i - background for i in real]
        width = len(categories) - background
        module = self.create(name, width, 3, None)
        load_weights(module, download_state_dict(weights.url, f"torchvision:{name}"), Path(weights.url), name, width)
        for norm in module.modules():
            if name in self.without_epsilon and isinstance(norm, nn.BatchNorm2d) and norm.running_var is not None:
                norm.running_var -= norm.eps  # changes the weights, so that it outlives a save
        return Trained(module, name, self.preprocessing(name), labels, width, {"weights": str(weights)}, columns)
