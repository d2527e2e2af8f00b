"""Feature pyramids on torchvision's ResNets and timm's networks, and what the detectors with a pyramid share.

    retinanet_resnet50_fpn, ..._resnet18_..., ..._resnet34_..., retinanet:timm/NAME; the same with fcos

Settings follow: `retinanet:timm/tf_efficientnet_lite0,width=64,depth=2` has a pyramid of 64 channels and heads of two
layers; `scale=2` makes anchors twice the stride instead of four times; `norm=batch` trains all of the backbone. Without
it, batch norm and the layers up to stride 4 stay as they came with the weights.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torchvision.models import get_model_weights, resnet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelP6P7

from dmc.data.preprocess import Preprocessing
from dmc.device import index
from dmc.errors import DmcError, first_line
from dmc.models.detector_family import DetectorFamily
from dmc.models.hub import INSTEAD, downloading, quiet
from dmc.models.one_stage import ImageList, OneStage
from dmc.models.weights import download_state_dict, load_backbone_weights, read_weights

BACKBONES = r"(?:_(resnet(?:18|34|50))_fpn|:timm/([\w.]+))"  # in a detector's name
STRIDES = (8, 16, 32, 64, 128)  # of P3 to P7
IMAGENET = Preprocessing(640, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # 640: the paper's shorter side


@dataclass(frozen=True)
class PyramidSettings:
    """What the name of a detector with a pyramid says."""

    backbone: str
    from_timm: bool
    width: int = 256
    depth: int = 4
    scale: float = 4.0
    norm: str = "frozen"  # frozen: it and the first layers stay as they came; batch: all of the backbone is trained

    def __post_init__(self) -> None:
        problems = (
            (self.norm not in ("frozen", "batch"), f"norm is frozen or batch, not {self.norm!r}"),
            (not 1 <= self.width <= 4096, "width is 1 to 4096"),
            (not 1 <= self.depth <= 4, "depth is 1 to 4"),
            (not 1 / 4 <= self.scale <= 64, "scale is 0.25 to 64"),  # below it, anchors have no area
        )
        for wrong, words in problems:
            if wrong:
                raise ValueError(words)


class PyramidFamily(DetectorFamily):
    """Detectors with a backbone, a feature pyramid on it, and heads that all of its levels share."""

    @abstractmethod
    def with_heads(self, backbone: nn.Module, num_classes: int, plan: PyramidSettings) -> OneStage:
        """Put the family's heads on a pyramid."""

    def canonical(self, arch: str) -> str:
        arch = super().canonical(arch)
        self.plan(arch)
        return arch

    def plan(self, arch: str) -> PyramidSettings:
        """Read the settings in a name; refuse a wrong one."""
        match, given = self.parsed(arch)
        types = {"width": int, "depth": int, "scale": float, "norm": str}
        try:
            settings = {key: types[key](value) for key, value in given.items()}
            return PyramidSettings(match[1] or match[2], match[2] is not None, **settings)
        except ValueError as error:
            raise DmcError(f"{arch}: {error}") from None

    def create(self, arch: str, num_classes: int, channels: int, weights: str | None) -> nn.Module:
        plan = self.plan(arch)
        backbone = _timm_pyramid(plan, weights) if plan.from_timm else _resnet_pyramid(plan, weights)
        network = self.with_heads(backbone, num_classes, plan)
        network.frozen_norm = plan.norm == "frozen"
        return network.train()

    def preprocessing(self, arch: str) -> Preprocessing:
        """Give ImageNet's mean and std, or those of the backbone; the shorter side has 640 pixels."""
        plan = self.plan(arch)
        if not plan.from_timm:
            return IMAGENET
        import timm

        cfg = timm.get_pretrained_cfg(plan.backbone)
        return replace(IMAGENET, mean=tuple(cfg.mean), std=tuple(cfg.std)) if cfg else IMAGENET

    def begun_at_random(self, arch: str) -> str:
        """Train the norms of a random backbone: it brings no statistics that could stay as they are."""
        if self.plan(arch).norm == "batch":
            return arch
        if "norm=" in arch:
            raise DmcError(f"{arch}: random weights cannot stay as they are; leave norm=frozen out")
        return f"{arch},norm=batch"


class StrideAnchorGenerator(AnchorGenerator):  # type: ignore[misc]
    """Anchors that lie a stride apart, as the features do.

    torchvision's anchors lie (image / grid) apart, which on the coarse levels of a small image is not the stride: an
    object would be looked for elsewhere when its batch is padded differently.
    """

    def forward(self, image_list: ImageList, feature_maps: list[Tensor]) -> list[Tensor]:
        like = feature_maps[0]
        self.set_cell_anchors(like.dtype, like.device)
        grids = [list(features.shape[-2:]) for features in feature_maps]
        strides = [[stride] * 2 for stride in index(STRIDES, like.device)]
        return [torch.cat(self.grid_anchors(grids, strides))] * len(image_list.image_sizes)


class TimmPyramid(nn.Module):
    """A timm network that gives features at strides 8, 16 and 32, with a pyramid on top."""

    def __init__(self, body: nn.Module, levels: dict[int, int], width: int) -> None:
        """Put a pyramid on `body`; `levels` maps the index of each feature map to take to its number of channels."""
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


def _timm_pyramid(plan: PyramidSettings, weights: str | None) -> TimmPyramid:
    import timm

    name = plan.backbone
    try:
        overlay = {"state_dict": _whole(name, Path(weights))} if weights not in (None, "imagenet") else None
        fetching = downloading(f"ImageNet weights of timm/{name}", hint=f"; {INSTEAD}")
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
            except TypeError:  # most networks take any size, and do not know the setting
                body = make()
        strides, channels = list(body.feature_info.reduction()), body.feature_info.channels()
        if not {8, 16, 32} <= set(strides):
            raise DmcError(f"timm/{name} has features at strides {strides}, a pyramid needs 8, 16 and 32")
        levels = {strides.index(stride): channels[strides.index(stride)] for stride in (8, 16, 32)}
        if plan.norm == "frozen":
            _freeze_beginning(body, min(levels) - 1)
    except DmcError:
        raise
    except Exception as error:  # an unknown name, or a network without feature maps
        raise DmcError(f"cannot make a backbone of timm/{name}: {first_line(error)}") from None
    return TimmPyramid(body, levels, plan.width)


def _whole(name: str, weights: Path) -> dict[str, Tensor]:
    """Read all of a timm network's weights from a file; timm itself would leave at random what the file lacks."""
    import timm

    network = timm.create_model(name)
    load_backbone_weights(network, read_weights(weights), weights, f"timm/{name}", network.num_classes)
    state: dict[str, Tensor] = network.state_dict()
    return state


def _freeze_beginning(body: nn.Module, last: int) -> None:
    """Freeze the general first layers, as they were pretrained: all that the features before stride 8 are made of.

    Where that is more than a quarter of the network (HRNet's finest features are made of all others), freeze nothing.
    """
    body.eval()
    if last >= 0:
        body(torch.zeros(1, 3, 64, 64))[last].sum().backward()
    first = [parameter for parameter in body.parameters() if parameter.grad is not None]
    keep = 4 * sum(p.numel() for p in first) < sum(p.numel() for p in body.parameters())
    for parameter in first:
        parameter.requires_grad_(not keep)
        parameter.grad = None


def _resnet_pyramid(plan: PyramidSettings, weights: str | None) -> BackboneWithFPN:
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
    state = (
        download_state_dict(url, f"ImageNet weights of {name}")
        if weights == "imagenet"
        else read_weights(Path(weights))
    )
    load_backbone_weights(body, state, Path(weights), name, class_count=1000)
