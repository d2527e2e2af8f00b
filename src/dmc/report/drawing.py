"""What a detector found, drawn into the picture, with names that do not cover each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from dmc.data.decode import open_image, upright_rgb
from dmc.evaluation.detection import DetectedObject

COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#800000", "#808000", "#000075")
Box = tuple[float, float, float, float]  # left, top, right, bottom
Size = tuple[float, float]  # width, height


def drawn(path: str | Path, sightings: Sequence[DetectedObject], names: Sequence[str]) -> Image.Image:
    """The picture with its boxes."""
    with open_image(Path(path)) as stored:
        image = upright_rgb(stored, at_least=max(stored.size))
    return boxed(image, sightings, names, text_size=max(10, round(min(image.size) / 22)))


def boxed(image: Image.Image, sightings: Sequence[DetectedObject], names: Sequence[str], text_size: int) -> Image.Image:
    """The image, drawn into; `sightings` are the best first, and a class keeps its colour."""
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(text_size)
    colours = [COLOURS[names.index(sighting.name) % len(COLOURS)] for sighting in sightings]
    texts = [f"{sighting.name} {sighting.score:.0%}" for sighting in sightings]
    sizes = [(pen.textlength(text, font=font) + 4, pen.textbbox((0, 0), text, font=font)[3] + 2) for text in texts]
    places = label_places([sighting.box for sighting in sightings], sizes, image.size)
    for sighting, colour in reversed(list(zip(sightings, colours, strict=True))):  # the best on top
        pen.rectangle(sighting.box, outline=colour, width=max(1, round(min(image.size) / 150)))
    for text, colour, place in reversed(list(zip(texts, colours, places, strict=True))):  # no box crosses a name
        pen.rectangle(place, fill=colour)
        pen.text((place[0] + 2, place[1]), text, fill="white", font=font)
    return image


def label_places(boxes: Sequence[Box], sizes: Sequence[Size], image: Size) -> list[Box]:
    """A place within the image for each box's label: the first at one of its corners that covers no label before it,
    or else the one that covers least of them."""
    taken: list[Box] = []
    for box, size in zip(boxes, sizes, strict=True):
        taken.append(min(_corners(box, size, image), key=lambda place: sum(_common(place, other) for other in taken)))
    return taken


def _corners(box: Box, size: Size, image: Size) -> list[Box]:
    """At the left and right edge, then beside the box: above it, at its top, below it, at its bottom."""
    (left, top, right, bottom), (wide, tall) = box, size
    corners = [
        (x, y) for x in (left, right - wide, right, left - wide) for y in (top - tall, top, bottom, bottom - tall)
    ]
    inside = [(max(0, min(x, image[0] - wide)), max(0, min(y, image[1] - tall))) for x, y in corners]
    return [(x, y, x + wide, y + tall) for x, y in inside]


def _common(one: Box, other: Box) -> float:
    """The area that both cover."""
    wide = min(one[2], other[2]) - max(one[0], other[0])
    tall = min(one[3], other[3]) - max(one[1], other[1])
    return max(0, wide) * max(0, tall)
