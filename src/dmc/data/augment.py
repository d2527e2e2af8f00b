"""Augmentation of whole batches, on uint8 pixels."""

import torch
import torch.nn.functional as F
from torch import Tensor


def pad_crop_flip(images_N3HW: Tensor, pad: int, flip: bool = True) -> Tensor:
    """Augment as the paper does: pad with `pad` black pixels on each side, crop at random, mirror half of the images.

    The random numbers come from torch's global generator, which the training loop seeds for each step.
    """
    n, _, height, width = images_N3HW.shape
    corners_2N = torch.randint(0, 2 * pad + 1, (2, n))
    mirrored_N = torch.rand(n) < (0.5 if flip else 0.0)
    drawn_4N = torch.stack([torch.arange(n), *corners_2N, mirrored_N]).to(images_N3HW.device)  # one copy
    image_N, top_N, left_N, mirrored_N = drawn_4N
    padded = F.pad(images_N3HW, (pad, pad, pad, pad))
    # Take every possible crop as a view, then copy the chosen ones alone.
    crops_N3YXHW = padded.unfold(2, height, 1).unfold(3, width, 1)
    crops_N3HW = crops_N3YXHW[image_N, :, top_N, left_N]
    return torch.where(mirrored_N.bool().view(-1, 1, 1, 1), crops_N3HW.flip(3), crops_N3HW)
