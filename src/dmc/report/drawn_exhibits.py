"""Draw a report's exhibits as PNG and SVG, in the look of all figures."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, nan
from pathlib import Path
from textwrap import fill

from PIL import Image

from dmc.data.thumbnails import decoded
from dmc.evaluation.detection import DetectedObject
from dmc.exhibits import AnyExhibit, BarChart, Confusions, Exhibit, Gallery, LineChart, Marked
from dmc.report.confusions import draw_confusions
from dmc.report.drawing import boxed
from dmc.report.figures import (
    FONT,
    Bar,
    BarRow,
    Series,
    draw_bars,
    draw_lines,
    look_of,
    looks_of,
    new_figure,
    save,
)
from dmc.text import one_line

IN_A_ROW, WITH_WORDS = 10, 4  # pictures
LONGEST = 34  # characters of an answer
GAP = 4  # pixels between pictures
WIDEST = 110  # characters beside each other above bars
ENLARGED = 3  # times, so that names in a picture can be read


def draw(shown: AnyExhibit, folder: Path) -> None:
    """Draw an exhibit that is more than text into a folder."""
    if isinstance(shown, LineChart):
        _draw_chart(shown, folder / f"{shown.name}.png")
    elif isinstance(shown, BarChart) and shown.rows:
        _draw_bars(shown, folder / f"{shown.name}.png")
    elif isinstance(shown, Confusions):
        panels = {one_line(panel.title): panel.counts for panel in shown.panels}
        draw_confusions(panels, shown.title, folder / f"{shown.name}.png")
    elif isinstance(shown, Gallery) and shown.exhibits:
        _draw_gallery(shown, folder / f"{shown.name}.png")


def _draw_chart(chart: LineChart, path: Path) -> None:
    series = [
        Series(
            one_line(line.label),
            look,
            line.x,
            line.y,
            [nan if std is None else std for std in line.spread],
            factor=1 if chart.losses else 100,
        )
        for line, look in zip(chart.lines, looks_of(chart.lines), strict=True)
    ]
    draw_lines(series, chart.x_label, chart.y_label, chart.title, path, losses=chart.losses)


def _draw_bars(chart: BarChart, path: Path) -> None:
    factor = 100 if chart.unit == "%" else 1
    rows = [
        BarRow(
            one_line(label),
            look_of("dmc"),
            {panel: Bar(factor * v) for panel, v in zip(chart.panels, values, strict=True) if v is not None},
        )
        for label, values in chart.rows
    ]
    figure, plots = new_figure(1, len(chart.panels), size=(max(2.6, 9 / len(chart.panels)), 0.9 + 0.24 * len(rows)))
    draw_bars(plots, chart.panels, rows)
    for plot in plots:
        plot.set_title(fill(plot.get_title(), WIDEST // len(plots)), fontsize=FONT + 1)
    figure.suptitle(chart.title, fontsize=FONT + 2)
    figure.supxlabel(chart.axis, fontsize=FONT + 1)
    save(figure, path)


def _draw_gallery(gallery: Gallery, path: Path) -> None:
    """Draw pictures with their answers beside each other, others as one sheet."""
    if gallery.exhibits[0].answers:
        _draw_answers(gallery, path)
        return
    heads = [one_line(who) for who in gallery.exhibits[0].found]
    tiles = [tile for one in gallery.exhibits for tile in (_marked(one) if heads else [decoded(one.picture)])]
    sheet, wide = _sheet(tiles, columns=len(heads) or IN_A_ROW)
    figure, (plot,) = new_figure(1, 1, size=(8, 8 * sheet.height / sheet.width + 0.5))
    plot.imshow(sheet)
    plot.set_xticks([wide * (i + 0.5) for i in range(len(heads))], heads, fontsize=FONT)
    plot.set_yticks([])
    plot.tick_params(length=0, labeltop=True, labelbottom=False)
    plot.spines[:].set_visible(False)
    figure.suptitle(gallery.title, fontsize=FONT + 2)
    save(figure, path)


def _draw_answers(gallery: Gallery, path: Path) -> None:
    lines = 2 + max(len(exhibit.answers) for exhibit in gallery.exhibits)
    rows = ceil(len(gallery.exhibits) / WITH_WORDS)
    figure, plots = new_figure(rows, WITH_WORDS, size=(8 / WITH_WORDS, 8 / WITH_WORDS + 0.14 * lines))
    for plot in plots:
        plot.set_axis_off()
    for plot, exhibit in zip(plots, gallery.exhibits, strict=False):
        said = [exhibit.title, *(f"{answer.who}: {answer.text}" for answer in exhibit.answers)]
        plot.imshow(decoded(exhibit.picture))
        plot.set_title("\n".join(one_line(line)[:LONGEST] for line in said), fontsize=FONT - 1, loc="left")
    figure.suptitle(gallery.title, fontsize=FONT + 2)
    save(figure, path)


def _sheet(tiles: Sequence[Image.Image], columns: int) -> tuple[Image.Image, int]:
    """Put pictures into the cells of a grid, and give it and the width of a cell."""
    wide, high = (max(tile.size[side] for tile in tiles) + GAP for side in (0, 1))
    sheet = Image.new("RGB", (wide * min(columns, len(tiles)), high * ceil(len(tiles) / columns)), "white")
    for i, tile in enumerate(tiles):
        sheet.paste(tile, (i % columns * wide, i // columns * high))
    return sheet, wide


def _marked(exhibit: Exhibit) -> list[Image.Image]:
    """Draw what each of several found into its own copy of a picture, enlarged so that names can be read."""
    image = decoded(exhibit.picture)
    names = sorted({mark.name for marks in exhibit.found.values() for mark in marks})
    tiles = []
    for marks in exhibit.found.values():
        large = image.resize((ENLARGED * image.width, ENLARGED * image.height))
        found = [_enlarged(mark) for mark in marks]
        tiles.append(boxed(large, found, names, text_size=max(10, round(min(large.size) / 18))))
    return tiles


def _enlarged(mark: Marked) -> DetectedObject:
    left, top, right, bottom = (ENLARGED * edge for edge in mark.box)
    return DetectedObject(mark.name, nan if mark.score is None else mark.score, (left, top, right, bottom))
