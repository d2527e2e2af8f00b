"""The report of reproduced tables and figures, beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, RootModel

from dmc.bench.reproduce import Reproduction, recipe_job
from dmc.documents import AnyObject, read_result
from dmc.exhibits import NONE, AnyExhibit, Line, LineChart, Number, Page, Section, Table, count
from dmc.recipes.profile import read_recipes
from dmc.recipes.recipe import load_recipes
from dmc.report.bench_page import cell_of
from dmc.report.provenance import caution
from dmc.report.reproduce import labels_of


class SavedRow(AnyObject):
    """A row of a reproduced table."""

    setting: str
    row: str
    method: str
    profile: str  # and what the user changed in it
    orders: int
    published: dict[str, Any]


class SavedRows(RootModel[list[SavedRow]]):
    """NAME-PROFILE.json: the rows of a reproduced table."""

    model_config = ConfigDict(strict=True)


def results_in(folder: Path) -> list[tuple[str, str]]:
    """Give the recipes, each with its profile, whose results a folder holds."""
    pairs = [(name, profile) for name in load_recipes() for profile in read_recipes("profiles.yaml")]
    return [(name, profile) for name, profile in pairs if (folder / f"{name}-{profile}.json").exists()]


def is_reproduction(folder: Path) -> bool:
    """Tell whether a folder holds results of recipes."""
    return bool(results_in(folder))


def reproduction_page(folder: Path) -> Page:
    """Report on every recipe that has results in a folder."""
    sections = []
    for name, profile in results_in(folder):
        job = recipe_job(name, profile, None, folder, None, [], [], False)
        rows = [row.content for row in read_result(folder / f"{name}-{profile}.json", SavedRows).root]
        text = f"The paper's {job.recipe.source}. {job.recipe.note} {caution(profile).strip()}".replace("`", "")
        ran_as = next((row["profile"] for row in rows), profile)
        sections.append(Section(f"{job.recipe.title} ({ran_as})", _shown(job, rows), " ".join(text.split())))
    return Page(f"Reproduction: {folder.resolve().name}", "beside the paper's numbers", sections)


def _shown(job: Reproduction, rows: Sequence[dict[str, Any]]) -> list[AnyExhibit]:
    shown: list[AnyExhibit] = [_table(job, rows)]
    drawn = [
        (label, row)
        for label, row in zip(labels_of(rows), rows, strict=True)
        if None not in row.get("accuracy", [None])
    ]
    if drawn:
        several = len({row["setting"] for _, row in drawn}) > 1
        lines = [
            Line(label, row["classes"], row["accuracy"], row["spread"], "" if several else row["method"])
            for label, row in drawn
        ]
        shown.append(LineChart(job.name, job.recipe.title, "classes so far", f"{job.metric}, %", lines))
    if any(row.get("per class") for row in rows):
        shown.append(_classes(rows))
    return shown


def _table(job: Reproduction, rows: Sequence[dict[str, Any]]) -> Table:
    """Put a column of published numbers beside each column for which the paper has some."""
    known = {column for row in rows for column in row["published"]}
    settings = any(row["setting"] for row in rows)
    columns = [*(["setting"] if settings else []), "row", "orders"]
    cells = [[*([row["setting"]] if settings else []), row["row"], count(row["orders"])] for row in rows]
    for column in job.recipe.columns:
        columns += [column, "published"] if column in known else [column]
        for line, row in zip(cells, rows, strict=True):
            line.append(cell_of(row.get(column)))
            line += [_published(row["published"].get(column))] if column in known else []
    return Table("Measured and published, in %", columns, cells, "Mean ± standard deviation over class orders.")


def _published(value: Sequence[float] | None) -> Number:
    return Number(value[0], " ± ".join(f"{number:g}" for number in value)) if value else Number(None, NONE)


def _classes(rows: Sequence[dict[str, Any]]) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row.get("per class", {})))
    lines = [[name, *(cell_of(row.get("per class", {}).get(name)) for row in rows)] for name in names]
    return Table("Each class, in %", ["class", *labels_of(rows)], lines)
