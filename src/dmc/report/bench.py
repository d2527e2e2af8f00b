"""The benchmark's table and figure, from whatever cells are finished."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dmc.bench.runner import Bench
from dmc.bench.summary import Spread, collected, summary
from dmc.errors import DmcError
from dmc.files import write_text
from dmc.methods import METHODS, title_of
from dmc.report.provenance import footnote

UPPER_BOUNDS = ("Oracle", "Inference twice")
COLUMNS = ("final", "average incremental", "forgetting", "intransigence", "old - new")


def report(bench: Bench, ran_as: str) -> tuple[dict[str, Any], str]:
    """The comparison's numbers and its table; the table and the figure are left in its folder."""
    summed = summary(collected(bench))
    if not summed:
        raise DmcError(f"no cell is finished; see {bench.folder}/order-*/METHOD/failed.txt")
    title = f"{bench.stream}, {bench.group_size} classes at a time, profile {ran_as}"
    draw_curves(summed, title, bench.folder / "accuracy.png")
    table = as_table(summed, title)
    made = {title_of(name): bench.made(name) for name in summed}
    rows = {name: {"profile": ran_as} | row for name, row in summed.items()}
    write_text(bench.folder / "table.md", f"{table}\n\n{footnote(made)}\n")
    write_text(bench.folder / "table.json", json.dumps(rows, indent=2) + "\n")
    return rows, table


def as_table(summed: dict[str, Any], title: str) -> str:
    """Markdown, in %."""
    lines = [f"# {title}", "", "| method | orders | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 2) + "|"]
    for method, row in summed.items():
        cells = [cell(row[column]) for column in COLUMNS]
        lines.append(f"| {title_of(method)} | {row['orders']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(value: Spread | None) -> str:
    if value is None or value["mean"] is None:
        return "-"
    spread = "" if value["std"] is None else f" ± {100 * value['std']:.1f}"
    return f"{100 * value['mean']:.1f}{spread}"


def draw_curves(summed: dict[str, Any], title: str, path: Path) -> None:
    """Accuracy over all classes so far, against their number."""
    series = [
        Series(title_of(method), row["classes"], row["accuracy"], row["spread"]) for method, row in summed.items()
    ]
    draw_lines(series, "classes so far", "accuracy, %", title, path)


@dataclass(frozen=True)
class Series:
    """A line in a figure; values are fractions."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] = ()  # standard deviations over orders


def draw_lines(series: Sequence[Series], x_label: str, y_label: str, title: str, path: Path, log: bool = False) -> None:
    """Accuracies in % against the number of something."""
    figure, (axes,) = new_figure(1, 1, size=(7, 4.6))
    titles = [method.title for method in METHODS.values()]
    for drawn, line in enumerate(series):
        i = titles.index(line.label) if line.label in titles else drawn  # a method looks alike in every figure
        axes.errorbar(
            line.x,
            [100 * y for y in line.y],
            [100 * spread for spread in line.spread] or None,
            linestyle="--" if line.label in UPPER_BOUNDS else "-",
            marker="osD^v"[i % 5],  # lines that lie on each other can still be told apart
            markersize=4,
            capsize=2,
            color="black" if line.label == "DMC" else colour(i),
            label=line.label,
            linewidth=2.6 if line.label == "DMC" else 1.4,
        )
    ticks = sorted({x for line in series for x in line.x})
    if log:
        axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, labels=[f"{x:,}" for x in ticks], fontsize=8, minor=False)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    save_accuracies(figure, axes, title, path)


def save_accuracies(figure: Any, axes: Any, title: str, path: Path) -> None:
    """What figures of accuracies in % have in common."""
    axes.set_ylim(0, 102)
    axes.set_title(title, fontsize=10)
    axes.set_axisbelow(True)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    figure.savefig(path)


def colour(i: int) -> Any:
    """Ten strong ones, then their ten pale ones."""
    from matplotlib import colormaps

    return colormaps["tab20"](2 * i % 20 + (i >= 10))


def new_figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Sequence[Any]]:
    """A figure and its plots; `size` is one plot's, in inches. pyplot would change the backend of a notebook."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained", dpi=130)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)
