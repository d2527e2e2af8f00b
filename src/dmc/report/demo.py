"""The demo's picture: what each model was shown on the left, how well it does on the right."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from dmc.data.sources import Source
from dmc.demo import TITLES, Row

SHOWN = ("Specialist A\nwas taught", "Specialist B\nwas taught", "Merging them\nlooked at")
COLOURS = {"old": "#0072b2", "new": "#e69f00", "all": "#444444"}  # apart also for the colour-blind


def draw(rows: Sequence[Row], shown: Sequence[Source], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.8), layout="constrained", dpi=130)
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.5))
    strips = [np.concatenate([_tile(r.image) for r in islice(s.records(seed=1), 24)]) for s in shown]
    sheet = np.concatenate([_folded(strip) for strip in strips])
    left.imshow(255 - sheet, cmap="gray", vmin=0, vmax=255)
    height = sheet.shape[0] / len(shown)
    left.set_yticks([height * (i + 0.5) for i in range(len(shown))], SHOWN)
    left.set_xticks([])
    left.tick_params(length=0)
    left.spines[:].set_visible(False)

    for i, (part, label) in enumerate((("old", "0-4"), ("new", "5-9"), ("all", "all ten"))):
        values = [100 * getattr(row, part) for row in rows]
        places = [j + (i - 1) * 0.27 for j in range(len(rows))]
        bars = right.bar(places, values, width=0.25, color=COLOURS[part], label=f"digits {label}")
        right.bar_label(bars, fmt="%.0f", fontsize=8, padding=1)
    right.set_xticks(range(len(rows)), [TITLES[row.method] for row in rows])
    right.set_ylim(0, 118)
    right.set_yticks(range(0, 101, 25))
    right.set_ylabel("accuracy, %")
    right.spines[["top", "right"]].set_visible(False)
    right.legend(loc="upper center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path)


def _tile(image: object) -> np.ndarray:
    """One 8x8 image with a margin."""
    return np.pad(np.asarray(image), 1)


def _folded(column: np.ndarray) -> np.ndarray:
    """A column of 24 tiles to three rows of eight, with room below."""
    tiles = column.reshape(3, 8, 10, 10).transpose(0, 2, 1, 3).reshape(30, 80)
    return np.pad(tiles, ((2, 2), (0, 0)))
