"""Files of strangers: programs that look like images, and images that are too large."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dmc.data.decode import CenterCrop, DecodeError, can_be_reduced, decode, decoded, open_image
from dmc.data.open import open_images
from dmc.data.pictures import pictures
from dmc.data.sources import Record
from tests.data.hostile import png, reasons

SRC = Path(__file__).parents[2] / "src" / "dmc"


def test_a_program_is_not_an_image(tmp_path: Path, watched: Callable[[], Any]) -> None:
    """Pillow hands PostScript to Ghostscript, whatever the file is called."""
    (tmp_path / "a.jpg").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    )
    Image.init()
    with Image.open(tmp_path / "a.jpg") as image:
        assert image.format == "EPS"
    with watched():
        assert reasons(open_images(tmp_path)) == ["it is not an image"]


@pytest.mark.parametrize("kind", ["JPEG", "MPO", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_all_usual_formats_are_read(kind: str) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (9, 9), (250, 250, 250)).save(buffer, kind)
    assert (decode(Record(buffer.getvalue(), -1, ""), CenterCrop(4)) > 240).all()


def test_images_are_opened_in_one_place() -> None:
    opens = {path.name for path in SRC.rglob("*.py") if re.search(r"Image\.open\(|ImageFile\(", path.read_text())}
    assert opens == {"decode.py"}


def test_large_images_are_refused_by_their_size_before_they_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dmc.data.decode.MOST_PIXELS", 99)
    monkeypatch.setattr("dmc.data.decode.MOST_REDUCED", 128 * 128 - 1)
    Image.new("RGB", (10, 10)).save(tmp_path / "a.png")
    Image.new("RGB", (11, 9)).save(tmp_path / "b.png")
    Image.new("RGB", (64, 64)).save(tmp_path / "c.jpg")
    Image.new("RGB", (64, 64)).save(tmp_path / "d.jpg", progressive=True)
    Image.new("RGB", (128, 128)).save(tmp_path / "e.jpg")
    too_large = "an image of {}x{} is too large to decode"
    assert reasons(open_images(tmp_path)) == [
        too_large.format(10, 10),
        "",
        "",
        too_large.format(64, 64),
        too_large.format(128, 128),
    ]
    (record,) = pictures(tmp_path / "c.jpg")
    with pytest.raises(DecodeError, match="64x64 is too large to decode"):  # a part is not decoded at a fraction
        decode(record._replace(part=(0, 0, 4, 4)), CenterCrop(4))
    monkeypatch.setattr("dmc.data.decode.MOST_ENCODED", 10)
    assert reasons(open_images(tmp_path / "b.png")) == ["it has more than 10 bytes"]


def test_a_jpeg_in_several_scans_is_not_taken_for_one_that_is_reduced() -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64)).save(buffer, "JPEG")
    assert can_be_reduced(open_image(buffer))
    one_scan = buffer.getvalue()
    start = one_scan.index(b"\xff\xda") + 2
    first_of_three = one_scan[:start] + b"\x00\x08\x01\x01\x00\x00\x3f\x00" + one_scan[start + 12 :]
    assert not can_be_reduced(open_image(io.BytesIO(first_of_three)))


@pytest.mark.parametrize(("many", "at_once"), [(0, 1), (100, 4)])
def test_heavy_images_take_turns(many: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmc.data.decode.MANY_PIXELS", many)
    monkeypatch.setattr("dmc.data.decode.CHUNK", 1)
    now, most = [0], [0]

    class Counting(CenterCrop):
        def __call__(self, image: Image.Image) -> torch.Tensor:
            now[0] += 1
            most[0] = max(most[0], now[0])
            time.sleep(0.05)
            now[0] -= 1
            return super().__call__(image)

    assert len(list(decoded([Record(png(), -1, "")] * 8, Counting(4), workers=4))) == 8
    assert most[0] == at_once


def test_deep_pixels_are_scaled_within_their_own_memory() -> None:
    """The largest floats are scaled like any others: no product may overflow."""
    image = Image.fromarray(np.array([[0, 1.7e38], [3.4e38, 3.4e38]], np.float32))
    assert decode(Record(image, -1, ""), CenterCrop(2))[0].tolist() == [[0, 127], [255, 255]]
