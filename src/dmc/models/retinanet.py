"""RetinaNet (Lin et al. 2017): focal loss, nine anchors at each place of a feature pyramid."""

from __future__ import annotations

from torch import Tensor, nn
from torchvision.models.detection.retinanet import RetinaNet, RetinaNetHead

from dmc.models.one_stage import Answers, OneStage, Targets
from dmc.models.pyramids import BACKBONES, STRIDES, PyramidFamily, PyramidSettings, StrideAnchorGenerator


class RetinaNetDetector(OneStage, RetinaNet):  # type: ignore[misc]
    def answer(self, head: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return head["cls_logits"], head["bbox_regression"]

    def objective(self, answers: Answers, targets: Targets) -> dict[str, Tensor]:
        head = {"cls_logits": answers.logits_NAK, "bbox_regression": answers.boxes_NAB}
        return self.compute_loss(targets, head, [answers.anchors_A4] * len(targets))

    def scores(self, logits_NAK: Tensor, boxes_NAB: Tensor) -> Tensor:
        return logits_NAK.sigmoid()

    def decoded(self, boxes_MB: Tensor, anchors_M4: Tensor) -> Tensor:
        corners: Tensor = self.box_coder.decode_single(boxes_MB, anchors_M4)
        return corners

    def encoded(self, boxes_M4: Tensor, anchors_M4: Tensor) -> Tensor:
        offsets: Tensor = self.box_coder.encode_single(boxes_M4, anchors_M4)
        return offsets


class RetinaNetFamily(PyramidFamily):
    """Detectors whose anchors are `scale` times the stride, with two sizes between that and the next level's."""

    pattern = f"retinanet{BACKBONES}"
    usage = "retinanet_resnet50_fpn (18, 34, 50) or retinanet:timm/NAME"
    network = RetinaNetDetector
    with_coco_weights = without_epsilon = ("retinanet_resnet50_fpn",)

    def with_heads(self, backbone: nn.Module, num_classes: int, plan: PyramidSettings) -> OneStage:
        sizes = tuple(tuple(int(plan.scale * stride * 2 ** (octave / 3)) for octave in range(3)) for stride in STRIDES)
        anchors = StrideAnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * len(STRIDES))
        head = RetinaNetHead(plan.width, anchors.num_anchors_per_location()[0], num_classes)
        for part in (head.classification_head, head.regression_head):
            part.conv = part.conv[: plan.depth]
        return RetinaNetDetector(backbone, num_classes, anchor_generator=anchors, head=head)
