"""What the training loop passes around."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from dmc.data.augment import pad_crop_flip


@dataclass
class Batch:
    images_N3HW: Tensor  # uint8
    labels_N: Tensor

    def __len__(self) -> int:
        return len(self.images_N3HW)

    def to(self, device: torch.device) -> Self:
        return type(self)(self.images_N3HW.to(device), self.labels_N.to(device))

    def augmented(self, pad: int | None, flip: bool) -> Self:
        """The paper's pad, crop and flip."""
        pad = self.images_N3HW.shape[-1] // 8 if pad is None else pad
        return type(self)(pad_crop_flip(self.images_N3HW, pad, flip), self.labels_N)
