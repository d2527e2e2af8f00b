"""Show a batch of images to a detector in the form that it was made for, and take its boxes back to the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dmc.data.preprocess import Interpolation

# frame: images of any shape, padded together; stretch: a square, whatever becomes of the proportions; letterbox: a
# square, in which the image keeps its proportions and the rest is grey.
Fit = Literal["frame", "stretch", "letterbox"]
Size = tuple[int, int]  # height and width
GREY = 114  # what the YOLO family pads with
MULTIPLE = 32  # batches are padded to a multiple of this, the coarsest stride of a backbone


class Fitted(NamedTuple):
    """A batch as a detector sees it."""

    images_N3HW: Tensor
    sizes: Sequence[Size]  # of each image without its padding
    scales_N4: Tensor | None  # what boxes are multiplied by for the batch's own pixels; None: by 1

    def back(self, boxes_NM4: Tensor) -> Tensor:
        """Give boxes in the batch's own pixels."""
        return boxes_NM4 if self.scales_N4 is None else boxes_NM4 * self.scales_N4[:, None]


def fitted(
    images_N3HW: Tensor, sizes: Sequence[Size], fit: Fit, side: int, shown: int, interpolation: Interpolation
) -> Fitted:
    """Fit a batch whose images have `shown` pixels on the shorter side to a detector that was made for `side`."""
    frame = (int(images_N3HW.shape[2]), int(images_N3HW.shape[3]))
    whole = set(sizes) == {frame}  # all images can be resized at once
    if shown == side if fit == "frame" else whole and frame == (side, side):
        return Fitted(images_N3HW, sizes, None)
    if fit == "frame":
        wanted = [_scaled(size, side / shown) for size in (frame, *sizes)]
        resized_N3HW = _padded(_resized(images_N3HW, wanted[0], interpolation), framed(wanted[0]))
        return Fitted(resized_N3HW, wanted[1:], _scales([frame] * len(sizes), wanted[:1] * len(sizes), images_N3HW))
    inner = [(side, side) if fit == "stretch" else _scaled(size, side / max(size)) for size in sizes]
    if whole:
        parts = [_resized(images_N3HW, inner[0], interpolation)]
    else:
        cropped = (image[None, :, :height, :width] for image, (height, width) in zip(images_N3HW, sizes, strict=True))
        parts = [_resized(part, size, interpolation) for part, size in zip(cropped, inner, strict=True)]
    square = [_padded(part, (side, side), GREY) for part in parts]
    return Fitted(torch.cat(square), inner, _scales(sizes, inner, images_N3HW))


def framed(size: Size) -> Size:
    """Give the smallest frame that holds an image of this size, and has a whole number of the coarsest strides."""
    return -(-size[0] // MULTIPLE) * MULTIPLE, -(-size[1] // MULTIPLE) * MULTIPLE


def _padded(images_N3HW: Tensor, frame: Size, value: int = 0) -> Tensor:
    return F.pad(images_N3HW, (0, frame[1] - images_N3HW.shape[3], 0, frame[0] - images_N3HW.shape[2]), value=value)


def _scaled(size: Size, factor: float) -> Size:
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def _resized(images_N3HW: Tensor, size: Size, interpolation: Interpolation) -> Tensor:
    if tuple(images_N3HW.shape[2:]) == size:
        return images_N3HW
    smooth = interpolation in ("bilinear", "bicubic")
    resized = F.interpolate(images_N3HW.float(), size=size, mode=interpolation, antialias=smooth)
    return resized.clamp(0, 255)  # bicubic overshoots


def _scales(sizes: Sequence[Size], inner: Sequence[Size], like: Tensor) -> Tensor:
    """Give what the sides of boxes found in the `inner` images are multiplied by."""
    pairs = [(w / iw, h / ih) * 2 for (h, w), (ih, iw) in zip(sizes, inner, strict=True)]
    return torch.tensor(pairs, device=like.device)
