"""Faster R-CNN (Ren et al. 2015): a second stage classifies proposals of the first. It teaches, but is no student."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import detection
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.image_list import ImageList

from dmc.data.preprocess import Preprocessing
from dmc.device import index
from dmc.models.detector_family import DetectorFamily
from dmc.models.free_boxes import NOTHING, FreeBoxes, free_boxes
from dmc.models.one_stage import Answers
from dmc.models.pyramids import IMAGENET

# torchvision's names, and the shorter side of the images that it shows each
SIZES = {
    "fasterrcnn_resnet50_fpn": 800,
    "fasterrcnn_resnet50_fpn_v2": 800,
    "fasterrcnn_mobilenet_v3_large_fpn": 800,
    "fasterrcnn_mobilenet_v3_large_320_fpn": 320,
}


class FasterRcnnDetector(FreeBoxes, FasterRCNN):  # type: ignore[misc]
    """torchvision's network without its resizing and suppression: all proposals, with all of their classes."""

    backbone: nn.Module
    rpn: Any
    roi_heads: Any
    background = 1
    chooses_boxes = True

    def kept(self, answers: Answers, columns: Sequence[int]) -> Answers:
        """Give each proposal the box of the most probable class that is kept: every class has a box of its own."""
        found = super().kept(answers, columns)
        best_NA = index(tuple(columns), found.logits_NAK.device)[found.logits_NAK.argmax(dim=2)]
        boxes_NAJ4 = answers.boxes_NAB.view(*answers.boxes_NAB.shape[:2], -1, 4)
        boxes_NA4 = boxes_NAJ4.gather(2, best_NA[..., None, None].expand(-1, -1, 1, 4))[:, :, 0]
        return found._replace(boxes_NAB=boxes_NA4, anchors_A4=torch.zeros_like(boxes_NA4[0]))

    def forward(self, images_N3HW: Tensor) -> Answers:
        # Anchors take the features' type, and bf16 would move them by pixels.
        features = {name: level.float() for name, level in self.backbone(images_N3HW).items()}
        sizes = [(int(images_N3HW.shape[2]), int(images_N3HW.shape[3]))] * len(images_N3HW)
        proposals, _ = self.rpn(ImageList(images_N3HW, sizes), features)
        pooled = self.roi_heads.box_head(self.roi_heads.box_roi_pool(features, proposals, sizes))
        logits_PJ, offsets_PX = self.roi_heads.box_predictor(pooled)
        scores_PK = logits_PJ.float().softmax(dim=1)[:, 1:]
        boxes_PJ4 = self.roi_heads.box_coder.decode(offsets_PX.float(), proposals)
        boxes_PX = boxes_PJ4[:, 1:].flatten(1)  # of each class; the first is the background's
        counts = [len(own) for own in proposals]
        most = max(self.rpn.post_nms_top_n(), 1)  # as many for every image, whatever it shows
        boxes, odds = torch.split(boxes_PX, counts), torch.split(scores_PK.logit(eps=1e-6), counts)
        return free_boxes(padded(boxes, most, 0.0), padded(odds, most, NOTHING))


def padded(rows: tuple[Tensor, ...], count: int, value: float) -> Tensor:
    """Stack tables of different lengths, filled up to `count` rows."""
    return torch.stack([F.pad(own, (0, 0, 0, count - len(own)), value=value) for own in rows])


class FasterRcnnFamily(DetectorFamily):
    """Detectors that torchvision builds whole; only the class of the network is ours."""

    pattern = "|".join(SIZES)
    usage = "fasterrcnn_resnet50_fpn and others of torchvision's (as teachers)"
    network = FasterRcnnDetector
    with_coco_weights = tuple(SIZES)
    without_epsilon = ("fasterrcnn_resnet50_fpn",)
    can_learn = False

    def create(self, arch: str, num_classes: int, channels: int, weights: str | None) -> nn.Module:
        module: nn.Module = getattr(detection, arch)(weights=None, weights_backbone=None, num_classes=num_classes + 1)
        module.__class__ = FasterRcnnDetector  # its functions build the parts that differ, and take no class
        return module

    def preprocessing(self, arch: str) -> Preprocessing:
        return Preprocessing(SIZES[arch], IMAGENET.mean, IMAGENET.std)
