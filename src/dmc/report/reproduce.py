"""A reproduced table or figure, beside the paper's published numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from dmc.bench.reproduce import Reproduction, Row
from dmc.bench.runner import Bench
from dmc.bench.summary import Spread, collected
from dmc.methods import METHODS
from dmc.metrics.incremental import Confusion, in_order_of_arrival
from dmc.recipes.recipe import load_recipes
from dmc.report.bench import cell
from dmc.report.confusions import draw_confusions
from dmc.report.figures import (
    FONT,
    Bar,
    BarRow,
    Look,
    Series,
    draw_bars,
    draw_lines,
    in_lines,
    look_of,
    new_figure,
    save,
    setting_look,
)
from dmc.report.provenance import caution

Lines = tuple[list[str], list[list[str]]]  # the heads of the columns, and the cells of each line


def report(job: Reproduction, rows: Sequence[Row]) -> str:
    """Draw the recipe's figure; return its table."""
    benches = {name: bench for name, bench in job.benches().items() if bench.folder.exists()}
    draw(job, benches, rows, job.folder / f"{job.name}-{job.profile}.png")
    return as_table(job, rows)


def as_table(job: Reproduction, rows: Sequence[Row]) -> str:
    """Format a table in Markdown, in %.

    Published numbers are beside the measured ones, or below them where there is a column for each class.
    """
    heads, lines = with_classes(job, rows) if job.recipe.per_class else beside_published(job, rows)
    settings = any(row["setting"] for row in rows)
    shown = [cells if settings else cells[1:] for cells in (["setting", "row", *heads], *lines)]
    table = ["| " + " | ".join(cells) + " |" for cells in shown]
    about = [
        f"# {job.recipe.title} (profile {job.ran_as})",
        "",
        f"The paper's {job.recipe.source}. {job.recipe.note}".strip(),
        "",
    ]
    return "\n".join([*about, table[0], "|---" * len(shown[0]) + "|", *table[1:]]) + caution(job.profile)


def beside_published(job: Reproduction, rows: Sequence[Row]) -> Lines:
    """Make the table with a column of published numbers beside each column for which the paper has some."""
    known = {column for row in rows for column in row["published"]}
    heads, lines = ["orders"], [[row["setting"], row["row"], str(row["orders"])] for row in rows]
    for column in job.recipe.columns:
        heads += [column, "*published*"] if column in known else [column]
        for line, row in zip(lines, rows, strict=True):
            line.append(cell(row.get(column)))
            line += [_published(row["published"].get(column)) or "-"] if column in known else []
    return heads, lines


def with_classes(job: Reproduction, rows: Sequence[Row]) -> Lines:
    """Make the table with a column for each class, and the paper's numbers in a line below each row that it has."""
    groups = [group for comparison in job.comparisons().values() for group in comparison.profile.groups]
    classes, columns = in_order_of_arrival(groups), job.recipe.columns
    lines = []
    for row in rows:
        shown = [*(row["per class"].get(name) for name in classes), *(row.get(column) for column in columns)]
        lines.append([row["setting"], row["row"], *(cell(value, none="") for value in shown)])
        if paper := row["published"]:
            per_class = paper.get("per class", {})
            numbers = [*([per_class.get(name)] for name in classes), *(paper.get(column) for column in columns)]
            told = [f"*{_published(value)}*" if value and value[0] is not None else "" for value in numbers]
            lines.append([row["setting"], f"*{row['row']}, published*", *told])
    return [*classes, *columns], lines


def _published(value: Sequence[float] | None) -> str:
    return " ± ".join(f"{number:g}" for number in value or ())


def as_list(recipes: Mapping[str, Mapping[str, Any]]) -> str:
    """List all recipes and the data that they need."""
    lines = []
    data: dict[str, Mapping[str, str]] = {}
    for name, recipe in recipes.items():
        data |= recipe["data"]
        sizes = ", ".join(map(str, recipe["group sizes"]))
        lines += [f"{name:<17} {recipe['title']}, g = {sizes}; needs {', '.join(recipe['data'])}"]
        lines += [f"{'':<17} {recipe['source']}"]
    lines += ["", "data, below the data root (what needs no login can be downloaded):"]
    lines += [f"  {name:<14} {about['what']}; {about['size']}, {about['from']}" for name, about in data.items()]
    return "\n".join(lines)


def draw(job: Reproduction, benches: Mapping[str, Bench], rows: Sequence[Row], path: Path) -> None:
    """Draw the recipe's figure, if there are rows to draw."""
    title, metric = f"{job.recipe.title} (profile {job.ran_as})", job.metric
    if not rows:
        return
    if job.recipe.figure == "confusion":
        _draw_confusions(job, benches, title, path)
    elif job.recipe.figure == "amount":
        by_amount = _by_amount(benches, rows)
        if by_amount:  # none, if all rows have a share of the images, or all of them
            series = [*by_amount, *lwf_lines(job, benches)]
            draw_lines(series, "auxiliary images", f"average incremental {metric}, %", title, path, log=True)
    elif job.recipe.figure == "bars":
        _draw_bars(job.recipe.columns, rows, metric, title, path)
    else:
        first = job.recipe.figure == "first-task"
        y, spread = ("first task", "first task spread") if first else ("accuracy", "spread")
        series = [
            Series(label, look, row["classes"], row[y], row[spread])
            for label, look, row in zip(labels_of(rows), _looks(rows), rows, strict=True)
        ]
        what = f"{metric} on the first group, %" if first else f"{metric}, %"
        draw_lines(series, "classes so far", what, title, path)


def labels_of(rows: Sequence[Row]) -> list[str]:
    """Label rows by what tells them apart: the method, the setting, or both."""
    parts = [key for key in ("row", "setting") if len({row[key] for row in rows}) > 1] or ["row"]
    return [", ".join(row[key] for key in parts) for row in rows]


def _looks(rows: Sequence[Row]) -> list[Look]:
    """Give each row its look.

    A method looks as in every figure, and has a variant of that for each setting; if there is only one method, each
    setting has a colour of its own.
    """
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    only_settings = len(settings) > 1 and len({row["row"] for row in rows}) == 1
    return [
        setting_look(i) if only_settings else look_of(row["method"]).variant(settings.index(row["setting"]))
        for i, row in enumerate(rows)
    ]


def _draw_bars(columns: Sequence[str], rows: Sequence[Row], metric: str, title: str, path: Path) -> None:
    """Draw a table as bars; a black stroke marks the paper's number."""
    bars = [
        BarRow(label, look, {column: _bar(row, column) for column in columns if cell(row.get(column), none="")})
        for label, look, row in zip(labels_of(rows), _looks(rows), rows, strict=True)
    ]
    figure, plots = new_figure(1, len(columns), size=(8 / len(columns), 1.2 + 0.3 * len(rows)))
    draw_bars(plots, columns, bars)
    figure.suptitle(in_lines(title), fontsize=FONT + 2)
    published = "; black: the paper, at its settings" if any(row["published"] for row in rows) else ""
    figure.supxlabel(f"{metric}, %{published}", fontsize=FONT + 1)
    save(figure, path)


def _bar(row: Row, column: str) -> Bar:
    std, published = row[column]["std"], row["published"].get(column)
    return Bar(100 * row[column]["mean"], None if std is None else 100 * std, published[0] if published else None)


def _by_amount(benches: Mapping[str, Bench], rows: Sequence[Row]) -> list[Series]:
    """Make a line over the amounts of auxiliary images for each method and group size."""
    lines: dict[tuple[str, str, int], list[tuple[float, Any]]] = {}
    for row in rows:
        bench = benches[row["setting"]]
        if isinstance(bench.profile.aux_images, int):  # all images, or a share of them, are no number to draw at
            point = (bench.profile.aux_images, row["average incremental"])
            lines.setdefault((row["row"], row["method"], bench.group_size), []).append(point)
    return [
        Series(
            f"{title}, g = {size}",
            _sized(method, size, benches),
            [x for x, _ in points],
            [y["mean"] for _, y in points],
            _stds([y for _, y in points]),
        )
        for (title, method, size), points in ((key, sorted(line, key=itemgetter(0))) for key, line in lines.items())
    ]


def _sized(method: str, size: int, benches: Mapping[str, Bench]) -> Look:
    """Give a method's colour with the line style of a group size."""
    return look_of(method).variant(sorted({bench.group_size for bench in benches.values()}).index(size))


def _stds(values: Sequence[Spread]) -> list[float]:
    """Give the standard deviations, NaN where a value has none; an empty list if no value has one."""
    stds = [value["std"] for value in values]
    return [] if all(std is None for std in stds) else [nan if std is None else std for std in stds]


def lwf_lines(job: Reproduction, benches: Mapping[str, Bench]) -> list[Series]:
    """Make level lines for LwF, which uses no auxiliary images, as in the paper's figure.

    Its accuracies come from the recipe that compares all methods on the same groups, if the folder has its cells.
    """
    counts = (bench.profile.aux_images for bench in benches.values())
    amounts = sorted({count for count in counts if isinstance(count, int)})
    found: dict[str, Series] = {}
    lengths = {bench.group_size: len(bench.groups(0)) for bench in benches.values() if bench.groups(0)}
    for size, groups in lengths.items():
        for name, recipe in load_recipes().items():
            if recipe.figure != "curves" or recipe.at(job.profile).group_sizes != (size,):
                continue
            (bench,) = replace(job, name=name, recipe=recipe.at(job.profile), also={}).benches().values()
            for method, cells in collected(bench).items():
                if method in ("lwf", "lwf.mc"):
                    label = f"{METHODS[method].title}, g = {size}"
                    mean = float(np.mean([scores.until(groups - 1).average_incremental for scores in cells.values()]))
                    found[label] = Series(label, _sized(method, size, benches), amounts, [mean] * len(amounts))
    return list(found.values())


def _draw_confusions(job: Reproduction, benches: Mapping[str, Bench], title: str, path: Path) -> None:
    """Draw confusion matrices after the last group, summed over orders."""
    panels: dict[str, Any] = {}
    for name, bench in benches.items():
        last = len(bench.groups(bench.orders()[0])) - 1
        for row, method in job.rows_of(job.comparisons()[name]).items():
            done = [order for order in bench.orders() if bench.finished(method.name, order)]
            if done:
                title_of_panel = row if len(benches) == 1 else f"{row}, {name}"
                measured = [bench.measured(method.name, order, last) for order in done]
                panels[title_of_panel] = sum(one.matrix for one in measured if isinstance(one, Confusion))
    draw_confusions(panels, title, path, "class, in order of arrival")
