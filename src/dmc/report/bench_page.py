"""The report of a comparison of class-incremental methods, also of one that is still going."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dmc.bench.comparison import ComparisonFolder
from dmc.bench.summary import collected, summary
from dmc.documents import Document, read_json
from dmc.errors import DmcError
from dmc.exhibits import (
    AnyExhibit,
    BarChart,
    Cell,
    Confusion,
    Confusions,
    Line,
    LineChart,
    Number,
    Page,
    Section,
    Table,
    count,
    percent,
)
from dmc.methods import title_of
from dmc.metrics import incremental
from dmc.recipes.profile import Profile
from dmc.report.bench import COLUMNS
from dmc.report.provenance import caution

MOST_MATRICES = 16  # side by side
MOST_PANELS = 4  # of bars


class SavedBench(Document):
    """What a report reads of bench.json."""

    stream: str
    group_size: int
    profile: dict[str, Any]


def is_bench(folder: Path) -> bool:
    """Tell whether a folder holds a comparison."""
    return (folder / "bench.json").exists()


def opened(folder: Path) -> ComparisonFolder:
    """Open the comparison in a folder, to read its results."""
    path = folder / "bench.json"
    asked = read_json(path, SavedBench)
    try:
        profile = Profile.of(asked.profile)
    except DmcError as error:
        raise DmcError(f"{path} is damaged: it has a profile in which {error}") from None
    return ComparisonFolder(asked.stream, asked.group_size, profile, folder)


def bench_page(folder: Path) -> Page:
    """Report on the cells that are finished."""
    bench = opened(folder)
    sections = comparison(bench)
    unfinished = progress_of(bench)
    subtitle = f"{Path(bench.stream).name}, {bench.arrival}, profile {bench.profile.name}"
    return Page(f"Benchmark: {folder.resolve().name}", subtitle, [*sections, *unfinished])


def comparison(bench: ComparisonFolder) -> list[Section]:
    """Show the table, the curves and the confusion matrices of a comparison."""
    summed = summary(collected(bench))
    if not summed:
        return [Section("Results", [], "No method has come to the end of a class order yet.")]
    text = caution(bench.profile.name).strip().replace("`", "")
    sections = [Section("Results", [_table(summed)], text), Section("Curves", _curves(summed, bench))]
    matrices = _matrices(bench, list(summed))
    if matrices:
        note = "After the last group of one class order; classes are in order of arrival."
        sections.append(Section("Confusion", [Confusions("confusion", "", matrices, note)]))
    return [*sections, Section("Classes", _classes(summed, bench, bars=not matrices))]


def cell_of(value: Mapping[str, float | None] | None) -> Number:
    """Make a table's cell of a mean and a standard deviation."""
    return percent(None) if value is None else percent(value["mean"], value["std"])


def _table(summed: Mapping[str, Any]) -> Table:
    rows: list[list[Cell]] = [
        [title_of(method), count(row["orders"]), *(cell_of(row[column]) for column in COLUMNS)]
        for method, row in summed.items()
    ]
    note = "In %, mean ± standard deviation over class orders; of forgetting and intransigence, less is better."
    return Table("Every method", ["method", "orders", *COLUMNS], rows, note)


def _curves(summed: Mapping[str, Any], bench: ComparisonFolder) -> list[AnyExhibit]:
    """Show accuracy, accuracy on the first group and forgetting against the number of classes so far."""
    metric, shown = bench.profile.task.metric, {m: row for m, row in summed.items() if None not in row["accuracy"]}
    whole, first, forgotten = list[Line](), list[Line](), list[Line]()
    for method, row in shown.items():
        name, later = title_of(method), row["after each group"][1:]
        whole.append(Line(name, row["classes"], row["accuracy"], row["spread"], method))
        if None not in row["first task"]:
            first.append(Line(name, row["classes"], row["first task"], row["first task spread"], method))
        means = [after["forgetting"]["mean"] for after in later]
        if means and None not in means:
            stds = [after["forgetting"]["std"] for after in later]
            spread = [] if None in stds else stds
            forgotten.append(Line(name, [after["classes"] for after in later], means, spread, method))
    x, bands = "classes so far", "Bands: ± one standard deviation over class orders. Point at a method to see it alone."
    score = f"{metric[0].upper()}{metric[1:]}"
    charts = [
        LineChart("accuracy", f"{score} on all classes so far", x, f"{metric}, %", whole, note=bands),
        LineChart("first-group", f"{score} on the first group's classes", x, f"{metric}, %", first, note=bands),
        LineChart("forgetting", "Forgetting of earlier groups", x, "forgetting, points", forgotten, note=bands),
    ]
    return [chart for chart in charts if chart.lines]


def _matrices(bench: ComparisonFolder, methods: list[str]) -> list[Confusion]:
    """Give each method's confusion matrix after the last group, in the first order that it has finished."""
    found = []
    for method in methods[:MOST_MATRICES]:
        order = next(order for order in bench.orders() if bench.finished(method, order))
        measured = bench.measured(method, order, len(bench.groups(order)) - 1)
        if isinstance(measured, incremental.Confusion):
            found.append(Confusion(title_of(method), measured.names, measured.names, measured.matrix))
    return found


def _classes(summed: Mapping[str, Any], bench: ComparisonFolder, bars: bool) -> list[AnyExhibit]:
    """Show the final score of each class: as a table and, if asked for, as bars of the first methods."""
    names = list(dict.fromkeys(name for row in summed.values() for name in row["per class"]))
    rows = [[name, *(cell_of(row["per class"].get(name)) for row in summed.values())] for name in names]
    metric = bench.profile.task.metric
    shown: list[AnyExhibit] = [Table(f"{metric} of each class, %", ["class", *map(title_of, summed)], rows)]
    if bars:
        some = list(summed)[:MOST_PANELS]
        values = [(name, [(summed[m]["per class"].get(name) or {}).get("mean") for m in some]) for name in names]
        axis = f"{metric} (VOC 2007), %" if metric == "mAP" else f"{metric}, %"
        shown.insert(0, BarChart("per-class", "Each class", axis, [title_of(m) for m in some], values))
    return shown


def progress_of(bench: ComparisonFolder) -> list[Section]:
    """Show how far the cells are that are not finished."""
    rows: list[list[Cell]] = []
    for order in bench.orders():
        groups = len(bench.groups(order))
        for method in bench.known_methods():
            place = bench.cell_folder(method, order)
            done = sum((place / f"group-{i}" / bench.measurement.file).exists() for i in range(groups))
            if done < groups:
                rows.append([title_of(method), count(order), count(done), count(groups)])
    columns = ["method", "class order", "groups learned", "of"]
    return [Section("Not finished", [Table("", columns, rows)])] if rows else []
