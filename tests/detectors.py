"""Scenes that a tiny detector can learn in seconds: bright squares and discs on noise, in the VOC layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from dmc.models.detector import Detector

TINY = "retinanet:timm/test_resnet,width=16,depth=1,scale=2"
KINDS = {"red": "#ff2020", "green": "#20ff20", "blue": "#2040ff"}


def untrained(names: str, arch: str = TINY, seed: int = 0) -> Detector:
    detector = Detector.untrained(arch, names, seed=seed, weights=None)
    detector.name = f"detector-{seed}"
    return detector


def small(names: str, arch: str = TINY, seed: int = 0) -> Detector:
    """Make an untrained detector for images of 64 pixels."""
    made = untrained(names, arch, seed)
    return Detector(made.module, names, replace(made.preprocessing, size=64), "sigmoid", made.arch, f"small-{seed}")


def hash_of(kind: str) -> int:
    return int.from_bytes(kind.encode()[:3], "big")


def scene(draw: np.random.Generator, kinds: Sequence[str]) -> tuple[Image.Image, list[tuple[str, tuple[int, ...]]]]:
    """Draw one or two squares on grey noise, 96x80; give the image, and the kind and box of each."""
    noise = draw.integers(60, 140, (80, 96, 1), dtype=np.uint8)
    image = Image.fromarray(np.repeat(noise, 3, axis=2))
    objects: list[tuple[str, tuple[int, ...]]] = []
    for column in range(draw.integers(1, 3)):
        kind = kinds[int(draw.integers(len(kinds)))]
        side = int(draw.integers(20, 36))
        left, top = 48 * column + int(draw.integers(0, 48 - side)), int(draw.integers(0, 80 - side))
        ImageDraw.Draw(image).rectangle(
            (left, top, left + side - 1, top + side - 1), fill=KINDS.get(kind, f"#{hash_of(kind):06x}")
        )
        objects.append((kind, (left + 1, top + 1, left + side, top + side)))  # VOC counts from 1, both ends inclusive
    return image, objects


def write_voc(folder: Path, count: int, kinds: Sequence[str], seed: int = 0, split: str = "train") -> Path:
    draw = np.random.default_rng(seed)
    for part in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    stems = []
    for i in range(count):
        image, objects = scene(draw, kinds)
        stem = f"{split}_{i:03}"
        stems.append(stem)
        image.save(folder / "JPEGImages" / f"{stem}.jpg", quality=95)
        boxes = "".join(
            f"<object><name>{kind}</name><difficult>0</difficult><bndbox><xmin>{box[0]}</xmin><ymin>{box[1]}</ymin>"
            f"<xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox></object>"
            for kind, box in objects
        )
        size = "<size><width>96</width><height>80</height><depth>3</depth></size>"
        text = f"<annotation><filename>{stem}.jpg</filename>{size}{boxes}</annotation>"
        (folder / "Annotations" / f"{stem}.xml").write_text(text)
    (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(stems) + "\n")
    return folder


@pytest.fixture(scope="session")
def squares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write scenes of red, green and blue squares: 60 to train on, 20 to test on."""
    folder = tmp_path_factory.mktemp("squares")
    write_voc(folder, 60, list(KINDS))
    return write_voc(folder, 20, list(KINDS), seed=1, split="val")


@pytest.fixture(scope="session")
def unlabeled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unlabeled")
    draw = np.random.default_rng(2)
    for i in range(40):
        scene(draw, list(KINDS))[0].save(folder / f"{i:03}.png")
    return folder
