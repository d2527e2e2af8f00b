"""How one network wants its images: size, mean and std, interpolation. It travels with the weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from dmc.device import per_channel
from dmc.errors import DmcError, require_known
from dmc.model_config import PretrainedCfg

Interpolation = Literal["nearest", "bilinear", "bicubic"]
CropMode = Literal["center", "squash"]


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes a network's input. The defaults are those of CIFAR-100, at 32x32.

    `size` is the side of the input in pixels. One mean and one std stand for a grey-scale network. `crop_pct` is the
    share of the shorter side that evaluation keeps, as in timm. So is `crop_mode`: `center` cuts the central square out
    of an image, `squash` gives up its proportions and keeps that share of both sides.
    """

    size: int = 32
    mean: tuple[float, ...] = (0.5071, 0.4865, 0.4409)
    std: tuple[float, ...] = (0.2673, 0.2564, 0.2762)
    interpolation: Interpolation = "bilinear"
    crop_pct: float = 1.0
    crop_mode: CropMode = "center"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise DmcError(f"input size {self.size} is not a positive number of pixels")
        if len(self.mean) != len(self.std) or len(self.mean) not in (1, 3):
            raise DmcError(f"mean {self.mean} and std {self.std} must both have 1 value or both have 3")
        if min(self.std) <= 0 or not 0 < self.crop_pct <= 1:
            raise DmcError(f"std {self.std} must be positive and crop_pct {self.crop_pct} in (0, 1]")
        require_known("interpolation", self.interpolation, get_args(Interpolation))
        require_known("crop_mode", self.crop_mode, get_args(CropMode))

    @property
    def channels(self) -> int:
        """The number of input channels: 1 for grey, 3 for RGB."""
        return len(self.mean)

    @property
    def settings(self) -> dict[str, Any]:
        """All values, as run.json holds them; runs of versions that knew one crop mode can be resumed."""
        return {key: value for key, value in asdict(self).items() if (key, value) != ("crop_mode", "center")}

    def __call__(self, images_N3HW: Tensor) -> Tensor:
        """Turn uint8 RGB images of any square size into this network's input, channels-last."""
        x = self.coloured(images_N3HW)
        return self.normalised(x if x.shape[-1] == self.size else self.resized(x))

    def coloured(self, images_N3HW: Tensor) -> Tensor:
        """Turn RGB images into floating-point pixels of this network's channels."""
        x = images_N3HW.to(torch.float32)
        if self.channels == 3:
            return x
        grey = per_channel((0.299, 0.587, 0.114), x.device)  # ITU-R 601, as PIL's "L"
        return (x * grey).sum(dim=1, keepdim=True)

    def resized(self, pixels_NCHW: Tensor) -> Tensor:
        """Resize square images to this network's size; those that have it stay as they are."""
        smooth = self.interpolation != "nearest"
        x = F.interpolate(pixels_NCHW, size=(self.size, self.size), mode=self.interpolation, antialias=smooth)
        return x.clamp(0, 255)  # bicubic overshoots

    def normalised(self, pixels_NCHW: Tensor) -> Tensor:
        """Turn pixel values from 0 to 255 into the network's range, channels-last."""
        x = pixels_NCHW.to(torch.float32)
        mean, std = per_channel(self.mean, x.device), per_channel(self.std, x.device)
        return ((x / 255 - mean) / std).contiguous(memory_format=torch.channels_last)


def preprocessing_in(cfg: PretrainedCfg) -> Preprocessing:
    """Read the preprocessing from timm's `pretrained_cfg`, which a saved model's config.json has, too."""
    channels, height, width = cfg.input_size
    if height != width:
        raise DmcError(f"{cfg.architecture}: input {height}x{width} is not square")
    return Preprocessing(
        size=height,
        mean=cfg.mean[:channels],
        std=cfg.std[:channels],
        interpolation=cast(Any, cfg.interpolation),
        crop_pct=min(cfg.crop_pct, 1.0),
        crop_mode="squash" if cfg.crop_mode == "squash" else "center",
    )
