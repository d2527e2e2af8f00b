"""Draw what a detector found into the picture, with names that do not cover each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from dmc.data.decode import open_image, opened, upright_rgb, upright_size
from dmc.data.sources import Record
from dmc.evaluation.detection import DetectedObject

COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#800000", "#808000", "#000075")
Box = tuple[float, float, float, float]  # left, top, right, bottom
Size = tuple[float, float]  # width, height


def drawn(path: str | Path, sightings: Sequence[DetectedObject], names: Sequence[str]) -> Image.Image:
    """Read a picture and draw boxes with their names and scores into it."""
    with open_image(Path(path)) as stored:
        image = upright_rgb(stored, at_least=max(stored.size))
    return boxed(image, sightings, names, text_size=max(10, round(min(image.size) / 22)))


def drawn_within(record: Record, sightings: Sequence[DetectedObject], names: Sequence[str], side: int) -> Image.Image:
    """Read a record's picture, fit it into a square of `side` pixels, and draw boxes with their names into it."""
    with opened(record) as stored:
        width = upright_size(stored)[0]
        image = ImageOps.contain(upright_rgb(stored, at_least=side), (side, side))
    scale, fitted = image.width / width, []
    for sighting in sightings:
        left, top, right, bottom = (scale * v for v in sighting.box)
        fitted.append(replace(sighting, box=(left, top, right, bottom)))
    return boxed(image, fitted, names, text_size=max(10, side // 32))


def boxed(image: Image.Image, sightings: Sequence[DetectedObject], names: Sequence[str], text_size: int) -> Image.Image:
    """Draw boxes into an image and return it.

    `sightings` are best first, and a score of NaN is not shown; `names` are all classes of the model, whose order
    decides the colours.
    """
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(text_size)
    colours = [COLOURS[names.index(sighting.name) % len(COLOURS)] for sighting in sightings]
    texts = [one.name if isnan(one.score) else f"{one.name} {one.score:.0%}" for one in sightings]
    sizes = [(pen.textlength(text, font=font) + 4, pen.textbbox((0, 0), text, font=font)[3] + 2) for text in texts]
    places = label_places([sighting.box for sighting in sightings], sizes, image.size)
    for sighting, colour in reversed(list(zip(sightings, colours, strict=True))):  # the best on top
        pen.rectangle(sighting.box, outline=colour, width=max(1, round(min(image.size) / 150)))
    for text, colour, place in reversed(list(zip(texts, colours, places, strict=True))):  # so no box crosses a name
        pen.rectangle(place, fill=colour)
        pen.text((place[0] + 2, place[1]), text, fill="white", font=font)
    return image


def label_places(boxes: Sequence[Box], sizes: Sequence[Size], image: Size) -> list[Box]:
    """Place each box's label at one of its corners, inside the image.

    The first corner where it covers no earlier label is taken, or else the one where it covers least of them.
    """
    taken: list[Box] = []
    for box, size in zip(boxes, sizes, strict=True):
        taken.append(min(_corners(box, size, image), key=lambda place: sum(_common(place, other) for other in taken)))
    return taken


def _corners(box: Box, size: Size, image: Size) -> list[Box]:
    """List the places for a label in order of preference.

    They are at the left edge of the box, at its right edge, right of it, and left of it; at each of these, above the
    box, at its top, below it, and at its bottom. All are moved into the image.
    """
    (left, top, right, bottom), (wide, tall) = box, size
    corners = [
        (x, y) for x in (left, right - wide, right, left - wide) for y in (top - tall, top, bottom, bottom - tall)
    ]
    inside = [(max(0, min(x, image[0] - wide)), max(0, min(y, image[1] - tall))) for x, y in corners]
    return [(x, y, x + wide, y + tall) for x, y in inside]


def _common(one: Box, other: Box) -> float:
    """Give the area that both boxes cover."""
    wide = min(one[2], other[2]) - max(one[0], other[0])
    tall = min(one[3], other[3]) - max(one[1], other[1])
    return max(0, wide) * max(0, tall)
