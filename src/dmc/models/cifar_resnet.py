"""ResNets for 32x32 images, as in section 4.2 of "Deep Residual Learning for Image Recognition" (He et al. 2016).

Depth 6n+2: three stages of n basic blocks with 16, 32 and 64 channels, identity shortcuts (option A).
No library has them: timm's and torchvision's ResNets are the ImageNet kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from dmc.errors import DmcError
from dmc.models.architecture_source import ClassifierSource

DEEPEST = 1202  # of the paper
USUAL_HEADS = re.compile(r"^(?:linear|classifier)\.")
USUAL_BLOCKS = re.compile(r"^(?:layer|stage)_?([123])\.(\d+)\.")


class BasicBlock(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.stride, self.added_channels = stride, out_channels - in_channels

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        if self.added_channels:  # option A: subsample, and fill the new channels with zeros
            half = self.added_channels // 2
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, self.added_channels - half))
        return F.relu(out + x, inplace=True)


class CifarResNet(nn.Module):
    """A ResNet with the parts of timm's interface that other code uses: `forward_features`, `reset_classifier`, ..."""

    def __init__(self, depth: int, num_classes: int = 100, in_chans: int = 3) -> None:
        super().__init__()
        if depth < 8 or depth % 6 != 2:
            raise DmcError(f"cifar_resnet{depth}: a CIFAR ResNet has depth 6n+2 (8, 14, 20, 26, 32, ...)")
        if depth > DEEPEST:
            raise DmcError(f"cifar_resnet{depth} is deeper than any that was trained: use at most {DEEPEST}")
        blocks_per_stage = (depth - 2) // 6
        self.depth, self.num_classes, self.num_features = depth, num_classes, 64
        self.conv1 = nn.Conv2d(in_chans, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        blocks, channels = [], 16
        for width, stride in ((16, 1), (32, 2), (64, 2)):
            for i in range(blocks_per_stage):
                blocks.append(BasicBlock(channels, width, stride if i == 0 else 1))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(64, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)
        nn.init.zeros_(self.fc.bias)

    def forward_features(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out: Tensor = self.blocks(x)
        return out

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = x.mean(dim=(2, 3))
        return x if pre_logits else self.fc(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def own_name(self, name: str) -> str:
        """Give the name here of a tensor that public implementations call `layer2.0.conv1.weight` or `linear.bias`."""
        if ".conv_a." in name:  # no tensor shows where a shortcut puts its zeros, but these names do
            raise DmcError(
                f"networks with names such as {name!r} pad their shortcuts with zeros behind the channels, "
                f"cifar_resnet{self.depth} pads them on both sides"
            )
        block = USUAL_BLOCKS.match(name)
        blocks = len(self.blocks) // 3
        if block is None or int(block[2]) >= blocks:  # not a block, or one of a deeper network
            return USUAL_HEADS.sub("fc.", name)
        return f"blocks.{(int(block[1]) - 1) * blocks + int(block[2])}.{name[block.end() :]}"

    def get_classifier(self) -> nn.Module:
        return self.fc

    def reset_classifier(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.fc = nn.Linear(self.num_features, num_classes).to(next(self.parameters()).device)


class CifarResNets(ClassifierSource):
    """`cifar_resnet32`, any depth 6n+2."""

    has_imagenet_weights = False

    def random(self, arch: str, num_classes: int, channels: int) -> nn.Module:
        return CifarResNet(int(arch.removeprefix("cifar_resnet")), num_classes, channels)


def register_with_timm() -> None:
    """Let `timm.create_model("cifar_resnet32")` work, so that saved folders are timm models too."""
    from timm.models import build_model_with_cfg, is_model, register_model

    def entrypoint(depth: int) -> Callable[..., nn.Module]:
        def create(pretrained: bool = False, **settings: Any) -> nn.Module:
            settings.setdefault("pretrained_cfg", {"num_classes": 0, "classifier": "fc", "first_conv": "conv1"})
            module: nn.Module = build_model_with_cfg(
                CifarResNet, f"cifar_resnet{depth}", pretrained, depth=depth, **settings
            )
            return module

        create.__name__, create.__module__ = f"cifar_resnet{depth}", __name__
        return create

    for depth in range(8, 111, 6):
        if not is_model(f"cifar_resnet{depth}"):
            register_model(entrypoint(depth))
