"""Images in the form that a detector was made for, and its boxes back in the batch's pixels."""

from __future__ import annotations

import pytest
import torch

from dmc.data.fitting import GREY, Fit, fitted

# Two images of 40 x 80 and 60 x 30 pixels (height x width) in one frame; each has a bright square of 20 x 20.
SIZES = [(40, 80), (60, 30)]
IMAGES = torch.zeros((2, 3, 64, 96), dtype=torch.uint8)
IMAGES[:, :, 20:40, 10:30] = 200
SQUARE = torch.tensor([[10.0, 20, 30, 40]]).repeat(2, 1)


def bright(images_N3HW: torch.Tensor) -> torch.Tensor:
    """Give the box of the bright pixels of each image, without its grey padding."""
    boxes = []
    for image in images_N3HW:
        rows, columns = (image[0] > 160).nonzero().unbind(dim=1)
        boxes.append([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
    return torch.tensor(boxes).float()


@pytest.mark.parametrize(
    ("fit", "side", "shown", "shape", "sizes"),
    [
        ("frame", 80, 40, (128, 192), [(80, 160), (120, 60)]),
        ("frame", 50, 40, (96, 128), [(50, 100), (75, 38)]),  # 80 x 120 pixels, padded to whole strides of 32
        ("stretch", 96, 40, (96, 96), [(96, 96), (96, 96)]),
        ("letterbox", 96, 40, (96, 96), [(48, 96), (96, 48)]),
    ],
)
def test_boxes_come_back_to_where_the_object_is(
    fit: Fit, side: int, shown: int, shape: tuple[int, int], sizes: list[tuple[int, int]]
) -> None:
    seen = fitted(IMAGES, SIZES, fit, side, shown, "bilinear")
    assert tuple(seen.images_N3HW.shape[2:]) == shape
    assert list(seen.sizes) == sizes
    back_N4 = seen.back(bright(seen.images_N3HW)[:, None])[:, 0]
    assert (back_N4 - SQUARE).abs().max() < 1.1  # a pixel of what the network sees


def test_a_letterbox_is_grey_where_the_image_is_not() -> None:
    seen = fitted(IMAGES, SIZES, "letterbox", 96, 40, "bilinear").images_N3HW
    assert (seen[0, :, 48:] == GREY).all()
    assert (seen[1, :, :, 48:] == GREY).all()
    assert (seen[1, :, :, :10] == 0).all()  # and nowhere else


@pytest.mark.parametrize(("fit", "side"), [("frame", 40), ("stretch", 64), ("letterbox", 64)])
def test_what_fits_already_is_left_alone(fit: Fit, side: int) -> None:
    images, sizes = (IMAGES, SIZES) if fit == "frame" else (IMAGES[:, :, :, :64], [(64, 64)] * 2)
    seen = fitted(images, sizes, fit, side, 40, "bilinear")
    assert seen.images_N3HW is images
    assert seen.scales_N4 is None
