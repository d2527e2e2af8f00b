"""The benchmark's table and figure, made from the cells that are finished."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from dmc.bench.comparison import ComparisonFolder
from dmc.bench.summary import Spread, collected, summary
from dmc.errors import DmcError
from dmc.files import write_text
from dmc.methods import title_of
from dmc.report.figures import Series, draw_lines, look_of
from dmc.report.provenance import caution, footnote

COLUMNS = ("final", "average incremental", "forgetting", "intransigence", "old - new")


def report(bench: ComparisonFolder, ran_as: str, command: str | None = None) -> tuple[dict[str, Any], str]:
    """Write a comparison's table and figure into its folder; return its numbers and its table.

    `ran_as` names the profile and its changes; `command` is what the user typed.
    """
    found = collected(bench)
    summed = summary(found)
    if not summed:
        raise DmcError(f"no cell is finished; see {bench.folder}/order-*/METHOD/failed.txt")
    title = f"{bench.stream}, {bench.arrival}, profile {ran_as}"
    draw_curves(summed, title, bench.folder / "accuracy.png", bench.profile.task.metric)
    table = as_table(summed, title) + other_orders(found) + caution(bench.profile.name)
    made = {title_of(name): bench.made(name) for name in summed}
    rows = {name: {"profile": ran_as} | row for name, row in summed.items()}
    write_text(bench.folder / "table.md", f"{table}\n\n{footnote(made, command)}\n")
    write_text(bench.folder / "table.json", json.dumps(rows, indent=2) + "\n")
    return rows, table


def as_table(summed: dict[str, Any], title: str) -> str:
    """Format the summary as a table in Markdown, in %."""
    lines = [f"# {title}", "", "| method | orders | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 2) + "|"]
    for method, row in summed.items():
        cells = [cell(row[column]) for column in COLUMNS]
        lines.append(f"| {title_of(method)} | {row['orders']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def other_orders(found: Mapping[str, Collection[int]]) -> str:
    """Say which class orders each method was run in, if these are not the same: then rows do not compare."""
    orders = {title_of(method): ", ".join(map(str, sorted(cells))) for method, cells in found.items()}
    if len(set(orders.values())) == 1:
        return ""
    listed = "; ".join(f"{title}: {numbers}" for title, numbers in orders.items())
    return f"\n\nMethods were run in different class orders, so rows do not compare. {listed}."


def cell(value: Spread | None, none: str = "-") -> str:
    """Format a mean and its standard deviation in %; `none` where there is no mean."""
    if value is None or value["mean"] is None:
        return none
    spread = "" if value["std"] is None else f" ± {100 * value['std']:.1f}"
    return f"{100 * value['mean']:.1f}{spread}"


def draw_curves(summed: dict[str, Any], title: str, path: Path, metric: str = "accuracy") -> None:
    """Draw the accuracy on all classes so far against their number, for methods that are tested on all of them."""
    series = [
        Series(title_of(method), look_of(method), row["classes"], row["accuracy"], row["spread"])
        for method, row in summed.items()
        if None not in row["accuracy"]
    ]
    if series:  # none, if all that was run are parts of methods
        draw_lines(series, "classes so far", f"{metric}, %", title, path)
