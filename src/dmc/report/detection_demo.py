"""The detection demo's picture: the same scenes, as the old, the new and the merged detector see them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

from dmc.data.sources import Record
from dmc.detect.annotations import Scenery
from dmc.detect.detector import Detector
from dmc.detect.evaluation import COLOURS, sightings
from dmc.report.figures import new_figure, save

SHOWN, LEAST = 8, 0.4


def contact_sheet(models: Mapping[str, Detector], scenes: Scenery, path: Path) -> None:
    """One row for each model, one column for each scene; a box has the colour of the answer."""
    records = list(islice(scenes.records(seed=3), SHOWN))
    figure, plots = new_figure(rows=len(models), columns=SHOWN, size=(1.55, 1.6))
    names = scenes.classes
    for row, (name, model) in enumerate(models.items()):
        for column, record in enumerate(records):
            plot = plots[row * SHOWN + column]
            plot.imshow(_pixels(record))
            plot.autoscale(False)  # a box may reach out of the scene
            plot.set_xticks([])
            plot.set_yticks([])
            for found in reversed(sightings(model, record, LEAST)):  # the best on top
                colour = COLOURS[names.index(found.name) % len(COLOURS)]
                left, top, right, bottom = found.box
                corners = ([left, right, right, left, left], [top, top, bottom, bottom, top])
                plot.plot(*corners, color=colour, linewidth=1.4)
                at = (left, top - 1) if top > 12 else (left, bottom + 9)
                plot.text(*at, f"{found.name}", color="white", fontsize=7, backgroundcolor=colour,
                          bbox={"pad": 0.6, "facecolor": colour, "edgecolor": "none"})  # fmt: skip
        plots[row * SHOWN].set_ylabel(name, fontsize=10)
    save(figure, path)


def _pixels(record: Record) -> np.ndarray:
    if isinstance(record.image, np.ndarray):
        return record.image
    with Image.open(record.image) as image:
        return np.asarray(image.convert("RGB"))
