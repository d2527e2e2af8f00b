"""One-stage detectors behind one small interface: class logits and a box for each anchor (or point) of an image.

The networks and their training losses are torchvision's; `dmc.models.blueprint` puts them together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.fcos import FCOS
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.retinanet import RetinaNet
from torchvision.models.detection.ssd import SSD
from torchvision.ops import box_iou

STRIDES = (8, 16, 32, 64, 128)  # of P3 to P7
Targets = Sequence[Mapping[str, Tensor]]  # for each image: boxes (M x 4, corners, pixels) and labels (M)


class Answers(NamedTuple):
    """What a detector says about a batch. Padded or not, all images of a batch have the same anchors."""

    logits_NAK: Tensor  # log-odds of each class; SSD's are against its background class
    boxes_NAB: Tensor  # four box offsets, and with FCOS the logit of being central
    anchors_A4: Tensor  # corners, pixels; FCOS has a square around each point
    levels: list[int]  # anchors on each level of the pyramid


class EvenAnchors(AnchorGenerator):  # type: ignore[misc]
    """Anchors where the features are. torchvision's lie (image / grid) apart, which on the coarse levels of a small
    image is not the stride: an object would be looked for elsewhere when its batch is padded differently."""

    def forward(self, image_list: ImageList, feature_maps: list[Tensor]) -> list[Tensor]:
        like = feature_maps[0]
        self.set_cell_anchors(like.dtype, like.device)
        grids = [list(features.shape[-2:]) for features in feature_maps]
        strides = [[torch.tensor(stride, device=like.device)] * 2 for stride in STRIDES]
        return [torch.cat(self.grid_anchors(grids, strides))] * len(image_list.image_sizes)


class OneStage(ABC):
    """Mixed into torchvision's networks, whose state dicts stay as they are."""

    background = 0  # outputs at each anchor in front of those of the classes
    stretches = False  # does it want a square, whatever the image's shape?
    frozen_norm = False  # do the backbone's batch norms stay as they came with the weights?

    def kept(self, answers: Answers, columns: Sequence[int]) -> Answers:
        """The answers of a detector that should not know the other classes."""
        return answers._replace(logits_NAK=answers.logits_NAK[..., list(columns)])

    def train(self, mode: bool = True) -> Self:
        """A frozen batch norm is one in evaluation: a single fused step, where torchvision's and timm's take two."""
        network: Any = super()
        network.train(mode)
        if self.frozen_norm:
            freeze_norms(cast(Any, self).backbone)
        return self

    @abstractmethod
    def answer(self, head: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Logits and boxes from what the head gives."""

    @abstractmethod
    def objective(self, answers: Answers, targets: Targets) -> dict[str, Tensor]:
        """The family's own training loss, in parts."""

    @abstractmethod
    def scores(self, logits_NAK: Tensor, boxes_NAB: Tensor) -> Tensor:
        """The probability of each class at each anchor, as it is ranked by."""

    @abstractmethod
    def decoded(self, boxes_MB: Tensor, anchors_M4: Tensor) -> Tensor:
        """Corners in pixels."""

    def forward(self, images_N3HW: Tensor) -> Answers:
        network: Any = self
        features = list(network.backbone(images_N3HW).values())
        size = (int(images_N3HW.shape[-2]), int(images_N3HW.shape[-1]))
        anchors_A4 = network.anchor_generator(ImageList(images_N3HW[:1], [size]), features[:])[0]
        logits_NAK, boxes_NAB = self.answer(network.head(features))
        places = [f.shape[-2] * f.shape[-1] for f in features]
        per_place = network.anchor_generator.num_anchors_per_location()
        levels = [count * each for count, each in zip(places, per_place, strict=True)]
        return Answers(logits_NAK, boxes_NAB, anchors_A4, levels)


class RetinaNetDetector(OneStage, RetinaNet):  # type: ignore[misc]
    def answer(self, head: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return head["cls_logits"], head["bbox_regression"]

    def objective(self, answers: Answers, targets: Targets) -> dict[str, Tensor]:
        head = {"cls_logits": answers.logits_NAK, "bbox_regression": answers.boxes_NAB}
        losses: dict[str, Tensor] = self.compute_loss(targets, head, [answers.anchors_A4] * len(targets))
        return losses

    def scores(self, logits_NAK: Tensor, boxes_NAB: Tensor) -> Tensor:
        return logits_NAK.sigmoid()

    def decoded(self, boxes_MB: Tensor, anchors_M4: Tensor) -> Tensor:
        corners: Tensor = self.box_coder.decode_single(boxes_MB, anchors_M4)
        return corners


class FcosDetector(OneStage, FCOS):  # type: ignore[misc]
    def answer(self, head: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return head["cls_logits"], torch.cat([head["bbox_regression"], head["bbox_ctrness"]], dim=2)

    def objective(self, answers: Answers, targets: Targets) -> dict[str, Tensor]:
        head = {
            "cls_logits": answers.logits_NAK,
            "bbox_regression": answers.boxes_NAB[..., :4],
            "bbox_ctrness": answers.boxes_NAB[..., 4:],
        }
        anchors = [answers.anchors_A4] * len(targets)
        losses: dict[str, Tensor] = self.compute_loss(targets, head, anchors, answers.levels)
        return losses

    def scores(self, logits_NAK: Tensor, boxes_NAB: Tensor) -> Tensor:
        return (logits_NAK.sigmoid() * boxes_NAB[..., 4:].sigmoid()).sqrt()

    def decoded(self, boxes_MB: Tensor, anchors_M4: Tensor) -> Tensor:
        corners: Tensor = self.box_coder.decode(boxes_MB[:, :4], anchors_M4)
        return corners


class SsdDetector(OneStage, SSD):  # type: ignore[misc]
    background = 1
    stretches = True

    def kept(self, answers: Answers, columns: Sequence[int]) -> Answers:
        """What looks like another class is background: its probability goes there."""
        other_NAJ = _with_background(answers.logits_NAK)
        other_NAJ[..., [column + 1 for column in columns]] = -torch.inf
        background_NA1 = other_NAJ.logsumexp(dim=-1, keepdim=True)
        return answers._replace(logits_NAK=answers.logits_NAK[..., list(columns)] - background_NA1)

    def answer(self, head: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        logits = head["cls_logits"]
        return logits[..., 1:] - logits[..., :1], head["bbox_regression"]

    def objective(self, answers: Answers, targets: Targets) -> dict[str, Tensor]:
        """A softmax does not change when the background's logit is taken to be 0."""
        head = {"cls_logits": _with_background(answers.logits_NAK), "bbox_regression": answers.boxes_NAB}
        shifted = [{"boxes": target["boxes"], "labels": target["labels"] + 1} for target in targets]
        anchors = [answers.anchors_A4] * len(targets)
        matches = [self._matched(target["boxes"], answers.anchors_A4) for target in targets]
        losses: dict[str, Tensor] = self.compute_loss(shifted, head, anchors, matches)
        return losses

    def _matched(self, boxes_M4: Tensor, anchors_A4: Tensor) -> Tensor:
        if not len(boxes_M4):
            return torch.full((len(anchors_A4),), -1, dtype=torch.int64, device=anchors_A4.device)
        found: Tensor = self.proposal_matcher(box_iou(boxes_M4, anchors_A4))
        return found

    def scores(self, logits_NAK: Tensor, boxes_NAB: Tensor) -> Tensor:
        return _with_background(logits_NAK).softmax(dim=-1)[..., 1:]

    def decoded(self, boxes_MB: Tensor, anchors_M4: Tensor) -> Tensor:
        corners: Tensor = self.box_coder.decode_single(boxes_MB, anchors_M4)
        return corners


def _with_background(logits_NAK: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(logits_NAK[..., :1]), logits_NAK], dim=-1)


def freeze_norms(body: nn.Module) -> None:
    for norm in body.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.eval()
            for parameter in norm.parameters():
                parameter.requires_grad_(False)
