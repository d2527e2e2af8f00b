"""How one network wants its images: size, mean and std, interpolation. It travels with the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from dmc.device import per_channel
from dmc.errors import DmcError

Interpolation = Literal["nearest", "bilinear", "bicubic"]


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes a network's input. The defaults are those of CIFAR-100, at 32x32.

    `size` is the side of the input in pixels. One mean and one std stand for a grey-scale network. `crop_pct` is the
    share of the shorter side that evaluation keeps, as in timm.
    """

    size: int = 32
    mean: tuple[float, ...] = (0.5071, 0.4865, 0.4409)
    std: tuple[float, ...] = (0.2673, 0.2564, 0.2762)
    interpolation: Interpolation = "bilinear"
    crop_pct: float = 1.0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise DmcError(f"input size {self.size} is not a positive number of pixels")
        if len(self.mean) != len(self.std) or len(self.mean) not in (1, 3):
            raise DmcError(f"mean {self.mean} and std {self.std} must both have 1 value or both have 3")
        if min(self.std) <= 0 or not 0 < self.crop_pct <= 1:
            raise DmcError(f"std {self.std} must be positive and crop_pct {self.crop_pct} in (0, 1]")
        if self.interpolation not in get_args(Interpolation):
            raise DmcError(
                f"unknown interpolation {self.interpolation!r}: use one of {', '.join(get_args(Interpolation))}"
            )

    @property
    def channels(self) -> int:
        """The number of input channels: 1 for grey, 3 for RGB."""
        return len(self.mean)

    def __call__(self, images_N3HW: Tensor) -> Tensor:
        """Turn uint8 RGB images of any square size into this network's input, channels-last."""
        x = images_N3HW.to(torch.float32)
        if self.channels == 1:
            grey = per_channel((0.299, 0.587, 0.114), x.device)  # ITU-R 601, as PIL's "L"
            x = (x * grey).sum(dim=1, keepdim=True)
        if x.shape[-1] != self.size:
            smooth = self.interpolation != "nearest"
            x = F.interpolate(x, size=(self.size, self.size), mode=self.interpolation, antialias=smooth)
            x = x.clamp(0, 255)  # bicubic overshoots
        return self.normalised(x)

    def normalised(self, pixels_NCHW: Tensor) -> Tensor:
        """Turn pixel values from 0 to 255 into the network's range, channels-last."""
        x = pixels_NCHW.to(torch.float32)
        mean, std = per_channel(self.mean, x.device), per_channel(self.std, x.device)
        return ((x / 255 - mean) / std).contiguous(memory_format=torch.channels_last)
