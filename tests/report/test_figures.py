"""What figures contain: the look of each method, the places of names, and the files."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from PIL import Image

from dmc.bench.digits import digits
from dmc.methods import METHODS, methods_named
from dmc.report import classification_demo as demo
from dmc.report.bench import draw_curves
from dmc.report.classification_demo import Row
from dmc.report.figures import (
    LOOKS,
    Bar,
    BarRow,
    Series,
    apart,
    draw_bars,
    draw_lines,
    look_of,
    new_figure,
    setting_look,
)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Collect all figures that are saved."""
    saved: list[Figure] = []
    original = Figure.savefig

    def recorded(self: Figure, *arguments: Any, **more: Any) -> None:
        saved.append(self)
        original(self, *arguments, **more)

    monkeypatch.setattr(Figure, "savefig", recorded)
    return saved


def curves(ends: list[float], spread: float | None = None) -> dict[str, Any]:
    """Sum up five groups, with methods whose lines end at given accuracies."""
    return {
        name: {
            "classes": [2, 4, 6, 8, 10],
            "accuracy": np.linspace(1, end, 5).tolist(),
            "spread": [] if spread is None else [spread] * 5,
        }
        for name, end in zip(METHODS, ends, strict=False)
    }


def names_in(axes: Axes) -> list[Annotation]:
    return [child for child in axes.get_children() if isinstance(child, Annotation)]


def test_no_two_methods_look_alike() -> None:
    names = {method.name for method in methods_named("all")}
    looks = [look_of(name) for name in METHODS]
    assert names == set(LOOKS)
    assert len({(look.colour, look.line, look.marker) for look in looks}) == len(METHODS)
    for one, other in combinations(looks, 2):
        assert (one.colour, one.hatch) != (other.colour, other.hatch)  # as bars
    assert [name for name in METHODS if look_of(name).strong] == ["dmc"]


def test_a_users_own_method_always_looks_the_same_and_like_no_other() -> None:
    assert look_of("mine") == look_of("mine")
    assert look_of("mine").colour not in {look.colour for look in LOOKS.values()}
    assert len({look_of(f"mine {i}") for i in range(200)}) > 20


def test_variants_of_a_method_keep_its_colour() -> None:
    variants = [look_of("dmc+").variant(i) for i in range(6)]
    assert variants[0] == look_of("dmc+")
    assert len(set(variants)) == 6
    assert {variant.colour for variant in variants} == {look_of("dmc+").colour}


def test_dmc_has_one_colour_in_lines_and_in_bars(tmp_path: Path, figures: list[Figure]) -> None:
    draw_curves(curves([0.5] * len(METHODS)), "title", tmp_path / "lines.png")
    (axes,) = figures[0].axes
    of_lines = {line.get_linewidth(): line.get_color() for line in axes.lines}  # its line is the thickest
    rows = [Row(method, 0.5, 0.5, 0.5, 1, 1) for method in ("finetuning", "dmc", "inference-twice", "oracle")]
    demo.draw(rows, [digits(0, test=True)] * 3, tmp_path / "bars.png")
    of_bars = [[to_hex(bar.get_facecolor()) for bar in panel.patches] for panel in figures[-1].axes[1:]]
    assert [bars[1] for bars in of_bars] == [of_lines[max(of_lines)]] * 3
    assert all(len(set(bars[:3])) == 3 for bars in of_bars)


@pytest.mark.parametrize("ends", [[0.5] * 15, [0.0] * 40, [1.0] * 15, [0.1, 0.11, 0.5, 0.51, 0.52, 0.53, 0.9, 0.98]])
def test_names_of_lines_do_not_overlap_and_are_not_cut(
    tmp_path: Path, figures: list[Figure], ends: list[float]
) -> None:
    lines = [Series(f"line {i}", setting_look(i), [2, 4], [0.7, end]) for i, end in enumerate(ends)]
    draw_lines(lines, "x", "y", "title", tmp_path / "lines.png")
    figure = figures[-1]
    (axes,) = figure.axes
    names = names_in(axes)
    assert {name.get_text() for name in names} == {line.label for line in lines}
    figure.draw_without_rendering()
    places = sorted((Text.get_window_extent(name) for name in names), key=lambda place: place.y0)
    for below, above in pairwise(places):
        assert below.y1 <= above.y0
    for place in places:
        assert place.x0 > axes.bbox.x1
        assert place.x1 <= figure.bbox.x1
        assert 0 <= place.y0 < place.y1 <= figure.bbox.y1
    heights = [name.xy[1] for name in sorted(names, key=lambda name: float(name.get_position()[1]))]
    assert heights == sorted(heights)  # no two leading lines cross


def test_names_stay_where_they_are_if_there_is_room() -> None:
    assert apart([10, 40, 80], gap=5, low=0, high=100) == [10, 40, 80]
    assert apart([50, 50], gap=10, low=0, high=100) == [45, 55]
    assert apart([0, 0, 90], gap=10, low=0, high=100) == [0, 10, 90]
    assert apart([99, 100], gap=10, low=0, high=100) == [90, 100]


def test_a_band_is_drawn_where_there_is_a_spread(tmp_path: Path, figures: list[Figure]) -> None:
    look, nan = look_of("dmc"), float("nan")
    with_band = Series("a", look, [1, 2, 3], [0.5, 0.6, 0.7], [0.1, 0.1, nan])
    without = Series("b", look_of("lwf"), [1, 2, 3], [0.5, 0.4, 0.3])
    draw_lines([with_band, without], "x", "y", "title", tmp_path / "f.png")
    (band,) = figures[0].axes[0].collections
    assert to_hex(tuple(np.ravel(band.get_facecolor())[:3])) == look.colour
    (path,) = band.get_paths()
    assert path.get_extents().extents == pytest.approx([1, 40, 2, 70])  # not at 3, whose spread is not known


def test_heights_use_the_space(tmp_path: Path, figures: list[Figure]) -> None:
    for low, high, spread in ((0.62, 0.78, 0.0), (0.8, 0.8, 0.0), (0.02, 0.99, 0.1), (1.0, 1.0, 0.0)):
        line = Series("a", look_of("dmc"), [1, 2], [high, low], [spread, spread])
        draw_lines([line], "x", "y", "title", tmp_path / "f.png")
        bottom, top = figures[-1].axes[0].get_ylim()
        assert bottom < 100 * low <= 100 * high < top
        assert top - bottom <= max(1.1, 1.35 * 100 * (high - low + 2 * spread))
        ticks = figures[-1].axes[0].get_yticks()
        assert 0 <= min(ticks) < max(ticks) < 100.01


def test_what_is_below_zero_is_drawn_too(tmp_path: Path, figures: list[Figure]) -> None:
    """Forgetting is negative where later lessons helped. One point in each line is a whole figure."""
    lines = [Series(name, look_of(name), [10], [y]) for name, y in (("dmc", -0.003), ("lwf", -0.012))]
    draw_lines(lines, "x", "y", "title", tmp_path / "f.png")
    low, high = figures[0].axes[0].get_ylim()
    assert low < -1.2 < -0.3 < high


def test_parts_of_methods_alone_have_no_curves(tmp_path: Path) -> None:
    """They are tested on their own classes only, so there is no accuracy on all of them."""
    (name, row), *_ = curves([0.5]).items()
    draw_curves({name: row | {"accuracy": [None] * len(row["accuracy"])}}, "title", tmp_path / "lines.png")
    assert not (tmp_path / "lines.png").exists()


def test_titles_that_are_wider_than_a_figure_are_broken(tmp_path: Path, figures: list[Figure]) -> None:
    draw_curves(curves([0.5]), "profile night with " + "specialist.precision=bf16, " * 5, tmp_path / "lines.png")
    (axes,) = figures[0].axes
    drawn = axes.title.get_window_extent()
    assert drawn.x0 >= 0
    assert drawn.x1 <= figures[0].bbox.x1
    assert "\n" in axes.get_title()


def test_bars_begin_at_nothing_and_say_what_they_are() -> None:
    _, plots = new_figure(1, 2, size=(3, 3))
    rows = [
        BarRow("one", look_of("dmc"), {"old": Bar(62.04, 3.0, 70.0), "new": Bar(60)}),
        BarRow("two", look_of("lwf"), {"new": Bar(61)}),
    ]
    draw_bars(plots, ["old", "new"], rows)
    assert [[bar.get_width() for bar in plot.patches] for plot in plots] == [[62.04], [60, 61]]
    assert [text.get_text() for text in names_in(plots[0])] == ["62.0"]
    assert names_in(plots[0])[0].xy == (70, 0)  # right of all that is drawn there
    assert plots[0].get_xlim() == plots[1].get_xlim()
    assert plots[0].get_xlim()[0] == 0
    assert [label.get_text() for label in plots[0].get_yticklabels()] == ["one", "two"]


def test_a_figure_is_a_png_and_an_svg_that_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        draw_curves(curves([0.5, 0.6], spread=0.1), "title", tmp_path / f"{name}.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width > 1000
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg", "b.png", "b.svg"]
    assert b"<dc:date>" not in (tmp_path / "a.svg").read_bytes()
