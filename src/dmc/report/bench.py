"""The benchmark's table and figure, from whatever cells are finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dmc.bench.metrics import StreamScores
from dmc.bench.runner import Bench
from dmc.errors import DmcError
from dmc.files import write_text
from dmc.methods import METHODS, title_of
from dmc.report.provenance import footnote

Spread = dict[str, float | None]  # mean and std
UPPER_BOUNDS = ("Oracle", "Inference twice")
COLUMNS = ("final", "average incremental", "forgetting", "intransigence", "old - new")


def collected(bench: Bench) -> dict[str, dict[int, StreamScores]]:
    """All finished cells of a comparison, by method and order."""
    found: dict[str, dict[int, StreamScores]] = {}
    for method in bench.known_methods():
        for order in bench.orders():
            scores = bench.finished(method, order)
            if scores is not None:
                found.setdefault(method, {})[order] = scores
    return found


def report(bench: Bench, ran_as: str) -> tuple[dict[str, Any], str]:
    """The comparison's numbers and its table; the table and the figure are left in its folder."""
    summed = summary(collected(bench))
    if not summed:
        raise DmcError(f"no cell is finished; see {bench.folder}/order-*/METHOD/failed.txt")
    title = f"{bench.stream}, {bench.group_size} classes at a time, profile {ran_as}"
    draw_curves(summed, title, bench.folder / "accuracy.png")
    table = as_table(summed, title)
    made = {title_of(name): bench.made(name) for name in summed}
    write_text(bench.folder / "table.md", f"{table}\n\n{footnote(made)}\n")
    return {name: {"profile": ran_as} | row for name, row in summed.items()}, table


def summary(found: dict[str, dict[int, StreamScores]]) -> dict[str, Any]:
    """Mean and standard deviation over orders, as fractions; intransigence needs the Oracle's cells."""
    joint = found.get("oracle", {})
    result = {}
    for method, cells in found.items():
        columns: dict[str, list[float]] = {
            "final": [s.final for s in cells.values()],
            "average incremental": [s.average_incremental for s in cells.values()],
            "forgetting": [s.forgetting for s in cells.values()],
            "intransigence": [s.intransigence(joint[o]) for o, s in cells.items() if o in joint],
            "old - new": [s.old_new_gap for s in cells.values()],
            "old": [s.old for s in cells.values()],
            "new": [s.new for s in cells.values()],
            "first group": [s.per_group[-1][0] for s in cells.values()],
        }
        first = next(iter(cells.values()))
        result[method] = {
            "orders": len(cells),
            "classes": first.classes,
            "accuracy": np.mean([s.accuracy for s in cells.values()], axis=0).tolist(),
            "spread": _spread([s.accuracy for s in cells.values()]),
            "first task": np.mean(first_task := [[g[0] for g in s.per_group] for s in cells.values()], axis=0).tolist(),
            "first task spread": _spread(first_task),
            **{name: mean_std(values) if values else None for name, values in columns.items()},
            "after each group": [_after(i, cells, joint) for i in range(len(first.accuracy))],
        }
    return result


def _after(i: int, cells: dict[int, StreamScores], joint: dict[int, StreamScores]) -> dict[str, Any]:
    """What can be said once group i is learned."""
    until = {order: scores.until(i) for order, scores in cells.items()}
    now = until.values()
    found: dict[str, Any] = {
        "classes": next(iter(now)).classes[-1],
        "accuracy": mean_std([scores.final for scores in now]),
        "of each group": np.mean([scores.per_group[-1] for scores in now], axis=0).tolist(),
        "of each group, spread": _spread([scores.per_group[-1] for scores in now]),
    }
    if i == 0:  # nothing is old yet
        return found
    against = [scores.intransigence(joint[order].until(i)) for order, scores in until.items() if order in joint]
    return found | {
        "average incremental": mean_std([scores.average_incremental for scores in now]),
        "forgetting": mean_std([scores.forgetting for scores in now]),
        "intransigence": mean_std(against) if against else None,
        "old - new": mean_std([scores.old_new_gap for scores in now]),
    }


def mean_std(values: Sequence[float]) -> Spread:
    """One value has no standard deviation."""
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else None}


def _spread(of_orders: Sequence[Sequence[float]]) -> list[float]:
    """Standard deviations after each group; none of one order."""
    return np.std(of_orders, axis=0, ddof=1).tolist() if len(of_orders) > 1 else []


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
    from matplotlib import colormaps

    colours = colormaps["tab20"]
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
            color="black" if line.label == "DMC" else colours(2 * i % 20 + (i >= 10)),
            label=line.label,
            linewidth=2.6 if line.label == "DMC" else 1.4,
        )
    ticks = sorted({x for line in series for x in line.x})
    if log:
        axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, labels=[f"{x:,}" for x in ticks], fontsize=8, minor=False)
    axes.set_ylim(0, 102)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    figure.savefig(path)


def new_figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Sequence[Any]]:
    """A figure and its plots; `size` is one plot's, in inches. pyplot would change the backend of a notebook."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained", dpi=130)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)
