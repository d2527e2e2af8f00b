"""Detectors behind one small interface: class logits and a box for each anchor (or point, or proposal) of an image.

A one-stage detector is one that can be a student; other networks only teach (`dmc.models.free_boxes`). The networks and
their training losses are torchvision's. A family of detectors is one file: the network behind this interface, and a
`DetectorFamily` that makes it. This file does without torchvision, which takes long to load.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from dmc.data.fitting import Fit
from dmc.device import index

NEVER = 0.01  # a class with less than this score is not there
Targets = Sequence[Mapping[str, Tensor]]  # for each image: boxes (M x 4, corners, pixels) and labels (M)


class Answers(NamedTuple):
    """A detector's outputs for a batch. All images of a batch have the same anchors, padded or not."""

    logits_NAK: Tensor  # log-odds of each class; SSD's are against its background class
    boxes_NAB: Tensor  # four box offsets, and with FCOS the logit of center-ness
    anchors_A4: Tensor  # corners, pixels; FCOS has a square around each point
    levels: list[int]  # the number of anchors on each level of the pyramid


class ImageList(NamedTuple):
    """What torchvision's anchor generators ask of a batch, as its class of that name has it."""

    tensors: Tensor
    image_sizes: list[tuple[int, int]]


class DetectorNetwork(nn.Module, ABC):
    """The interface of any detector."""

    background = 0  # outputs for the background at each anchor; they come before those of the classes
    fit: Fit = "frame"  # how it is shown images
    chooses_boxes = False  # whether which box it gives depends on the classes that are kept

    def kept(self, answers: Answers, columns: Sequence[int]) -> Answers:
        """Leave out the logits of all other classes, as if the detector had never known them."""
        return answers._replace(logits_NAK=answers.logits_NAK[..., index(tuple(columns), answers.logits_NAK.device)])

    @abstractmethod
    def scores(self, logits_NAK: Tensor, boxes_NAB: Tensor) -> Tensor:
        """Give the probability of each class at each anchor, which finds are ranked by."""

    @abstractmethod
    def decoded(self, boxes_MB: Tensor, anchors_M4: Tensor) -> Tensor:
        """Turn box offsets and their anchors into corners in pixels."""


class OneStage(DetectorNetwork):
    """The interface of a one-stage detector, mixed into torchvision's networks; their state dicts stay as they are."""

    backbone: nn.Module
    head: nn.Module
    anchor_generator: Any
    box_coder: Any
    compute_loss: Callable[..., dict[str, Tensor]]
    foreground, nothing_below = 0.65, 0.2  # as the scores of a trained RetinaNet fall beside an object
    frozen_norm = False  # do the backbone's batch norms stay as they came with the weights?

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
    def encoded(self, boxes_M4: Tensor, anchors_M4: Tensor) -> Tensor:
        """Turn corners in pixels into box offsets from their anchors: the reverse of `decoded`."""

    def nearness(self, boxes_M4: Tensor, anchors_A4: Tensor) -> Tensor:
        """Tell, from 0 to 1, how much each anchor is the one that should find each box, as in the family's training.

        From `foreground` on, an anchor says all that is known of the box; below `nothing_below`, nothing.
        """
        return overlaps(boxes_M4, anchors_A4)

    def logits_for(self, odds_MK: Tensor) -> Tensor:
        """Give the logits with which the network has these scores, given as log-odds."""
        return odds_MK

    def forward(self, images_N3HW: Tensor) -> Answers:
        features = list(self.backbone(images_N3HW).values())
        size = (images_N3HW.shape[-2], images_N3HW.shape[-1])
        exact = [feature.float() for feature in features]  # anchors take their type, and bf16 would move them by pixels
        anchors_A4 = self.anchor_generator(ImageList(images_N3HW[:1], [size]), exact)[0]
        logits_NAK, boxes_NAB = self.answer(self.head(features))
        places = [f.shape[-2] * f.shape[-1] for f in features]
        per_place = self.anchor_generator.num_anchors_per_location()
        levels = [count * each for count, each in zip(places, per_place, strict=True)]
        return Answers(logits_NAK, boxes_NAB, anchors_A4, levels)


def overlaps(boxes_XM4: Tensor, others_XA4: Tensor) -> Tensor:
    """Give the intersection over union of each box with each of the others; it is 0 for a box without an area."""
    left_XM1, top_XM1, right_XM1, bottom_XM1 = boxes_XM4[..., None].unbind(dim=-2)
    sides_X1A = others_XA4.mT.contiguous()[..., None, :]  # neighbours in memory are neighbours below: far faster
    left_X1A, top_X1A, right_X1A, bottom_X1A = sides_X1A.unbind(dim=-3)
    wide_XMA = torch.minimum(right_XM1, right_X1A).sub_(torch.maximum(left_XM1, left_X1A)).clamp_min_(0)
    tall_XMA = torch.minimum(bottom_XM1, bottom_X1A).sub_(torch.maximum(top_XM1, top_X1A)).clamp_min_(0)
    common_XMA = wide_XMA.mul_(tall_XMA)
    area_XM1 = (right_XM1 - left_XM1).clamp_min(0) * (bottom_XM1 - top_XM1).clamp_min(0) + 1e-6
    area_X1A = (right_X1A - left_X1A).clamp_min(0) * (bottom_X1A - top_X1A).clamp_min(0)
    return common_XMA.div_(torch.add(area_XM1, area_X1A, out=tall_XMA).sub_(common_XMA))


def gathered(values_NAX: Tensor, places_NS: Tensor) -> Tensor:
    """Take the rows of some anchors."""
    return values_NAX.gather(1, places_NS[..., None].expand(-1, -1, values_NAX.shape[2]))


def freeze_norms(body: nn.Module) -> None:
    """Put all batch norms in evaluation, and do not train them."""
    for norm in body.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.eval()
            for parameter in norm.parameters():
                parameter.requires_grad_(False)
