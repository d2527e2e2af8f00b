"""Detection data without a download: scikit-learn's digits and drawn letters, pasted on scikit-image's photographs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
from PIL import Image

from dmc.bench.digits import digits, letters
from dmc.data.annotations import AnnotatedImage, DetectionImages, Objects
from dmc.data.sources import Source
from dmc.extras import require_extra
from dmc.progress import progress

SIDE = 96  # of a scene, in pixels
SMALLEST, LARGEST = 16, 64  # sides of a glyph, in pixels
PHOTOGRAPHS = ("astronaut", "chelsea", "coffee", "rocket", "brick", "grass", "gravel")
INK = 100  # of 255: pixels with more ink than this belong to a glyph, and so to its box
Pixels = npt.NDArray[np.uint8]


def digit_scenes(count: int, names: Sequence[str], seed: int, test: bool = False) -> DetectionImages:
    """Compose scenes with one to three digits of these classes, and give their boxes."""
    glyphs = _glyphs(digits(0, test).keep(names))
    draw = random.Random(seed)
    with progress(count, "composing scenes") as bar:
        scenes = []
        for _ in range(count):
            scenes.append(_scene(draw, [(glyphs, draw.randint(1, 3))]))
            bar.update()
    return DetectionImages("digits on photographs", sorted(names), scenes)


def unlabeled_scenes(count: int, seed: int) -> Source:
    """Compose scenes with letters and with digits of all classes, without boxes and labels."""
    ten, others = _glyphs(digits(0, test=False)), _glyphs(letters(2000, seed))
    draw = random.Random(f"unlabeled {seed}")
    scenes = [_scene(draw, [(ten, draw.randint(0, 2)), (others, draw.randint(1, 2))]) for _ in range(count)]
    blank = Objects(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros(0, bool), SIDE, SIDE)
    return DetectionImages(
        "digits and letters on photographs", ["unknown"], [AnnotatedImage(s.image, blank) for s in scenes]
    )


def _glyphs(source: Source) -> list[tuple[Pixels, int]]:
    return [(record.image, record.label) for record in source.records() if isinstance(record.image, np.ndarray)]


def _scene(draw: random.Random, parts: Sequence[tuple[list[tuple[Pixels, int]], int]]) -> AnnotatedImage:
    """Compose one scene; each part is a list of labeled glyphs, and how many of them to try to place."""
    canvas = _background(draw)
    boxes: list[tuple[int, int, int, int]] = []
    labels: list[int] = []
    for glyphs, wanted in parts:
        for _ in range(wanted):
            pixels, label = draw.choice(glyphs)
            side = draw.randint(SMALLEST, LARGEST)
            left, top = draw.randint(0, SIDE - side), draw.randint(0, SIDE - side)
            mask = _enlarged(pixels, side)
            inked = mask.point(lambda value: 255 if value > INK else 0).getbbox()
            if inked is None:
                continue
            box = (left + inked[0], top + inked[1], left + inked[2], top + inked[3])
            if any(_overlap(box, other) for other in boxes):
                continue  # so that no glyph hides another
            low, high = draw.choice(((170, 255), (0, 60)))  # bright or dark
            shade = tuple(draw.randint(low, high) for _ in "rgb")
            canvas.paste(Image.new("RGB", (side, side), shade), (left, top), mask)
            boxes.append(box)
            labels.append(label)
    found = Objects(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(labels, np.int64),
        np.zeros(len(labels), bool),
        SIDE,
        SIDE,
    )
    return AnnotatedImage(np.asarray(canvas), found)


def _enlarged(glyph: Pixels, side: int) -> Image.Image:
    """Enlarge a glyph and raise its contrast: enlarging 8x8 pixels blurs the strokes, contrast gives them an edge."""
    blurred = Image.fromarray(glyph).resize((side, side), Image.Resampling.BICUBIC)
    return blurred.point(lambda value: round(2.5 * (value - 128) + 128))


def _overlap(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _background(draw: random.Random) -> Image.Image:
    """Cut a random part out of a photograph and soften its contrast, so that digits stand out."""
    photograph = _photograph(draw.choice(PHOTOGRAPHS))
    extent = draw.randint(SIDE, min(photograph.size))
    left, top = (draw.randint(0, whole - extent) for whole in photograph.size)
    part = photograph.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=(left, top, left + extent, top + extent))
    return Image.blend(part, Image.new("RGB", part.size, (115, 115, 115)), 0.5)


@cache
def _photograph(name: str) -> Image.Image:
    require_extra("demo", "skimage")
    import skimage.data

    return Image.fromarray(getattr(skimage.data, name)()).convert("RGB")
