"""One-stage detectors behind one small interface: class logits and a box for each anchor (or point) of an image.

The networks and their training losses are torchvision's. A family of detectors is one file: the network behind this
interface, and a `DetectorFamily` that makes it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from torch import Tensor, nn
from torchvision.models import get_model_weights
from torchvision.models.detection.image_list import ImageList

from dmc.device import index
from dmc.errors import DmcError, nearest
from dmc.models.architecture_source import ArchitectureSource, Trained
from dmc.models.weights import download_state_dict, load_weights

Targets = Sequence[Mapping[str, Tensor]]  # for each image: boxes (M x 4, corners, pixels) and labels (M)


class Answers(NamedTuple):
    """A detector's outputs for a batch. All images of a batch have the same anchors, padded or not."""

    logits_NAK: Tensor  # log-odds of each class; SSD's are against its background class
    boxes_NAB: Tensor  # four box offsets, and with FCOS the logit of center-ness
    anchors_A4: Tensor  # corners, pixels; FCOS has a square around each point
    levels: list[int]  # the number of anchors on each level of the pyramid


class OneStage(nn.Module, ABC):
    """The interface of a one-stage detector, mixed into torchvision's networks; their state dicts stay as they are."""

    backbone: nn.Module
    head: nn.Module
    anchor_generator: Any
    box_coder: Any
    compute_loss: Callable[..., dict[str, Tensor]]
    background = 0  # outputs for the background at each anchor; they come before those of the classes
    stretches = False  # does it take a square image, stretched if need be?
    frozen_norm = False  # do the backbone's batch norms stay as they came with the weights?

    def kept(self, answers: Answers, columns: Sequence[int]) -> Answers:
        """Leave out the logits of all other classes, as if the detector had never known them."""
        return answers._replace(logits_NAK=answers.logits_NAK[..., index(tuple(columns), answers.logits_NAK.device)])

    def train(self, mode: bool = True) -> Self:
        """Set the mode. A frozen norm stays in evaluation: one fused step, where torchvision's and timm's take two."""
        super().train(mode)
        if self.frozen_norm:
            freeze_norms(self.backbone)
        return self

    @abstractmethod
    def answer(self, head: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Give logits and boxes from the outputs of the head."""

    @abstractmethod
    def objective(self, answers: Answers, targets: Targets) -> dict[str, Tensor]:
        """Give the family's own training losses by name; their sum is minimised."""

    @abstractmethod
    def scores(self, logits_NAK: Tensor, boxes_NAB: Tensor) -> Tensor:
        """Give the probability of each class at each anchor, which finds are ranked by."""

    @abstractmethod
    def decoded(self, boxes_MB: Tensor, anchors_M4: Tensor) -> Tensor:
        """Turn box offsets and their anchors into corners in pixels."""

    def forward(self, images_N3HW: Tensor) -> Answers:
        features = list(self.backbone(images_N3HW).values())
        size = (int(images_N3HW.shape[-2]), int(images_N3HW.shape[-1]))
        anchors_A4 = self.anchor_generator(ImageList(images_N3HW[:1], [size]), features[:])[0]
        logits_NAK, boxes_NAB = self.answer(self.head(features))
        places = [f.shape[-2] * f.shape[-1] for f in features]
        per_place = self.anchor_generator.num_anchors_per_location()
        levels = [count * each for count, each in zip(places, per_place, strict=True)]
        return Answers(logits_NAK, boxes_NAB, anchors_A4, levels)


class DetectorFamily(ArchitectureSource):
    """Detectors that are built alike. Their names are torchvision's; settings may follow: `NAME,width=64`."""

    scheme = "torchvision"
    prefix: ClassVar[str]  # regular expression: how names begin that mean this family, also unknown ones
    pattern: ClassVar[str]  # regular expression: the names that it knows
    network: ClassVar[type[OneStage]]
    with_coco_weights: ClassVar[tuple[str, ...]] = ()

    def claims(self, arch: str) -> bool:
        """Claim a name by how it begins. One with a colon further on is a user's FILE.py:FUNCTION."""
        return re.fullmatch(f"{self.prefix}(:.*|[^:]*)", self.bare(arch)) is not None

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
            if key not in self.settings:
                raise DmcError(f"{arch}: {key} is not a setting of {name}{nearest(key, self.settings)}")
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
        return Trained(module, name, self.preprocessing(name), labels, width, {"weights": str(weights)}, columns)


def freeze_norms(body: nn.Module) -> None:
    """Put all batch norms in evaluation, and do not train them."""
    for norm in body.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.eval()
            for parameter in norm.parameters():
                parameter.requires_grad_(False)
