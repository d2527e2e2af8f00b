"""From a detector's name to its network.

Names are torchvision's, with other backbones beside:

    retinanet_resnet50_fpn, ..._resnet18_..., ..._resnet34_..., fcos_resnet50_fpn, ssd300_vgg16,
    ssdlite320_mobilenet_v3_large, retinanet:timm/NAME, fcos:timm/NAME

Settings follow: `retinanet:timm/tf_efficientnet_lite0,width=64,depth=2` has a pyramid of 64 channels and heads of two
layers; `scale=2` makes anchors twice the stride instead of four times; `norm=batch` trains all of the backbone, where
otherwise batch norm and the layers up to stride 4 stay as they came with the weights.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torchvision.models import VGG16_Weights, detection, get_model_weights, resnet, vgg16
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.fcos import FCOSHead
from torchvision.models.detection.retinanet import RetinaNetHead
from torchvision.models.detection.ssd import SSDFeatureExtractorVGG
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelP6P7

from dmc.errors import DmcError, first_line
from dmc.models.hub import downloading, quiet
from dmc.models.one_stage import STRIDES, EvenAnchors, FcosDetector, RetinaNetDetector, SsdDetector
from dmc.models.user_network import is_factory
from dmc.models.weights import begin_from, fetched, read_weights
from dmc.specs import split_spec

SETTINGS = ("width", "depth", "scale", "norm")  # they follow a detector's name
FAMILIES = re.compile(
    r"(retinanet|fcos)(?:_(resnet(?:18|34|50))_fpn|:timm/([\w.]+))|(ssd300_vgg16|ssdlite320_mobilenet_v3_large)"
)
SSD_IMAGES = {  # size, mean and standard deviation that torchvision's backbones and COCO weights want
    "ssd300_vgg16": (300, (0.48235, 0.45882, 0.40784), (1 / 255,) * 3),
    "ssdlite320_mobilenet_v3_large": (320, (0.5,) * 3, (0.5,) * 3),
}


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
            raise DmcError(f"{arch}: {useless[0]} is not a setting of {name}")
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
                self.family == "fcos" and (self.width < 64 or self.width % 32 != 0),  # a group of one would be all 0
                "FCOS normalises its heads in 32 groups, so width must be a multiple of 32, at least 64",
            ),
        )
        for wrong, words in problems:
            if wrong:
                raise DmcError(f"{arch}: {words}")


def is_detector(arch: str) -> bool:
    return re.match(r"(retinanet|fcos|ssd\d|ssdlite)", arch) is not None and not is_factory(arch)


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

    def __init__(self, body: nn.Module, levels: dict[int, int], width: int) -> None:
        """`levels`: which of its features to take, and how many channels they have."""
        super().__init__()
        self.body, self.levels, self.out_channels = body, levels, width
        self.fpn = FeaturePyramidNetwork(list(levels.values()), width, extra_blocks=LastLevelP6P7(width, width))

    def forward(self, images_N3HW: Tensor) -> dict[str, Tensor]:
        features = self.body(images_N3HW)
        if getattr(self.body, "output_fmt", "NCHW") == "NHWC":
            features = [level.permute(0, 3, 1, 2) for level in features]
        levels = [features[i] for i in self.levels]
        pyramid: dict[str, Tensor] = self.fpn(OrderedDict((str(i), level) for i, level in enumerate(levels)))
        return pyramid


def _timm_pyramid(plan: Blueprint, weights: str | None) -> TimmPyramid:
    import timm

    name = plan.backbone.removeprefix("timm/")
    try:
        overlay = {"state_dict": _whole(name, Path(weights))} if weights not in (None, "imagenet") else None
        fetching = downloading(
            f"ImageNet weights of timm/{name}", hint="; give a file of weights, or begin with random ones"
        )
        # timm would list the classifier's weights, which a backbone does not need.
        with fetching if weights == "imagenet" and timm.is_model(name) else quiet("timm"):
            make = partial(
                timm.create_model,
                name,
                features_only=True,
                pretrained=weights is not None,
                pretrained_cfg_overlay=overlay,
            )
            try:
                body = make(strict_img_size=False)  # Swin takes images of any size then
            except TypeError:  # most do so anyway, and do not know the setting
                body = make()
        strides, channels = list(body.feature_info.reduction()), body.feature_info.channels()
        if not {8, 16, 32} <= set(strides):
            raise DmcError(f"timm/{name} has features at strides {strides}, a pyramid needs 8, 16 and 32")
        levels = {strides.index(stride): channels[strides.index(stride)] for stride in (8, 16, 32)}
        if plan.norm == "frozen":
            _freeze_beginning(body, min(levels) - 1)
    except DmcError:
        raise
    except Exception as error:  # unknown names, no pyramid
        raise DmcError(f"cannot make a backbone of timm/{name}: {first_line(error)}") from None
    return TimmPyramid(body, levels, plan.width)


def _whole(name: str, weights: Path) -> dict[str, Tensor]:
    """All of a timm network's weights from a file. timm itself would leave what it lacks at random."""
    import timm

    network = timm.create_model(name)
    begin_from(network, read_weights(weights), weights, f"timm/{name}", network.num_classes)
    state: dict[str, Tensor] = network.state_dict()
    return state


def _freeze_beginning(body: nn.Module, last: int) -> None:
    """Keep the general first layers as they were pretrained: all that the features before stride 8 are made of. Where
    that is more than a quarter of the network (HRNet's finest features are made of all others), none is kept."""
    body.eval()
    if last >= 0:
        body(torch.zeros(1, 3, 64, 64))[last].sum().backward()
    first = [parameter for parameter in body.parameters() if parameter.grad is not None]
    keep = 4 * sum(p.numel() for p in first) < sum(p.numel() for p in body.parameters())
    for parameter in first:
        parameter.requires_grad_(not keep)
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
    url = get_model_weights(name).IMAGENET1K_V1.url  # those of the paper's time, and of torchvision's own detectors
    state = fetched(url, f"ImageNet weights of {name}") if weights == "imagenet" else read_weights(Path(weights))
    begin_from(body, state, Path(weights), name, class_count=1000)


def _ssd(plan: Blueprint, num_classes: int, weights: str | None) -> nn.Module:
    """torchvision builds it whole; only the class is ours."""
    make = getattr(detection, plan.backbone)
    network = make(weights=None, weights_backbone=None, num_classes=num_classes + 1)
    if weights is not None:
        network.backbone = _filled_vgg(plan.backbone, weights)
    network.requires_grad_(True)  # torchvision freezes VGG's first layers, which a saved detector would not tell
    size = SSD_IMAGES[plan.backbone][0]
    return SsdDetector(network.backbone, network.anchor_generator, (size, size), num_classes + 1, head=network.head)


def _filled_vgg(arch: str, weights: str) -> nn.Module:
    """VGG-16's features with the weights that SSD's normalisation belongs to, or a file's."""
    if arch != "ssd300_vgg16":
        raise DmcError(
            f"there are no ImageNet weights for the reduced tail of {arch}'s network; begin with random ones"
        )
    what = f"ImageNet weights of {arch}"
    url = VGG16_Weights.IMAGENET1K_FEATURES.url
    state = fetched(url, what) if weights == "imagenet" else read_weights(Path(weights))
    features = vgg16(init_weights=False).features
    own = {key.removeprefix("features."): value for key, value in state.items() if key.startswith("features.")}
    begin_from(features, own, Path(weights), arch, class_count=0)
    extractor: nn.Module = SSDFeatureExtractorVGG(features, highres=False)
    return extractor
