"""What all figures share: each method's colour and style, labels beside the lines, bars, axes and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, isnan
from pathlib import Path
from statistics import mean
from textwrap import fill
from typing import Any, NamedTuple
from zlib import crc32

from dmc.exhibits import Line
from dmc.files import replacing

FONT = 8  # the smallest, in points
WIDEST = 90  # characters of a line in a title
NAME, PITCH = FONT + 1, 1.4 * (FONT + 1)  # a line's name, and the distance from one to the next, in points
LINES = {"-": "", "--": "//", ":": "..", "-.": "xx"}  # line styles, and the hatches that stand for them in bars
MARKERS = "osD^vPX"

# Okabe and Ito's colours, which the colour-blind can tell apart. Greys replace black, which makes bars heavy, and
# yellow, which is pale on white.
VERMILLION, BLUE, SKY, GREEN = "#d55e00", "#0072b2", "#56b4e9", "#009e73"
PURPLE, ORANGE, GREY, DARK = "#cc79a7", "#e69f00", "#888888", "#444444"
# Tol's "muted" colours, for all but the methods below.
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
        """Give the look of the same method under its i-th setting: another line style, or marker if styles run out."""
        lines = list(LINES)
        marker = MARKERS[(MARKERS.index(self.marker) + i // len(lines)) % len(MARKERS)]
        return replace(self, line=lines[(lines.index(self.line) + i) % len(lines)], marker=marker)


# At most two methods have the same colour, and DMC with its kin; their line styles and markers differ.
LOOKS = {
    "dmc": Look(VERMILLION, strong=True),
    "dmc+": Look(VERMILLION, "--", "s"),
    "dmc++": Look(VERMILLION, ":", "^"),
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
    """Give the look of a method, the same in every figure; that of a user's own method depends on its name alone."""
    number = crc32(method.encode())
    return LOOKS.get(method) or Look(OTHERS[number % len(OTHERS)], "-.", MARKERS[number // len(OTHERS) % len(MARKERS)])


def setting_look(i: int) -> Look:
    """Give the look of the i-th setting, where settings are compared and not methods."""
    return Look(OTHERS[i % len(OTHERS)], marker=MARKERS[i % len(MARKERS)]).variant(i // len(OTHERS))


def looks_of(lines: Sequence[Line]) -> list[Look]:
    """Give the look of each line: its method's, or where lines are no methods, one that tells it from the others."""
    return [look_of(line.method) if line.method else setting_look(i) for i, line in enumerate(lines)]


@dataclass(frozen=True)
class Series:
    """A line in a figure; values of y are fractions, which are drawn in %, or losses."""

    label: str
    look: Look
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] = ()  # standard deviations over orders, NaN where unknown; empty: no band
    factor: float = 100  # of y as it is drawn; 1 for losses

    @property
    def drawn(self) -> list[float]:
        """The values of y as they are drawn."""
        return [self.factor * y for y in self.y]


class Bar(NamedTuple):
    """A mean with its standard deviation and the paper's number, in %; None where unknown."""

    mean: float
    std: float | None = None
    published: float | None = None

    @property
    def reach(self) -> float:
        """The right end of all that is drawn."""
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
    """Make a figure and its plots; `size` is a plot's, in inches; `widths` are the columns' shares, None: equal.

    This goes without pyplot, which would change the backend of a notebook.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained", dpi=130)
    return figure, list(figure.subplots(rows, columns, squeeze=False, width_ratios=widths).flat)


def save(figure: Any, path: Path) -> None:
    """Write a PNG, and beside it an SVG; the same figure gives the same SVG, byte for byte."""
    from matplotlib import rc_context

    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")
    with replacing(path.with_suffix(".svg")) as temporary, rc_context({"svg.hashsalt": "dmc"}):
        figure.savefig(temporary, format="svg", metadata={"Date": None})


def in_lines(title: str) -> str:
    """Break a title that is wider than a figure."""
    return fill(title, WIDEST)


def draw_lines(
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    title: str,
    path: Path,
    log: bool = False,
    losses: bool = False,
) -> None:
    """Draw accuracies in %, or losses, against the number of something, and name each line at its end."""
    figure, (axes,) = new_figure(1, 1, size=(8, max(4.6, 1 + len(series) * PITCH / 72)))
    for line in series:
        _draw_line(axes, line)
    ticks = sorted({x for line in series for x in line.x})
    every = -(-len(ticks) // 12)
    ticks = ticks[::-1][::every]  # the last one in any case
    if log:
        axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, labels=[f"{x:,}" for x in ticks], minor=False)
    if losses:
        _fit_losses(axes)
    else:
        _fit_height(axes, series)
    axes.margins(x=0.02)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(in_lines(title), fontsize=FONT + 2)
    _tidy(axes)
    if len(series) > 1 or not losses:
        _name_ends(figure, axes, series)
    save(figure, path)


def _draw_line(axes: Any, line: Series) -> None:
    """Draw a line, the strong one on top, and its band, mean ± standard deviation."""
    look = line.look
    axes.plot(
        line.x,
        line.drawn,
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
    """Give mean ± standard deviation at each x, in %."""
    return [(100 * (y - std), 100 * (y + std)) for y, std in zip(line.y, line.spread, strict=True)]


def _fit_height(axes: Any, series: Sequence[Series]) -> None:
    """Let the y axis begin at a round number below all values, end at one above them, and leave room for markers."""
    from matplotlib.ticker import MaxNLocator

    drawn = [y for line in series for y in line.drawn]
    lowest, highest = min([0, *drawn]), max([100, *drawn])  # forgetting may be negative
    edges = [edge for line in series if line.spread for both in _band(line) for edge in both if not isnan(edge)]
    inside = [*drawn, *(min(max(edge, lowest), highest) for edge in edges)]  # of accuracies, 0 to 100% of a band
    low = floor(min([*inside, 99]))
    ticks = MaxNLocator(nbins=8, steps=[1, 2, 5, 10]).tick_values(low, max(low + 1, *inside))
    margin = 0.02 * (ticks[-1] - ticks[0])
    axes.set_yticks(ticks)
    axes.set_ylim(ticks[0] - margin, ticks[-1] + margin)


def _fit_losses(axes: Any) -> None:
    """Make the y axis logarithmic, with plain numbers at 1, 2 and 5 times each power of ten."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")


def _tidy(axes: Any) -> None:
    """Draw a pale grid behind all, and leave out the frame's top and right."""
    axes.set_axisbelow(True)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=FONT)


def _name_ends(figure: Any, axes: Any, series: Sequence[Series]) -> None:
    """Write the lines' names in a column on the right, each as near to the end of its line as the others allow."""
    ordered = sorted(series, key=lambda line: line.y[-1])
    names = [_name_end(axes, line) for line in ordered]
    figure.draw_without_rendering()  # lays the figure out, so that the height of the axes is known
    gap = PITCH / 72 * figure.dpi / axes.bbox.height
    ends = axes.transData.transform([(line.x[-1], line.drawn[-1]) for line in ordered])
    heights = axes.transAxes.inverted().transform(ends)[:, 1].tolist()
    for name, height in zip(names, apart(heights, gap, 0, 1), strict=True):
        name.set_y(height)


def _name_end(axes: Any, line: Series) -> Any:
    """Write a line's name right of the axes, at the line's height, with a thin line that leads to it."""
    return axes.annotate(
        line.label,
        (line.x[-1], line.drawn[-1]),
        xytext=(1.03, 0.5),
        textcoords=axes.transAxes,
        color=line.look.colour,
        fontsize=NAME,
        fontweight="bold" if line.look.strong else "normal",
        verticalalignment="center",
        arrowprops={"arrowstyle": "-", "color": line.look.colour, "linewidth": 0.8, "linestyle": ":",
                    "shrinkA": 1, "shrinkB": 3, "relpos": (0, 0.5)},
        annotation_clip=False,
    )  # fmt: skip


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move ascending heights as little as possible, until they are a gap apart, and within bounds if they fit there."""
    pools: list[list[float]] = []  # names that touch each other, as the places where their pool would begin
    for i, place in enumerate(wanted):
        pool = [place - i * gap]
        while pools and mean(pools[-1]) > mean(pool):
            pool = pools.pop() + pool
        pools.append(pool)
    last = max(low, high - (len(wanted) - 1) * gap)
    starts = [min(max(mean(pool), low), last) for pool in pools for _ in pool]
    return [start + i * gap for i, start in enumerate(starts)]


def draw_bars(plots: Sequence[Any], panels: Sequence[str], rows: Sequence[BarRow]) -> None:
    """Draw a panel for each column of a table, with a bar for each row; rows are named once, on the left."""
    from matplotlib.ticker import MaxNLocator

    reach = max([1, *(bar.reach for row in rows for bar in row.bars.values())])
    for plot, panel in zip(plots, panels, strict=True):
        for y, row in enumerate(rows):
            if panel in row.bars:
                _draw_bar(plot, y, row.look, row.bars[panel])
        plot.set_yticks(range(len(rows)), labels=[row.label for row in rows])
        plot.set_ylim(len(rows) - 0.4, -0.6)
        inches = plot.get_position().width * plot.figure.get_figwidth()
        plot.set_xlim(0, reach * inches / (inches - 0.3))  # with room for the number
        plot.set_xticks([x for x in MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(0, reach) if x <= 1.02 * reach])
        plot.set_title(panel, fontsize=FONT + 2)
        _tidy(plot)
        plot.grid(visible=False, axis="y")
        plot.tick_params(axis="y", length=0, labelsize=FONT + 1, labelleft=plot is plots[0])


def _draw_bar(plot: Any, y: int, look: Look, bar: Bar) -> None:
    """Draw a bar with its number; a black stroke marks the paper's number."""
    from matplotlib.patheffects import withStroke

    plot.barh(y, bar.mean, 0.72, color=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0)
    if bar.std is not None:
        plot.errorbar(bar.mean, y, xerr=bar.std, color="#444444", capsize=2, linewidth=1)
    if bar.published is not None:
        outlined = [withStroke(linewidth=4, foreground="white")]  # so that it shows on a dark bar
        plot.vlines(bar.published, y - 0.36, y + 0.36, color="black", linewidth=2, path_effects=outlined)
    plot.annotate(f"{bar.mean:.1f}", (bar.reach, y), xytext=(4, 0), textcoords="offset points", va="center",
                  fontsize=FONT)  # fmt: skip
