"""Runs a recipe and puts what was measured beside what the paper published."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dmc.bench import datasets, streams
from dmc.bench.detection import DetectionReproduction, load_detection_profile, load_detection_recipes
from dmc.bench.runner import Bench, confusion
from dmc.bench.summary import collected, mean_std, summary
from dmc.errors import DmcError, require_known
from dmc.files import digest
from dmc.methods import Method, method_named
from dmc.metrics.incremental import Matrix
from dmc.models.load import load
from dmc.models.model import require
from dmc.models.specialist import Specialist
from dmc.recipes.profile import Profile, load_profile
from dmc.recipes.recipe import Changes, Comparison, Recipe, comparisons, load_recipes, parsed_variants, published

log = logging.getLogger("dmc")
OF_SPECIALISTS = ("arch", "weights", "preprocessing", "overlap", "specialist")  # all that they depend on
Row = dict[str, Any]  # setting, row, orders, and for each column what was measured and what was published


@dataclass(frozen=True)
class Reproduction:
    """A recipe under a profile. Comparisons are kept in folders named by what they are, so recipes share them."""

    name: str
    recipe: Recipe
    profile: str
    orders: int
    folder: Path
    data_root: Path | None = None
    added: Sequence[str] = ()  # methods
    also: Mapping[str, Changes] = field(default_factory=dict)
    skip_missing: bool = False  # leave out settings whose data is not there

    def benches(self) -> dict[str, Bench]:
        return {c.setting: self._bench(c) for c in comparisons(self.recipe, self.profile, self.also)}

    def _bench(self, comparison: Comparison) -> Bench:
        settings = comparison.profile.identity
        place = f"{self.recipe.stream}-g{comparison.group_size}-{self.profile}"
        return Bench(
            self.recipe.stream,
            comparison.group_size,
            comparison.profile,
            self.folder / f"{place}-{digest(settings)}",
            self.data_root,
            common=self.folder / f"{place}-specialists-{digest({key: settings.get(key) for key in OF_SPECIALISTS})}",
        )

    def methods(self) -> list[Method]:
        return [method_named(name) for name in dict.fromkeys((*self.recipe.methods, *self.added))]

    def download(self) -> None:
        datasets.download(needed_data(self.recipe, self.profile, self.also), self.data_root)

    def run(self) -> list[Row]:
        """Everything that is not finished yet. All data is looked for before anything trains."""
        benches = self.ready()
        for bench in benches.values():
            bench.run_all(self.methods(), range(self.orders))
        rows = self.rows(benches)
        if not rows:
            raise DmcError(f"no cell is finished; see failed.txt below {self.folder}")
        return rows

    def made(self, rows: Sequence[Row]) -> dict[str, list[dict[str, Any]]]:
        """How each row was made."""
        benches = self.benches()
        return {
            f"{row['setting']}, {row['row']}": benches[row["setting"]].made(row["method"])
            for row in rows
            if "method" in row
        }

    def ready(self) -> dict[str, Bench]:
        """The settings that are finished, and those whose data is there, all of them checked."""
        ready, methods = self.benches(), self.methods()
        with_aux = any(method.uses_aux for method in methods)
        to_do = [
            s for s, bench in ready.items() if bench.profile.overlap or not bench.complete(methods, range(self.orders))
        ]
        if not self.skip_missing:
            wanted = [streams.needed_data(self.recipe.stream, ready[s].profile, with_aux) for s in to_do]
            datasets.require(dict.fromkeys(name for names in wanted for name in names), self.data_root)
        for setting in to_do:
            try:
                stream = ready[setting].open(0, with_aux)
            except DmcError as error:
                if not self.skip_missing:
                    raise
                log.warning(f"{setting} is left out: {error}")
                del ready[setting]
                continue
            if ready[setting].profile.overlap and len(stream.groups) != 2:
                raise DmcError(f"{setting}: {len(stream.groups)} groups overlap, but two are compared; change classes")
        if not ready:
            raise DmcError(f"{self.name}: the data of every setting is missing")
        for setting in to_do:
            if setting in ready:
                ready[setting].require_runnable(methods)
        return ready

    def rows(self, benches: Mapping[str, Bench]) -> list[Row]:
        """For each setting and method: measured (mean and standard deviation over orders) and published."""
        found = []
        for setting, bench in benches.items():
            if bench.profile.overlap:
                for method in self.methods():
                    found += _overlap_rows(setting, bench, method, self.orders, with_teachers=method.name == "dmc")
                continue
            measured = summary(collected(bench))
            for method in self.methods():
                if method.name in measured:
                    names = {"setting": setting, "row": method.title, "method": method.name}
                    found.append(names | measured[method.name])
        paper_rows = published(self.name)
        # Where settings are not what is compared, a profile's own one stands for the paper's.
        by_row = not self.recipe.variants and len({row["setting"] for row in paper_rows}) == 1
        known = {row["row"] if by_row else (row["setting"], row["row"]): row for row in paper_rows}
        added = {c.setting for c in comparisons(self.recipe, self.profile, self.also) if c.added}
        for row in found:
            paper = known.get(row["row"] if by_row else (row["setting"], row["row"]), {})
            paper = {} if row["setting"] in added else paper
            row["profile"] = self.profile
            row["published"] = {column: paper[column] for column in self.recipe.columns if column in paper}
        return found


def recipe_job(
    name: str,
    profile: str,
    orders: int | None,
    folder: Path,
    data_root: Path | None,
    added: Sequence[str],
    also: Sequence[str],
    skip_missing: bool,
) -> Reproduction | DetectionReproduction:
    """What is to be done for a recipe of either kind."""
    classifiers, detectors = load_recipes(), load_detection_recipes()
    require_known("recipe", name, [*classifiers, *detectors])
    if name in detectors:
        if added or also or skip_missing:
            raise DmcError(f"{name} is about detectors: more methods or settings, or missing data, are for classifiers")
        settings = load_detection_profile(profile)
        return DetectionReproduction(name, detectors[name], settings, orders or 1, folder, data_root)
    variants = parsed_variants(also)
    recipe = classifiers[name].at(profile)
    return Reproduction(name, recipe, profile, orders or 5, folder, data_root, added, variants, skip_missing)


def known_recipes(profile: str) -> dict[str, dict[str, Any]]:
    """Describe every recipe by name."""
    found = {name: listed(recipe, profile) for name, recipe in load_recipes().items()}
    settings = load_detection_profile(profile)
    return found | {name: recipe.listed(settings) for name, recipe in load_detection_recipes().items()}


def needed_data(recipe: Recipe, profile: str, also: Mapping[str, Changes] | None = None) -> list[str]:
    """The names of the data sets that a recipe wants."""
    with_aux = any(method_named(name).uses_aux for name in recipe.methods)
    wanted = [streams.needed_data(recipe.stream, c.profile, with_aux) for c in comparisons(recipe, profile, also or {})]
    return list(dict.fromkeys(name for names in wanted for name in names))


def listed(recipe: Recipe, profile: str) -> dict[str, Any]:
    """Describe a recipe: what it compares, and the data that it needs."""
    shown = recipe.at(profile)
    default = load_profile(profile, recipe.stream)
    return {
        "title": recipe.title,
        "source": recipe.source,
        "group sizes": list(shown.group_sizes),
        "methods": list(shown.methods),
        "settings": list(shown.variants),
        "classes": shown.settings.get("classes", default.classes),
        "data": datasets.described(needed_data(recipe, profile)) | _weights(default),
    }


def _weights(profile: Profile) -> dict[str, dict[str, str]]:
    if profile.weights != "imagenet":
        return {}
    where = "the hub, fetched by timm; or a file, weights=FILE"
    return {f"{profile.arch} weights": {"what": f"{profile.arch} trained on ImageNet", "size": "0.5 GB", "from": where}}


def _overlap_rows(setting: str, bench: Bench, method: Method, orders: int, with_teachers: bool) -> list[Row]:
    """DMC's two teachers, each asked about its own classes, and a method's model, by who knew the class."""
    own = "Consolidated" if with_teachers else method.title
    cells: dict[str, list[dict[str, float]]] = {"Model 1": [], "Model 2": []} if with_teachers else {}
    cells[own] = []
    for order in range(orders):
        last = bench.cell_folder(method.name, order) / "group-1" / "confusion.npy"
        if not last.exists():
            continue
        stream = bench.open(order)
        first, second = (set(group) for group in stream.groups)
        answers: dict[str, tuple[Matrix, Sequence[str]]] = {own: (np.load(last), stream.so_far(1))}
        if with_teachers:
            new = require(load(bench.shared_folder(order, stream, 1) / "specialist"), Specialist)
            answers |= {
                "Model 1": (np.load(last.parent.parent / "group-0" / "confusion.npy"), stream.so_far(0)),
                "Model 2": (confusion(new, stream.test, stream.groups[1]), stream.groups[1]),
            }
        spans = {"only first": first - second, "common": first & second, "only second": second - first}
        for row, (matrix, names) in answers.items():
            parts = spans | ({"all": first | second} if row == own else {})
            cells[row].append({span: _accuracy(matrix, names, of) for span, of in parts.items() if of & set(names)})
    return [
        {
            "setting": setting,
            "row": row,
            **({"method": method.name} if row == own else {}),
            "orders": len(found),
            **{span: mean_std([cell[span] for cell in found]) for span in found[0]},
        }
        for row, found in cells.items()
        if found
    ]


def _accuracy(matrix: Matrix, names: Sequence[str], of: set[str]) -> float:
    rows = [i for i, name in enumerate(names) if name in of]
    return float(np.diag(matrix)[rows].sum() / matrix[rows].sum())
