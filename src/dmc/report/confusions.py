"""Confusion matrices side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dmc.report.figures import FONT, in_lines, new_figure, save

MARKS = (0, 1, 5, 20, 100)  # of the colour scale, in %


def draw_confusions(panels: Mapping[str, Any], title: str, path: Path, classes: str = "class") -> None:
    """Draw counts of answers as log(1 + % of a class's images), a panel for each title."""
    rows = -(-len(panels) // 4)
    figure, plots = new_figure(rows, columns=-(-len(panels) // rows), size=(2.8, 2.9))
    for plot in plots[len(panels) :]:
        plot.set_axis_off()
    for plot, (panel, counts) in zip(plots, panels.items(), strict=False):
        shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        shown = plot.imshow(np.log1p(shares), cmap="viridis", vmin=0, vmax=np.log1p(100))
        plot.set_title(panel, fontsize=FONT + 2)
        plot.tick_params(labelsize=FONT)
    figure.supxlabel("answer", fontsize=FONT + 1)
    figure.supylabel(classes, fontsize=FONT + 1)
    bar = figure.colorbar(shown, ax=plots, shrink=0.7, label="% of the class's images")
    bar.set_ticks(np.log1p(MARKS).tolist(), labels=[str(mark) for mark in MARKS])
    figure.suptitle(in_lines(title), fontsize=FONT + 2)
    save(figure, path)
