"""FCOS (Tian et al. 2019): points instead of anchors, and a center-ness for each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.fcos import FCOS, FCOSHead

from dmc.errors import DmcError
from dmc.models.one_stage import Answers, OneStage, Targets
from dmc.models.pyramids import BACKBONES, STRIDES, PyramidFamily, PyramidSettings, StrideAnchorGenerator


class FcosDetector(OneStage, FCOS):  # type: ignore[misc]
    center_sampling_radius: float
    foreground, nothing_below = 2e-3, 1e-3  # every point that has any center-ness should find its box

    def answer(self, head: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return head["cls_logits"], torch.cat([head["bbox_regression"], head["bbox_ctrness"]], dim=2)

    def objective(self, answers: Answers, targets: Targets) -> dict[str, Tensor]:
        head = {
            "cls_logits": answers.logits_NAK,
            "bbox_regression": answers.boxes_NAB[..., :4],
            "bbox_ctrness": answers.boxes_NAB[..., 4:],
        }
        anchors = [answers.anchors_A4] * len(targets)
        return self.compute_loss(targets, head, anchors, answers.levels)

    def scores(self, logits_NAK: Tensor, boxes_NAB: Tensor) -> Tensor:
        return (logits_NAK.sigmoid() * boxes_NAB[..., 4:].sigmoid()).sqrt()

    def decoded(self, boxes_MB: Tensor, anchors_M4: Tensor) -> Tensor:
        corners: Tensor = self.box_coder.decode(boxes_MB[:, :4], anchors_M4)
        return corners

    def encoded(self, boxes_M4: Tensor, anchors_M4: Tensor) -> Tensor:
        """Give the distances to the sides, and the logit of the center-ness that follows from them."""
        sides_M4 = self.box_coder.encode(anchors_M4, boxes_M4)
        center_M1 = centerness(sides_M4)[:, None].logit(eps=0.01)
        return torch.cat([sides_M4, center_M1], dim=1)

    def nearness(self, boxes_M4: Tensor, anchors_A4: Tensor) -> Tensor:
        """Give the center-ness of the points near the center of a box, on the level that is for boxes of its size."""
        centers_A2, size_A = (anchors_A4[:, :2] + anchors_A4[:, 2:]) / 2, anchors_A4[:, 2] - anchors_A4[:, 0]
        middles_M2 = (boxes_M4[:, :2] + boxes_M4[:, 2:]) / 2
        away_MA = (middles_M2[:, None] - centers_A2).abs().amax(dim=2)
        sides_MA4 = self.box_coder.encode(anchors_A4, boxes_M4[:, None]) * size_A[:, None]
        longest_MA = sides_MA4.amax(dim=2)
        least_A = torch.where(size_A == size_A.min(), 0, 4 * size_A)
        most_A = torch.where(size_A == size_A.max(), torch.inf, 8 * size_A)
        own_MA = away_MA < self.center_sampling_radius * size_A
        own_MA &= (sides_MA4.amin(dim=2) > 0) & (longest_MA > least_A) & (longest_MA < most_A)
        return torch.where(own_MA, centerness(sides_MA4), 0)

    def logits_for(self, odds_MK: Tensor) -> Tensor:
        """Give the log-odds of the squared scores: a score is the root of a class's probability times center-ness."""
        return 2 * F.logsigmoid(odds_MK) - F.logsigmoid(-odds_MK) - odds_MK.sigmoid().log1p()


def centerness(sides_X4: Tensor) -> Tensor:
    """Give FCOS's center-ness from the distances to left, top, right and bottom: 1 in the middle, 0 at a side."""
    across, down = sides_X4[..., 0::2].clamp_min(1e-6), sides_X4[..., 1::2].clamp_min(1e-6)
    return (across.amin(dim=-1) / across.amax(dim=-1) * down.amin(dim=-1) / down.amax(dim=-1)).sqrt()


class FcosFamily(PyramidFamily):
    """Detectors with one point at each place; a square of the stride's size around it is its anchor."""

    pattern = f"fcos{BACKBONES}"
    usage = "fcos_resnet50_fpn (18, 34, 50) or fcos:timm/NAME"
    network = FcosDetector
    with_coco_weights = ("fcos_resnet50_fpn",)

    def plan(self, arch: str) -> PyramidSettings:
        plan = super().plan(arch)
        if plan.width < 64 or plan.width % 32:  # a group of one channel would be all 0 where a level has one place
            raise DmcError(
                f"{arch}: FCOS normalises its heads in 32 groups, so width must be a multiple of 32, at least 64"
            )
        return plan

    def with_heads(self, backbone: nn.Module, num_classes: int, plan: PyramidSettings) -> OneStage:
        anchors = StrideAnchorGenerator(tuple((stride,) for stride in STRIDES), ((1.0,),) * len(STRIDES))
        head = FCOSHead(plan.width, 1, num_classes, num_convs=plan.depth)
        return FcosDetector(backbone, num_classes, anchor_generator=anchors, head=head)
