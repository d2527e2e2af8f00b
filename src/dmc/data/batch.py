"""A batch of images, which loaders give to the training loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from dmc.data.augment import content_ids, crop_and_flip, stored_corners, stored_mirrored


@dataclass
class Batch:
    """Images of one shape and their labels. With several processes, it is one's share of the step's whole batch."""

    images_N3HW: Tensor  # uint8
    labels_N: Tensor
    positions_N: Tensor | None = field(default=None, kw_only=True)  # in the whole batch; None: this is all of it
    whole: int | None = field(default=None, kw_only=True)  # size of the whole batch; None: this is all of it
    ids_N: Tensor | None = field(default=None, kw_only=True)  # hashes of the images, on the CPU; None: not asked for
    view: int | None = field(default=None, kw_only=True)  # the stored view to augment to; None: drawn at random

    def __len__(self) -> int:
        return len(self.images_N3HW)

    @property
    def pictures(self) -> list[Tensor]:
        """The pixels of each image alone, as a person would look at it."""
        return list(self.images_N3HW)

    def to(self, device: torch.device) -> Self:
        """Copy it from the host to a device; nobody waits until it is there, and what comes next on the device does."""
        return self.moved(lambda tensor: tensor.to(device, non_blocking=True))

    def moved(self, move: Callable[[Tensor], Tensor]) -> Self:
        """Apply a function to the tensors that training needs on the device."""
        return replace(self, images_N3HW=move(self.images_N3HW), labels_N=move(self.labels_N))

    def in_view(self, view: int) -> Self:
        """Choose one of the images' stored views for the augmentation."""
        ids_N = content_ids(self.images_N3HW) if self.ids_N is None else self.ids_N
        return replace(self, ids_N=ids_N, view=view)

    def augmented(self, pad: int | None, flip: bool) -> Self:
        """Pad, crop and flip as the paper does; `pad` is in pixels, None for an eighth of the width.

        Random numbers come from torch's global generator, which the training loop seeds for each step.
        """
        pad = self.images_N3HW.shape[-1] // 8 if pad is None else pad
        corners_2N, mirrored_N = self.corners(pad), self.mirrored(flip)
        return replace(self, images_N3HW=crop_and_flip(self.images_N3HW, pad, corners_2N, mirrored_N))

    def corners(self, pad: int) -> Tensor:
        """Give the corner at which each padded image is cropped, on the CPU."""
        if self.view is not None and self.ids_N is not None:
            return stored_corners(self.ids_N, self.view, pad)
        return self._drawn(lambda n: torch.randint(0, 2 * pad + 1, (2, n)))

    def mirrored(self, flip: bool) -> Tensor:
        """Tell which images are mirrored, half of them if `flip`; on the CPU."""
        if self.view is not None and self.ids_N is not None:
            return stored_mirrored(self.ids_N, self.view, flip)
        return self._drawn(lambda n: torch.rand(n) < (0.5 if flip else 0.0))

    def _drawn(self, draw: Callable[[int], Tensor]) -> Tensor:
        """Draw for the whole batch and take this share's part, so that processes together draw as one would."""
        drawn = draw(len(self) if self.whole is None else self.whole)
        return drawn if self.positions_N is None else drawn[..., self.positions_N]
