"""Real images without a download: scikit-learn's handwritten digits, and letters drawn from matplotlib's fonts."""

from __future__ import annotations

import random
import string
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from dmc.data.readers import ArrayImages
from dmc.extras import require_extra
from dmc.progress import progress

CANVAS = 32  # the digits were scanned at 32x32 and reduced to 8x8 by counting ink in 4x4 blocks; so are the letters
LETTER_FONTS = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "STIXGeneral", "cmr10", "cmtt10", "cmss10")


def digits(seed: int, test: bool) -> ArrayImages:
    """Give the training or the test part (30%) of 1,797 handwritten digits, 8x8 pixels, classes "0" to "9"."""
    require_extra("bench", "sklearn")
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    pixels = (data.images * (255 / 16)).round().astype(np.uint8)
    parts = train_test_split(pixels, data.target, test_size=0.3, random_state=seed, stratify=data.target)
    train_images, test_images, train_labels, test_labels = parts
    images, labels = (test_images, test_labels) if test else (train_images, train_labels)
    return ArrayImages(images, labels, string.digits, name="handwritten digits")


@cache
def letters(count: int, seed: int) -> ArrayImages:
    """Draw unlabeled letters (never a digit), reduced to 8x8 pixels the way the digits were."""
    draw = random.Random(seed)
    with progress(count, "drawing letters") as bar:
        images = np.empty((count, 8, 8), dtype=np.uint8)
        for i in range(count):
            images[i] = _letter(draw)
            bar.update()
    return ArrayImages(images, name="rendered letters")


def _letter(draw: random.Random) -> npt.NDArray[np.uint8]:
    """Draw a random letter in a random font, size, place, stroke, shear, rotation and blur."""
    ink = Image.new("L", (CANVAS, CANVAS))
    middle = CANVAS / 2
    ImageDraw.Draw(ink).text(
        (middle + draw.uniform(-3, 3), middle + draw.uniform(-3, 3)),
        draw.choice(string.ascii_letters),
        fill=255,
        font=_font(draw.choice(_font_files()), draw.randint(24, 40)),
        anchor="mm",
        stroke_width=draw.randint(0, 3),
    )
    shear = draw.uniform(-0.4, 0.4)
    affine = (1, shear, -shear * middle, 0, 1, 0)
    ink = ink.transform(ink.size, Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR)
    ink = ink.rotate(draw.uniform(-25, 25), Image.Resampling.BILINEAR)
    ink = ink.filter(ImageFilter.GaussianBlur(draw.uniform(0, 1.2)))
    return np.asarray(ink.reduce(CANVAS // 8), dtype=np.uint8)


@cache
def _font_files() -> tuple[Path, ...]:
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return tuple(sorted(f for f in folder.glob("*.ttf") if f.stem.split("-")[0] in LETTER_FONTS))


@cache
def _font(path: Path, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(path, size)
