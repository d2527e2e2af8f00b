"""Augmentation of whole batches, on uint8 pixels: where each image is cropped, and whether it is mirrored.

The numbers are drawn anew at each step, or they are one of an image's stored views: a function of its content and of
the view's number, so that what teachers answered about the view can be kept without the pixels.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor


def crop_and_flip(images_N3HW: Tensor, pad: int, corners_2N: Tensor, mirrored_N: Tensor) -> Tensor:
    """Augment as the paper does: pad with `pad` black pixels on each side, crop at these corners, mirror some."""
    n, _, height, width = images_N3HW.shape
    drawn_4N = torch.stack([torch.arange(n), *corners_2N, mirrored_N])
    drawn_4N = drawn_4N.to(images_N3HW.device, non_blocking=True)  # one copy, for which nobody waits
    image_N, top_N, left_N, mirrored_N = drawn_4N
    padded = F.pad(images_N3HW, (pad, pad, pad, pad))
    # Take every possible crop as a view, then copy the chosen ones alone.
    crops_N3YXHW = padded.unfold(2, height, 1).unfold(3, width, 1)
    crops_N3HW = crops_N3YXHW[image_N, :, top_N, left_N]
    return torch.where(mirrored_N.bool().view(-1, 1, 1, 1), crops_N3HW.flip(3), crops_N3HW)


def content_ids(images_N3HW: Tensor) -> Tensor:
    """Give each image a number that is a hash of its pixels and shape. The images are on the CPU."""
    shape = repr(tuple(images_N3HW.shape[1:])).encode()[:16]
    pixels = images_N3HW.contiguous().numpy()
    digests = (blake2b(image.data, digest_size=8, salt=shape).digest() for image in pixels)
    return torch.tensor([int.from_bytes(digest, "little", signed=True) for digest in digests])


def stored_corners(ids_N: Tensor, view: int, pad: int) -> Tensor:
    """Give the corners at which a stored view is cropped."""
    bits_N = _mixed(ids_N, view)
    corners = [bits_N >> np.uint64(shift) for shift in (8, 32)]
    return torch.from_numpy(np.stack([c % np.uint64(2 * pad + 1) for c in corners]).astype(np.int64))


def stored_mirrored(ids_N: Tensor, view: int, flip: bool) -> Tensor:
    """Tell of each image whether a stored view of it is mirrored: every second of its views is."""
    bits_N = _mixed(ids_N, view=0)
    return torch.from_numpy((bits_N + np.uint64(view)) % np.uint64(2) == 1) & flip


def _mixed(ids_N: Tensor, view: int) -> npt.NDArray[np.uint64]:
    """Mix content and view into 64 bits that look random: the finalizer of SplitMix64."""
    bits = ids_N.numpy().view(np.uint64) + np.uint64((view + 1) * 0x9E3779B97F4A7C15 % 2**64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
