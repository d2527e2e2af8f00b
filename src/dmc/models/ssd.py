"""SSD (Liu et al. 2016): a background class, square images, and a normalisation of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torchvision.models import VGG16_Weights, detection, vgg16
from torchvision.models.detection.ssd import SSD, SSDFeatureExtractorVGG
from torchvision.ops import box_iou

from dmc.data.fitting import Fit
from dmc.data.preprocess import Preprocessing
from dmc.device import index
from dmc.errors import DmcError
from dmc.models.detector_family import DetectorFamily
from dmc.models.one_stage import NEVER, Answers, OneStage, Targets
from dmc.models.weights import download_state_dict, load_backbone_weights, read_weights

VGG, LITE = "ssd300_vgg16", "ssdlite320_mobilenet_v3_large"
IMAGES = {  # what torchvision's backbones and COCO weights were trained with
    VGG: Preprocessing(300, (0.48235, 0.45882, 0.40784), (1 / 255,) * 3),
    LITE: Preprocessing(320, (0.5,) * 3, (0.5,) * 3),
}


class SsdDetector(OneStage, SSD):  # type: ignore[misc]
    proposal_matcher: Callable[[Tensor], Tensor]
    background = 1
    fit: Fit = "stretch"

    def kept(self, answers: Answers, columns: Sequence[int]) -> Answers:
        """Leave out all other classes: what looks like one of them is background, so its probability goes there."""
        other_NAJ = _with_background(answers.logits_NAK)
        kept_K = index(tuple(columns), other_NAJ.device)
        other_NAJ[..., kept_K + 1] = -torch.inf
        background_NA1 = other_NAJ.logsumexp(dim=-1, keepdim=True)
        return answers._replace(logits_NAK=answers.logits_NAK[..., kept_K] - background_NA1)

    def answer(self, head: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        logits = head["cls_logits"]
        return logits[..., 1:] - logits[..., :1], head["bbox_regression"]

    def objective(self, answers: Answers, targets: Targets) -> dict[str, Tensor]:
        """Give SSD's losses with a background logit of 0: the softmax is the same, since logits are relative to it."""
        head = {"cls_logits": _with_background(answers.logits_NAK), "bbox_regression": answers.boxes_NAB}
        shifted = [{"boxes": target["boxes"], "labels": target["labels"] + 1} for target in targets]
        anchors = [answers.anchors_A4] * len(targets)
        matches = [self._matched(target["boxes"], answers.anchors_A4) for target in targets]
        return self.compute_loss(shifted, head, anchors, matches)

    def _matched(self, boxes_M4: Tensor, anchors_A4: Tensor) -> Tensor:
        if not len(boxes_M4):
            return torch.full((len(anchors_A4),), -1, dtype=torch.int64, device=anchors_A4.device)
        return self.proposal_matcher(box_iou(boxes_M4, anchors_A4))

    def scores(self, logits_NAK: Tensor, boxes_NAB: Tensor) -> Tensor:
        return _with_background(logits_NAK).softmax(dim=-1)[..., 1:]

    def decoded(self, boxes_MB: Tensor, anchors_M4: Tensor) -> Tensor:
        corners: Tensor = self.box_coder.decode_single(boxes_MB, anchors_M4)
        return corners

    def encoded(self, boxes_M4: Tensor, anchors_M4: Tensor) -> Tensor:
        offsets: Tensor = self.box_coder.encode_single(boxes_M4, anchors_M4)
        return offsets

    def logits_for(self, odds_MK: Tensor) -> Tensor:
        """Give the logits relative to the background, which is what is left if no class is there.

        A softmax adds up what all classes have. So those that are not there share the score that each has in a sigmoid.
        """
        share = NEVER / odds_MK.shape[-1]
        chances_MK = share + (odds_MK.sigmoid() - NEVER).clamp_min(0) * ((1 - share) / (1 - NEVER))
        return chances_MK.log() - torch.log1p(-chances_MK).sum(dim=-1, keepdim=True)


def _with_background(logits_NAK: Tensor) -> Tensor:
    """Put a background logit of 0 in front of those of the classes, which are relative to it."""
    return torch.cat([torch.zeros_like(logits_NAK[..., :1]), logits_NAK], dim=-1)


class SsdFamily(DetectorFamily):
    """Detectors that torchvision builds whole; only the class of the network is ours."""

    pattern = f"{VGG}|{LITE}"
    usage = f"{VGG} or {LITE}"
    network = SsdDetector
    with_coco_weights = (VGG, LITE)

    def create(self, arch: str, num_classes: int, channels: int, weights: str | None) -> nn.Module:
        make = getattr(detection, arch)
        network = make(weights=None, weights_backbone=None, num_classes=num_classes + 1)
        if weights is not None:
            network.backbone = _filled_vgg(arch, weights)
        network.requires_grad_(True)  # torchvision freezes VGG's first layers, which a saved model would not tell
        size = IMAGES[arch].size
        return SsdDetector(network.backbone, network.anchor_generator, (size, size), num_classes + 1, head=network.head)

    def preprocessing(self, arch: str) -> Preprocessing:
        return IMAGES[arch]

    def usual_weights(self, arch: str) -> str | None:
        return "imagenet" if self.bare(arch) == VGG else None

    def only_size(self, arch: str) -> int | None:
        # torchvision has its anchors a fixed number of pixels apart, which fits the features of such images alone.
        return IMAGES[VGG].size if self.bare(arch) == VGG else None


def _filled_vgg(arch: str, weights: str) -> nn.Module:
    """Make VGG-16's features with a file's weights, or with those ImageNet weights that have SSD's normalisation."""
    if arch != VGG:
        raise DmcError(f"there are no ImageNet weights for the reduced tail of {arch}'s network; use random ones")
    url = VGG16_Weights.IMAGENET1K_FEATURES.url
    state = (
        download_state_dict(url, f"ImageNet weights of {arch}")
        if weights == "imagenet"
        else read_weights(Path(weights))
    )
    features = vgg16(init_weights=False).features
    own = {key.removeprefix("features."): value for key, value in state.items() if key.startswith("features.")}
    load_backbone_weights(features, own, Path(weights), arch, class_count=0)
    extractor: nn.Module = SSDFeatureExtractorVGG(features, highres=False)
    return extractor
