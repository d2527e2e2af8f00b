"""From files to pixels."""

from __future__ import annotations

import io
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dmc.data.batch import Batch
from dmc.data.decode import CenterCrop, DecodeError, decode, decode_or_skip, decoded
from dmc.data.preprocess import Preprocessing
from dmc.data.sources import Record
from dmc.errors import DmcError


def encoded(image: Image.Image, kind: str, **options: object) -> Record:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return Record(buffer.getvalue(), -1, "test")


def test_the_central_square_is_kept() -> None:
    pixels = np.zeros((4, 10, 3), np.uint8)
    pixels[:, 3:7, 0] = [10, 20, 30, 40]
    square = decode(encoded(Image.fromarray(pixels), "PNG"), CenterCrop(4))
    assert square[0, 2].tolist() == [10, 20, 30, 40]


def test_crop_pct_takes_the_middle_of_the_square() -> None:
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[2:6, 2:6] = 200
    square = decode(encoded(Image.fromarray(pixels), "PNG"), CenterCrop(4, crop_pct=0.5))
    assert (square == 200).all()


def test_squashing_keeps_the_whole_of_both_sides() -> None:
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[:, :, 0] = [10, 10, 20, 20, 30, 30, 40, 40]
    pixels[:, :, 1] = [[50], [50], [60], [60]]
    image = encoded(Image.fromarray(pixels), "PNG")
    square = decode(image, CenterCrop(2, "nearest", crop_mode="squash"))
    assert square[0].tolist() == [[20, 40], [20, 40]] or square[0].tolist() == [[10, 30], [10, 30]]
    assert square[1].tolist() == [[50, 50], [60, 60]]
    middle = decode(image, CenterCrop(2, "nearest", crop_pct=0.5, crop_mode="squash"))
    assert middle[0].tolist() == [[20, 30], [20, 30]]


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
def test_every_colour_mode_becomes_rgb(mode: str) -> None:
    image = Image.new("RGB", (6, 6), (255, 255, 255)).convert(mode)
    pixels = decode(encoded(image, "TIFF" if mode == "CMYK" else "PNG"), CenterCrop(4))
    assert pixels.shape == (3, 4, 4)
    assert (pixels == 255).all()


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    deep = np.array([[0, 16384], [32768, 65535]], np.uint16)
    pixels = decode(encoded(Image.fromarray(deep), "PNG"), CenterCrop(2))
    assert pixels[0].tolist() == [[0, 63], [127, 255]]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([[-1000, -500], [0, 1000]], [[0, 63], [127, 255]]),  # as heights, or computed tomography
        ([[0, np.nan], [0.5, 1]], [[0, 0], [127, 255]]),
        ([[-np.inf, 2], [4, np.inf]], [[0, 127], [255, 0]]),
    ],
)
def test_numbers_below_zero_and_none_at_all(values: list[list[float]], shown: list[list[int]]) -> None:
    image = Image.fromarray(np.array(values, np.float32))
    assert decode(encoded(image, "TIFF"), CenterCrop(2))[0].tolist() == shown


def test_the_camera_orientation_is_obeyed() -> None:
    image = Image.new("RGB", (8, 8))
    image.paste((255, 255, 255), (0, 0, 8, 4))  # white above
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    pixels = decode(encoded(image, "JPEG", exif=exif, quality=95), CenterCrop(8))
    assert pixels[0, 1, 4] < 50 < 200 < pixels[0, 6, 4]


def test_large_jpegs_are_reduced_while_decoding() -> None:
    image = Image.effect_mandelbrot((1024, 1024), (-2, -1.5, 1, 1.5), 50).convert("RGB")
    reduced = decode(encoded(image, "JPEG", quality=95), CenterCrop(32))
    exact = torch.from_numpy(np.array(image.resize((32, 32), Image.Resampling.BILINEAR))).permute(2, 0, 1)
    assert (reduced.float() - exact.float()).abs().mean() < 3


def test_what_is_no_image_is_an_error(tmp_path: Path) -> None:
    good = encoded(Image.effect_noise((64, 64), 90), "PNG").image
    assert isinstance(good, bytes)
    for content in (b"", b"not an image", good[: len(good) // 2]):
        path = tmp_path / "bad.png"
        path.write_bytes(content)
        assert isinstance(decode_or_skip(Record(path, -1, "bad"), CenterCrop(8)), DecodeError)


def test_preprocessing_normalises_each_channel() -> None:
    image = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 2, 2)
    seen = Preprocessing(2, mean=(0.0, 0.2, 0.5), std=(1.0, 0.1, 0.25))(image)
    torch.testing.assert_close(seen[0, :, 0, 0], torch.tensor([0.0, 0.0, 2.0]))
    assert seen.is_contiguous(memory_format=torch.channels_last)


def test_one_mean_makes_grey_images() -> None:
    image = torch.tensor([255, 0, 0], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 2, 2)
    seen = Preprocessing(2, mean=(0.0,), std=(1.0,))(image)
    assert seen.shape == (1, 1, 2, 2)
    assert seen[0, 0, 0, 0].item() == pytest.approx(0.299)


def test_each_network_resizes_by_its_own_rule() -> None:
    image = (torch.arange(16, dtype=torch.uint8) * 16).view(1, 1, 1, 16).expand(1, 3, 16, 16)
    zero, one = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    halved = Preprocessing(8, zero, one, "nearest")(image)
    assert (halved[0, 0, 0] * 255).round().tolist() == [0, 32, 64, 96, 128, 160, 192, 224]
    smooth = Preprocessing(8, zero, one, "bilinear")(image)
    assert (smooth[0, 0, 0, 1:-1] * 255).round().tolist() == [40, 72, 104, 136, 168, 200]


@pytest.mark.parametrize(
    "broken",
    [
        {"size": 0},
        {"mean": (0.5, 0.5)},
        {"std": (0.0, 1.0, 1.0)},
        {"interpolation": "cubic"},
        {"crop_pct": 1.5},
    ],
)
def test_impossible_preprocessing_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(DmcError):
        Preprocessing(**broken)  # type: ignore[arg-type]


def test_crops_are_windows_of_the_padded_image_and_half_are_mirrored() -> None:
    torch.manual_seed(0)
    images = torch.arange(1, 17, dtype=torch.uint8).view(1, 1, 4, 4).expand(400, 3, 4, 4)
    crops = Batch(images, torch.zeros(400)).augmented(pad=1, flip=True).images_N3HW
    padded = torch.nn.functional.pad(images[:1], (1, 1, 1, 1))
    windows = {}
    for top in range(3):
        for left in range(3):
            window = padded[0, :, top : top + 4, left : left + 4]
            windows[window.numpy().tobytes()] = "plain"
            windows[window.flip(2).contiguous().numpy().tobytes()] = "mirrored"
    found = [crop.contiguous().numpy().tobytes() for crop in crops]
    assert set(found) == set(windows)  # all 18, and nothing else
    mirrored = sum(windows[crop] == "mirrored" for crop in found)
    assert 150 < mirrored < 250
    torch.manual_seed(0)
    unflipped = Batch(images, torch.zeros(400)).augmented(pad=1, flip=False).images_N3HW
    assert all(windows[crop.contiguous().numpy().tobytes()] == "plain" for crop in unflipped)


def test_a_huge_jpeg_is_decoded_in_threads_while_pillow_keeps_its_limit() -> None:
    """The image has 200 million pixels, more than Pillow opens by itself. The host's limit and filters never change."""
    seen = []

    class Watched(CenterCrop):
        def __call__(self, image: Image.Image) -> torch.Tensor:
            seen.append((Image.MAX_IMAGE_PIXELS, list(warnings.filters)))
            return super().__call__(image)

    huge = encoded(Image.new("L", (20_000, 10_000), 128), "JPEG", quality=1)
    with pytest.raises(Image.DecompressionBombError):
        Image.open(io.BytesIO(huge.image))  # type: ignore[arg-type]
    before = (Image.MAX_IMAGE_PIXELS, list(warnings.filters))
    shapes = [getattr(pixels, "shape", pixels) for _, pixels in decoded([huge] * 4, Watched(8))]
    assert shapes == [(3, 8, 8)] * 4
    assert seen == [before] * 4
    assert (Image.MAX_IMAGE_PIXELS, list(warnings.filters)) == before


def test_other_formats_keep_to_the_limit_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(DmcError, match=r"test: cannot be read: .* exceeds limit of 200 pixels"):
        decode(encoded(Image.new("L", (20, 20)), "PNG"), CenterCrop(8))


def test_importing_changes_nothing_of_the_host() -> None:
    code = (
        "import warnings, torch\nfrom PIL import Image\nbefore = Image.MAX_IMAGE_PIXELS, list(warnings.filters)\n"
        "import dmc.data.decode\nassert (Image.MAX_IMAGE_PIXELS, list(warnings.filters)) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
