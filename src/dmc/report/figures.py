"""What all figures share: how a method looks in each of them, labels beside the lines, bars, axes and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, isnan
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from dmc.extras import require_extra
from dmc.files import replacing

require_extra("bench", "matplotlib", "sklearn")  # here, where hours of training are not yet spent
FONT = 8  # points, the smallest
NAME, PITCH = FONT + 1, 1.4 * (FONT + 1)  # of a line's name, and from one to the next, in points
LINES = {"-": "", "--": "//", ":": "..", "-.": "xx"}  # and the hatches of bars that stand for them
MARKERS = "osD^vPX"

# Okabe and Ito's colours, which the colour-blind can tell apart;
# greys instead of black, which bars would be heavy in, and of yellow, which is pale on white.
VERMILLION, BLUE, SKY, GREEN = "#d55e00", "#0072b2", "#56b4e9", "#009e73"
PURPLE, ORANGE, GREY, DARK = "#cc79a7", "#e69f00", "#888888", "#444444"
# Tol's "muted", for all that is not one of the methods below.
OTHERS = ("#332288", "#44aa99", "#882255", "#999933", "#aa4499", "#117733", "#cc6677", "#88ccee")


@dataclass(frozen=True)
class Look:
    """How a line or a bar is drawn."""

    colour: str
    line: str = "-"
    marker: str = "o"
    strong: bool = False

    @property
    def hatch(self) -> str:
        return LINES[self.line]

    def variant(self, i: int) -> Look:
        """The same method under its i-th setting: the next line style, and when they are used up the next marker."""
        lines = list(LINES)
        marker = MARKERS[(MARKERS.index(self.marker) + i // len(lines)) % len(MARKERS)]
        return replace(self, line=lines[(lines.index(self.line) + i) % len(lines)], marker=marker)


# A colour has at most two methods, with different lines and markers.
LOOKS = {
    "dmc": Look(VERMILLION, strong=True),
    "dmc+": Look(VERMILLION, "--", "s"),
    "lwf": Look(BLUE, marker="s"),
    "lwf.mc": Look(SKY, marker="^"),
    "rewc": Look(SKY, "--", "v"),
    "ewc++": Look(GREEN, marker="D"),
    "ewc": Look(GREEN, "--", "P"),
    "mas": Look(PURPLE, marker="v"),
    "si": Look(PURPLE, "--", "X"),
    "rwalk": Look(ORANGE, marker="P"),
    "icarl": Look(ORANGE, "--", "D"),
    "finetuning": Look(GREY, marker="X"),
    "fixed-representation": Look(GREY, "--", "^"),
    "adapted-shmelkov": Look(BLUE, "--", "D"),
    "inference-twice": Look(DARK, "--", "s"),
    "oracle": Look(DARK, ":", "D"),
}


def look_of(method: str) -> Look:
    """The same in every figure; a user's own method has one that only its name decides."""
    number = crc32(method.encode())
    return LOOKS.get(method) or Look(OTHERS[number % len(OTHERS)], "-.", MARKERS[number // len(OTHERS) % len(MARKERS)])


def setting_look(i: int) -> Look:
    """The i-th of things that are compared and are no methods."""
    return Look(OTHERS[i % len(OTHERS)], marker=MARKERS[i % len(MARKERS)]).variant(i // len(OTHERS))


@dataclass(frozen=True)
class Series:
    """A line in a figure; values are fractions."""

    label: str
    look: Look
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] = ()  # standard deviations over orders, NaN where there is none


class Bar(NamedTuple):
    """A mean in %, and what is known beside it."""

    mean: float
    std: float | None = None
    published: float | None = None

    @property
    def reach(self) -> float:
        return max(self.mean + (self.std or 0), self.published or 0)


@dataclass(frozen=True)
class BarRow:
    """The bars of one method or setting, by panel."""

    label: str
    look: Look
    bars: Mapping[str, Bar]


def new_figure(
    rows: int, columns: int, size: tuple[float, float], widths: Sequence[float] | None = None
) -> tuple[Any, Sequence[Any]]:
    """A figure and its plots; `size` is a plot's, in inches, `widths` are columns' shares, equal if none are given.

    pyplot would change the backend of a notebook."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained", dpi=130)
    return figure, list(figure.subplots(rows, columns, squeeze=False, width_ratios=widths).flat)


def save(figure: Any, path: Path) -> None:
    """Write a PNG, and beside it an SVG, which is the same file each time."""
    from matplotlib import rc_context

    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")
    with replacing(path.with_suffix(".svg")) as temporary, rc_context({"svg.hashsalt": "dmc"}):
        figure.savefig(temporary, format="svg", metadata={"Date": None})


def draw_lines(series: Sequence[Series], x_label: str, y_label: str, title: str, path: Path, log: bool = False) -> None:
    """Draw accuracies in % against the number of something, and name each line at its end."""
    figure, (axes,) = new_figure(1, 1, size=(8, max(4.6, 1 + len(series) * PITCH / 72)))
    for line in series:
        _draw_line(axes, line)
    ticks = sorted({x for line in series for x in line.x})
    every = -(-len(ticks) // 12)
    ticks = ticks[::-1][::every]  # the last one in any case
    if log:
        axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, labels=[f"{x:,}" for x in ticks], minor=False)
    _fit_height(axes, series)
    axes.margins(x=0.02)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title, fontsize=FONT + 2)
    _tidy(axes)
    _name_ends(figure, axes, series)
    save(figure, path)


def _draw_line(axes: Any, line: Series) -> None:
    """Draw it, the strong one on top; a band is the mean ± standard deviation."""
    look = line.look
    axes.plot(
        line.x,
        [100 * y for y in line.y],
        color=look.colour,
        linestyle=look.line,
        linewidth=2.8 if look.strong else 1.4,
        marker=look.marker,
        markersize=6 if look.strong else 4.5,
        zorder=3 if look.strong else 2,
    )
    if line.spread:
        low, high = zip(*_band(line), strict=True)
        axes.fill_between(line.x, low, high, color=look.colour, alpha=0.2 if look.strong else 0.08, linewidth=0)


def _band(line: Series) -> list[tuple[float, float]]:
    return [(100 * (y - std), 100 * (y + std)) for y, std in zip(line.y, line.spread, strict=True)]


def _fit_height(axes: Any, series: Sequence[Series]) -> None:
    """Begin at the round number below all that is drawn, end at the one above it, and leave room for the markers."""
    from matplotlib.ticker import MaxNLocator

    drawn = [100 * y for line in series for y in line.y]
    drawn += [edge for line in series if line.spread for edges in _band(line) for edge in edges if not isnan(edge)]
    inside = [min(max(value, 0), 100) for value in drawn]  # mean ± standard deviation may be no accuracy
    low = floor(min([*inside, 99]))
    ticks = MaxNLocator(nbins=8, steps=[1, 2, 5, 10]).tick_values(low, max(low + 1, *inside))
    margin = 0.02 * (ticks[-1] - ticks[0])
    axes.set_yticks(ticks)
    axes.set_ylim(ticks[0] - margin, ticks[-1] + margin)


def _tidy(axes: Any) -> None:
    """Put a pale grid behind all, and leave out the frame's other half."""
    axes.set_axisbelow(True)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=FONT)


def _name_ends(figure: Any, axes: Any, series: Sequence[Series]) -> None:
    """Put names in a column on the right, each as near to the end of its line as the others let it."""
    ordered = sorted(series, key=lambda line: line.y[-1])
    names = [_name_end(axes, line) for line in ordered]
    figure.draw_without_rendering()  # lays out, and so says how high the axes are
    low, high = axes.get_ylim()
    gap = PITCH / 72 * figure.dpi / axes.bbox.height * (high - low)
    for name, y in zip(names, apart([100 * line.y[-1] for line in ordered], gap, low, high), strict=True):
        name.set_y(y)


def _name_end(axes: Any, line: Series) -> Any:
    """Write right of the axes, at the line's height, with a thin line that leads there."""
    return axes.annotate(
        line.label,
        (line.x[-1], 100 * line.y[-1]),
        xytext=(1.03, 100 * line.y[-1]),
        textcoords=axes.get_yaxis_transform(),
        color=line.look.colour,
        fontsize=NAME,
        fontweight="bold" if line.look.strong else "normal",
        verticalalignment="center",
        arrowprops={"arrowstyle": "-", "color": line.look.colour, "linewidth": 0.8, "linestyle": ":",
                    "shrinkA": 1, "shrinkB": 3, "relpos": (0, 0.5)},
        annotation_clip=False,
    )  # fmt: skip


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The nearest to those wanted, which ascend, that are a gap from each other, and within bounds if they fit."""
    from sklearn.isotonic import isotonic_regression

    steps = [i * gap for i in range(len(wanted))]
    least = [place - step for place, step in zip(wanted, steps, strict=True)]
    starts = isotonic_regression(least, y_min=low, y_max=max(low, high - steps[-1]))
    return [float(start) + step for start, step in zip(starts, steps, strict=True)]


def draw_bars(plots: Sequence[Any], panels: Sequence[str], rows: Sequence[BarRow]) -> None:
    """Draw a panel for each column of a table, with a bar for each of its rows, named once on the left."""
    from matplotlib.ticker import MaxNLocator

    reach = max([1, *(bar.reach for row in rows for bar in row.bars.values())])
    for plot, panel in zip(plots, panels, strict=True):
        for y, row in enumerate(rows):
            if panel in row.bars:
                _draw_bar(plot, y, row.look, row.bars[panel])
        plot.set_yticks(range(len(rows)), labels=[row.label for row in rows])
        plot.set_ylim(len(rows) - 0.4, -0.6)
        inches = plot.get_position().width * plot.figure.get_figwidth()
        plot.set_xlim(0, reach * inches / (inches - 0.3))  # with room for a number
        plot.set_xticks([x for x in MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(0, reach) if x <= 1.02 * reach])
        plot.set_title(panel, fontsize=FONT + 2)
        _tidy(plot)
        plot.grid(visible=False, axis="y")
        plot.tick_params(axis="y", length=0, labelsize=FONT + 1, labelleft=plot is plots[0])


def _draw_bar(plot: Any, y: int, look: Look, bar: Bar) -> None:
    """Draw it with its number; a black stroke is what the paper has there."""
    from matplotlib.patheffects import withStroke

    plot.barh(y, bar.mean, 0.72, color=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0)
    if bar.std is not None:
        plot.errorbar(bar.mean, y, xerr=bar.std, color="#444444", capsize=2, linewidth=1)
    if bar.published is not None:
        outlined = [withStroke(linewidth=4, foreground="white")]  # a bar may be black
        plot.vlines(bar.published, y - 0.36, y + 0.36, color="black", linewidth=2, path_effects=outlined)
    plot.annotate(f"{bar.mean:.1f}", (bar.reach, y), xytext=(4, 0), textcoords="offset points", va="center",
                  fontsize=FONT)  # fmt: skip
