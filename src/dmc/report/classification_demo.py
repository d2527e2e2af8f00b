"""The demo's picture: images that the models learned from on the left, their accuracies on the right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dmc.data.sources import Source
from dmc.report.figures import FONT, Bar, BarRow, draw_bars, look_of, new_figure, save

TITLES = {
    "finetuning": "fine-tuning",
    "dmc": "DMC",
    "inference-twice": "both specialists",
    "oracle": "joint training",
}
SHOWN = ("Specialist A\nwas taught", "Specialist B\nwas taught", "Merging them\nlooked at")
PANELS = {"old": "digits 0-4", "new": "digits 5-9", "all": "all ten"}


@dataclass(frozen=True)
class Row:
    """One line of the demo's table; accuracies are fractions."""

    method: str
    old: float
    new: float
    all: float
    parameters: int
    images_seen: int


def draw(rows: Sequence[Row], shown: Sequence[Source], path: Path) -> None:
    """Draw the demo's picture; `shown` are the images of specialist A, of B, and of their merger."""
    figure, plots = new_figure(1, 1 + len(PANELS), size=(2.6, 3.1), widths=(1.25, 1, 1, 1))
    _draw_sheet(plots[0], shown)
    bars = [
        BarRow(
            TITLES[row.method],
            look_of(row.method),
            {title: Bar(100 * getattr(row, part)) for part, title in PANELS.items()},
        )
        for row in rows
    ]
    draw_bars(plots[1:], list(PANELS.values()), bars)
    plots[2].set_xlabel("accuracy, %", fontsize=FONT + 1)
    save(figure, path)


def _draw_sheet(plot: Any, shown: Sequence[Source]) -> None:
    """Draw 24 images of each source below each other."""
    strips = [np.concatenate([_tile(r.image) for r in islice(s.records(seed=1), 24)]) for s in shown]
    sheet = np.concatenate([_folded(strip) for strip in strips])
    plot.imshow(255 - sheet, cmap="gray", vmin=0, vmax=255)
    height = sheet.shape[0] / len(shown)
    plot.set_yticks([height * (i + 0.5) for i in range(len(shown))], SHOWN, fontsize=FONT + 1)
    plot.set_xticks([])
    plot.tick_params(length=0)
    plot.spines[:].set_visible(False)


def _tile(image: object) -> np.ndarray:
    """Add a margin of one pixel to an 8x8 image."""
    return np.pad(np.asarray(image), 1)


def _folded(column: np.ndarray) -> np.ndarray:
    """Fold a column of 24 tiles into three rows of eight, with room above and below."""
    tiles = column.reshape(3, 8, 10, 10).transpose(0, 2, 1, 3).reshape(30, 80)
    return np.pad(tiles, ((2, 2), (0, 0)))
