"""A batch of images, which loaders give to the training loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from dmc.data.augment import pad_crop_flip


@dataclass
class Batch:
    """Images of one shape and their labels."""

    images_N3HW: Tensor  # uint8
    labels_N: Tensor

    def __len__(self) -> int:
        return len(self.images_N3HW)

    def to(self, device: torch.device) -> Self:
        return type(self)(self.images_N3HW.to(device), self.labels_N.to(device))

    def augmented(self, pad: int | None, flip: bool) -> Self:
        """Pad, crop and flip as the paper does; `pad` is in pixels, None for an eighth of the width."""
        pad = self.images_N3HW.shape[-1] // 8 if pad is None else pad
        return type(self)(pad_crop_flip(self.images_N3HW, pad, flip), self.labels_N)
