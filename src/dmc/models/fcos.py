"""FCOS (Tian et al. 2019): points instead of anchors, and a center-ness for each."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchvision.models.detection.fcos import FCOS, FCOSHead

from dmc.errors import DmcError
from dmc.models.one_stage import Answers, OneStage, Targets
from dmc.models.pyramids import BACKBONES, STRIDES, PyramidFamily, PyramidSettings, StrideAnchorGenerator


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
        return self.compute_loss(targets, head, anchors, answers.levels)

    def scores(self, logits_NAK: Tensor, boxes_NAB: Tensor) -> Tensor:
        return (logits_NAK.sigmoid() * boxes_NAB[..., 4:].sigmoid()).sqrt()

    def decoded(self, boxes_MB: Tensor, anchors_M4: Tensor) -> Tensor:
        corners: Tensor = self.box_coder.decode(boxes_MB[:, :4], anchors_M4)
        return corners


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
