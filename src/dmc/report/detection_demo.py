"""The detection demo's picture: the same scenes, as the old, the new and the merged detector see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from PIL import Image

from dmc.data.annotations import DetectionImages
from dmc.data.decode import opened
from dmc.data.sources import Record
from dmc.evaluation.detection import detected
from dmc.models.detector import Detector
from dmc.report.drawing import boxed
from dmc.report.figures import FONT, new_figure, save

SHOWN, MIN_SCORE = 8, 0.4  # scenes, and the lowest score of a box
INCHES, ENLARGED = 1.55, 4  # side of a scene in the figure, and how many times larger it is drawn


def contact_sheet(models: Mapping[str, Detector], scenes: DetectionImages, path: Path) -> None:
    """Draw a row for each model and a column for each scene; a box has the colour of its class."""
    records = list(islice(scenes.records(seed=3), SHOWN))
    figure, plots = new_figure(rows=len(models), columns=SHOWN, size=(INCHES, INCHES))
    for row, (name, model) in enumerate(models.items()):
        for column, record in enumerate(records):
            plot = plots[row * SHOWN + column]
            plot.imshow(_seen(model, record, scenes.classes))
            plot.set_xticks([])
            plot.set_yticks([])
        plots[row * SHOWN].set_ylabel(name, fontsize=FONT + 2)
    save(figure, path)


def _seen(model: Detector, record: Record, names: tuple[str, ...]) -> Image.Image:
    """Draw the model's finds into a scene, enlarged so that their names can be read."""
    with opened(record) as scene:
        image = scene.convert("RGB").resize((ENLARGED * scene.width, ENLARGED * scene.height))
    found = []
    for sighting in detected(model, record, MIN_SCORE):
        left, top, right, bottom = (ENLARGED * edge for edge in sighting.box)
        found.append(replace(sighting, box=(left, top, right, bottom)))
    return boxed(image, found, names, text_size=round(image.width * FONT / 72 / INCHES))
