"""One-stage detectors behind one small interface: class logits and a box for each anchor (or point) of an image.

The networks and their training losses are torchvision's. Names are torchvision's too, with other backbones beside:

    retinanet_resnet50_fpn, ..._resnet18_..., ..._resnet34_..., fcos_resnet50_fpn, ssd300_vgg16,
    ssdlite320_mobilenet_v3_large, retinanet:timm/NAME, fcos:timm/NAME

Settings follow: `retinanet:timm/tf_efficientnet_lite0,width=64,depth=2` has a pyramid of 64 channels and heads of two
layers; `scale=2` makes anchors twice the stride instead of four times; `norm=batch` trains all of the backbone, where
otherwise batch norm and the layers up to stride 4 stay as they came with the weights.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torchvision.models import detection, resnet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.fcos import FCOS, FCOSHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.retinanet import RetinaNet, RetinaNetHead
from torchvision.models.detection.ssd import SSD
from torchvision.ops import box_iou
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelP6P7

from dmc.errors import DmcError, first_line
from dmc.models.weights import read_weights
from dmc.specs import split_spec

SETTINGS = ("width", "depth", "scale", "norm")  # they follow a detector's name
STRIDES = (8, 16, 32, 64, 128)  # of P3 to P7
FAMILIES = re.compile(
    r"(retinanet|fcos)(?:_(resnet(?:18|34|50))_fpn|:timm/([\w.]+))|(ssd300_vgg16|ssdlite320_mobilenet_v3_large)"
)
SSD_IMAGES = {  # size, mean and standard deviation that torchvision's backbones and COCO weights want
    "ssd300_vgg16": (300, (0.48235, 0.45882, 0.40784), (1 / 255,) * 3),
    "ssdlite320_mobilenet_v3_large": (320, (0.5,) * 3, (0.5,) * 3),
}
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


@dataclass(frozen=True)
class Blueprint:
    """A detector's name, taken apart."""

    family: str
    backbone: str  # `resnet50`, `timm/NAME` or the SSD's whole name
    width: int
    depth: int
    scale: float
    norm: str  # frozen: as it came with the weights, like the first layers; batch: all of the backbone is trained

    @classmethod
    def of(cls, arch: str) -> Blueprint:
        name, settings = split_spec(arch, SETTINGS)
        match = FAMILIES.fullmatch(name)
        if match is None:
            raise DmcError(
                f"unknown detector {name!r}: use retinanet_resnet50_fpn (18, 34, 50), fcos_resnet50_fpn, "
                "ssd300_vgg16, ssdlite320_mobilenet_v3_large, retinanet:timm/NAME or fcos:timm/NAME"
            )
        family, resnet_name, timm_name, ssd = match.groups()
        useless = [key for key in settings if ssd or (family == "fcos" and key == "scale")]
        if useless:
            raise DmcError(f"{arch}: {useless[0]} is no setting of {name}")
        try:
            plan = cls(
                family or "ssd",
                resnet_name or (f"timm/{timm_name}" if timm_name else ssd),
                int(settings.get("width", 256)),
                int(settings.get("depth", 4)),
                float(settings.get("scale", 4)),
                settings.get("norm", "frozen"),
            )
        except ValueError as error:
            raise DmcError(f"{arch}: {error}") from None
        plan.check(arch)
        return plan

    def check(self, arch: str) -> None:
        problems = (
            (self.norm not in ("frozen", "batch"), f"norm is frozen or batch, not {self.norm!r}"),
            (self.width < 1, "width must be at least 1"),
            (not 1 <= self.depth <= 4, "depth is 1 to 4"),
            (not 1 / 8 <= self.scale <= 64, "scale is 0.125 to 64"),
            (
                self.family == "fcos" and bool(self.width % 64),
                "FCOS normalises its heads in 32 groups, so width must be a multiple of 64",
            ),
        )
        for wrong, words in problems:
            if wrong:
                raise DmcError(f"{arch}: {words}")


def is_detector(arch: str) -> bool:
    return re.match(r"(retinanet|fcos|ssd\d|ssdlite)", arch) is not None


def freeze_norms(body: nn.Module) -> None:
    for norm in body.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.eval()
            for parameter in norm.parameters():
                parameter.requires_grad_(False)


def create_detector(arch: str, num_classes: int, weights: str | None = None) -> nn.Module:
    """A network with random heads; its backbone's weights are random, `imagenet`, or a file's."""
    plan = Blueprint.of(arch)
    if plan.family == "ssd":
        return _ssd(plan, num_classes, weights)
    network = _with_pyramid(plan, num_classes, weights)
    network.frozen_norm = plan.norm == "frozen"
    return network.train()


def _with_pyramid(plan: Blueprint, num_classes: int, weights: str | None) -> RetinaNetDetector | FcosDetector:
    backbone = _timm_pyramid(plan, weights) if plan.backbone.startswith("timm/") else _resnet_pyramid(plan, weights)
    if plan.family == "fcos":
        anchors = EvenAnchors(tuple((stride,) for stride in STRIDES), ((1.0,),) * len(STRIDES))
        head = FCOSHead(plan.width, 1, num_classes, num_convs=plan.depth)
        return FcosDetector(backbone, num_classes, anchor_generator=anchors, head=head)
    sizes = tuple(tuple(int(plan.scale * stride * 2 ** (octave / 3)) for octave in range(3)) for stride in STRIDES)
    anchors = EvenAnchors(sizes, ((0.5, 1.0, 2.0),) * len(STRIDES))
    head = RetinaNetHead(plan.width, anchors.num_anchors_per_location()[0], num_classes)
    for part in (head.classification_head, head.regression_head):
        part.conv = part.conv[: plan.depth]
    return RetinaNetDetector(backbone, num_classes, anchor_generator=anchors, head=head)


class TimmPyramid(nn.Module):
    """Any timm network that gives features at strides 8, 16 and 32, with a pyramid on top."""

    def __init__(self, body: nn.Module, channels: list[int], width: int) -> None:
        super().__init__()
        self.body, self.out_channels = body, width
        self.fpn = FeaturePyramidNetwork(channels, width, extra_blocks=LastLevelP6P7(width, width))

    def forward(self, images_N3HW: Tensor) -> dict[str, Tensor]:
        levels = self.body(images_N3HW)[-3:]
        pyramid: dict[str, Tensor] = self.fpn(OrderedDict((str(i), level) for i, level in enumerate(levels)))
        return pyramid


def _timm_pyramid(plan: Blueprint, weights: str | None) -> TimmPyramid:
    import timm

    name = plan.backbone.removeprefix("timm/")
    try:
        overlay = {"state_dict": _fitting(name, Path(weights))} if weights not in (None, "imagenet") else None
        with _quiet("timm"):  # it would list the classifier's weights, which a backbone does not need
            body = timm.create_model(
                name, features_only=True, pretrained=weights is not None, pretrained_cfg_overlay=overlay
            )
    except DmcError:
        raise
    except Exception as error:  # unknown names, no pyramid, no network
        raise DmcError(f"cannot make a backbone of timm/{name}: {first_line(error)}") from None
    strides, channels = body.feature_info.reduction(), body.feature_info.channels()
    if list(strides[-3:]) != [8, 16, 32]:
        raise DmcError(f"timm/{name} has features at strides {strides}, a pyramid needs 8, 16 and 32 as the last")
    if plan.norm == "frozen":
        _freeze_beginning(body)
    return TimmPyramid(body, list(channels[-3:]), plan.width)


@contextmanager
def _quiet(library: str) -> Iterator[None]:
    logger = logging.getLogger(library)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _fitting(name: str, weights: Path) -> dict[str, Tensor]:
    """A timm network's weights from a file. timm itself would leave what it lacks at random."""
    import timm

    tensors, whole = read_weights(weights), timm.create_model(name)
    head = {id(tensor) for tensor in whole.get_classifier().state_dict(keep_vars=True).values()}
    for key, own in whole.state_dict(keep_vars=True).items():
        if id(own) not in head and not key.endswith("num_batches_tracked"):
            if key not in tensors:
                raise DmcError(f"{weights} does not fit timm/{name}: it lacks {key!r}")
            if tensors[key].shape != own.shape:
                raise DmcError(f"{weights} does not fit timm/{name}: {key!r} has shape {tuple(tensors[key].shape)}")
    return tensors


def _freeze_beginning(body: nn.Module) -> None:
    """Keep the general first layers as they were pretrained: all that the features at stride 4 are made of."""
    body.eval()
    levels = body(torch.zeros(1, 3, 64, 64))
    if len(levels) > 3:
        levels[-4].sum().backward()
    for parameter in body.parameters():
        parameter.requires_grad_(parameter.grad is None)
        parameter.grad = None


def _resnet_pyramid(plan: Blueprint, weights: str | None) -> BackboneWithFPN:
    body = getattr(resnet, plan.backbone)(weights=None)
    if weights is not None:
        _fill_resnet(body, plan.backbone, weights)
    if plan.norm == "frozen":
        for name, parameter in body.named_parameters():  # as torchvision does by default
            parameter.requires_grad_(name.startswith(("layer2", "layer3", "layer4")))
    first = body.inplanes // 8
    layers = {"layer2": "0", "layer3": "1", "layer4": "2"}
    extra = LastLevelP6P7(plan.width, plan.width)
    return BackboneWithFPN(body, layers, [first * 2, first * 4, first * 8], plan.width, extra_blocks=extra)


def _fill_resnet(body: nn.Module, name: str, weights: str) -> None:
    if weights == "imagenet":
        from torchvision.models import get_model_weights

        try:
            state = torch.hub.load_state_dict_from_url(
                get_model_weights(name).DEFAULT.url, map_location="cpu", weights_only=True, check_hash=True
            )
        except Exception as error:
            raise DmcError(
                f"cannot get ImageNet weights of {name}: {first_line(error)}; give a file or random"
            ) from None
    else:
        state = read_weights(Path(weights))
    missing, _ = body.load_state_dict({k: v for k, v in state.items() if not k.startswith("fc.")}, strict=False)
    lacking = [key for key in missing if not key.startswith("fc.")]
    if lacking:
        raise DmcError(f"{weights} does not fit {name}: it lacks {lacking[0]!r}")


def _ssd(plan: Blueprint, num_classes: int, weights: str | None) -> nn.Module:
    """torchvision builds it whole; only the class is ours."""
    make = partial(getattr(detection, plan.backbone), weights=None, num_classes=num_classes + 1)
    try:
        network = make(weights_backbone="DEFAULT" if weights == "imagenet" else None)
    except Exception as error:
        raise DmcError(f"cannot get ImageNet weights of {plan.backbone}: {first_line(error)}") from None
    if weights not in (None, "imagenet"):
        raise DmcError(f"{plan.backbone} takes weights imagenet or random, not a file")
    network.requires_grad_(True)  # torchvision freezes VGG's first layers, which a saved detector would not tell
    size = SSD_IMAGES[plan.backbone][0]
    return SsdDetector(network.backbone, network.anchor_generator, (size, size), num_classes + 1, head=network.head)
