"""Run a recipe and put what was measured beside what the paper published."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dmc.bench import datasets, streams
from dmc.bench.coco import VOC
from dmc.bench.engines import Engine
from dmc.bench.runner import Bench, Cell
from dmc.bench.summary import collected, mean_std, summary
from dmc.errors import DmcError, require_known
from dmc.files import digest
from dmc.methods import Method, method_named, title_of
from dmc.recipes.profile import Profile, parsed_settings
from dmc.recipes.recipe import Changes, Comparison, Recipe, comparisons, load_recipes, parsed_variants, published

log = logging.getLogger("dmc")
OF_SPECIALISTS = ("arch", "weights", "preprocessing", "overlap", "specialist")  # the settings that they depend on
AND_PERHAPS = ("data", "size")  # and these where they are set, so that other folders keep their names
Row = dict[str, Any]  # setting, row, orders, what was measured in each column, and the paper's numbers ("published")


@dataclass(frozen=True)
class Reproduction:
    """A recipe under a profile. A comparison's folder is named by its stream and settings, so that recipes share it."""

    name: str
    recipe: Recipe
    profile: str
    orders: int
    folder: Path
    data_root: Path | None = None
    added: Sequence[str] = ()  # methods that the user adds
    also: Mapping[str, Changes] = field(default_factory=dict)  # variants that the user adds
    skip_missing: bool = False  # leave out settings whose data is missing
    settings: Sequence[str] = ()  # that the user changes in all rows, as `loss=kd`

    def comparisons(self) -> dict[str, Comparison]:
        """Give the recipe's comparisons by name."""
        return {c.name: c for c in comparisons(self.recipe, self.profile, self.also, self.given)}

    @property
    def given(self) -> Changes:
        """The settings that the user changes."""
        return parsed_settings(self.settings)

    @property
    def ran_as(self) -> str:
        """The profile, and what the user changes in it."""
        return f"{self.profile} with {', '.join(self.settings)}" if self.settings else self.profile

    @property
    def metric(self) -> str:
        """The name of what is measured: accuracy, or mAP."""
        return next(iter(self.comparisons().values())).profile.task.metric

    def benches(self) -> dict[str, Bench]:
        """Give the runner of each comparison, by the comparison's name."""
        return {name: self._bench(comparison) for name, comparison in self.comparisons().items()}

    def _bench(self, comparison: Comparison) -> Bench:
        settings, groups = comparison.profile.identity, comparison.profile.groups
        cells = "+".join(str(len(group)) for group in groups) if groups else f"g{comparison.group_size}"
        shared = {key: settings.get(key) for key in OF_SPECIALISTS}
        shared |= {key: settings[key] for key in AND_PERHAPS if key in settings}
        among = "" if groups else f"{cells}-"
        return Bench(
            self.recipe.stream,
            comparison.group_size,
            comparison.profile,
            self.folder / f"{self.recipe.stream}-{cells}-{self.profile}-{digest(settings)}",
            self.data_root,
            common=self.folder / f"{self.recipe.stream}-{among}{self.profile}-specialists-{digest(shared)}",
        )

    def rows_of(self, comparison: Comparison) -> dict[str, Method]:
        """Give the method of each row by its title.

        Methods that the user adds join a comparison only if its rows change no settings.
        """
        added = self.added if comparison.name == comparison.setting else ()
        wanted = [*comparison.rows.items(), *((name, name) for name in added)]
        return {title_of(row): method_named(method) for row, method in wanted}

    def download(self) -> None:
        """Download the data sets that the recipe needs and that are missing."""
        datasets.download(needed_data(self.recipe, self.profile, self.also, self.given), self.data_root)

    def run(self, engine: Engine) -> list[Row]:
        """Run what is not finished yet, and give the rows. All data is looked for before anything trains."""
        benches = self.ready()
        for bench in benches.values():
            bench.claim_folder()
        engine.run(self.cells(benches))
        rows = self.rows(benches)
        if not rows:
            raise DmcError(f"no cell is finished; see failed.txt below {self.folder}")
        return rows

    def cells(self, benches: Mapping[str, Bench]) -> list[Cell]:
        """Give the cells that are not finished."""
        compared = self.comparisons()
        cells: dict[Path, Cell] = {}  # by folder: two comparisons may have the same settings
        for name, bench in benches.items():
            found = bench.cells([*self.rows_of(compared[name]).values()], range(self.orders))
            cells |= {cell.folder: cell for cell in found}
        return list(cells.values())

    def made(self, rows: Sequence[Row]) -> dict[str, list[dict[str, Any]]]:
        """Tell how each row was made: commit, versions and minutes of each of its groups."""
        shown, benches = {(row["setting"], row["row"]) for row in rows}, self.benches()
        return {
            ", ".join(filter(None, (comparison.setting, row))): benches[name].made(method.name)
            for name, comparison in self.comparisons().items()
            for row, method in self.rows_of(comparison).items()
            if (comparison.setting, row) in shown
        }

    def ready(self) -> dict[str, Bench]:
        """Give the comparisons that are finished, and those that can run, once all of these are checked."""
        ready = self.benches()
        methods = {name: [*self.rows_of(comparison).values()] for name, comparison in self.comparisons().items()}
        to_do = [name for name, bench in ready.items() if not bench.complete(methods[name], range(self.orders))]
        with_aux = {name: any(method.needs_aux(ready[name].profile) for method in methods[name]) for name in to_do}
        if not self.skip_missing:
            wanted = [streams.needed_data(self.recipe.stream, ready[name].profile, with_aux[name]) for name in to_do]
            datasets.require(dict.fromkeys(data for names in wanted for data in names), self.data_root)
        opened = {}
        for name in to_do:
            try:
                opened[name] = ready[name].open(0, with_aux[name])
            except DmcError as error:
                if not self.skip_missing:
                    raise
                log.warning(f"{name or self.name} is left out: {error}")
                del ready[name]
                continue
            groups = opened[name].groups
            if ready[name].profile.overlap and len(groups) != 2:
                raise DmcError(f"{name}: overlap is measured between two groups, not {len(groups)}: change classes")
        if not ready:
            raise DmcError(f"{self.name}: the data of every setting is missing")
        for name, stream in opened.items():
            ready[name].require_runnable(methods[name], stream)
        return ready

    def rows(self, benches: Mapping[str, Bench]) -> list[Row]:
        """Give a row for each setting and method: measured (mean and standard deviation over orders) and published."""
        found, compared = [], self.comparisons()
        for name, bench in benches.items():
            scores = by_overlap(bench, self.orders) if bench.profile.overlap else summary(collected(bench))
            for row, method in self.rows_of(compared[name]).items():
                if method.name in scores:
                    names = {"setting": compared[name].setting, "row": row, "method": method.name}
                    found.append(names | scores[method.name] | {"profile": self.ran_as})
        order = [title_of(row) for row in (*self.recipe.all_rows, *self.added)]
        settings = list(dict.fromkeys(row["setting"] for row in found))
        found.sort(key=lambda row: (settings.index(row["setting"]), order.index(row["row"])))
        return self._beside_published(found)

    def _beside_published(self, rows: Sequence[Row]) -> list[Row]:
        """Add the paper's numbers, except to settings that the user adds and to classes other than the paper's."""
        paper_rows = published(self.name)
        # Where the recipe does not compare settings, the profile's one setting stands for the paper's.
        by_row = not self.recipe.variants and len({row["setting"] for row in paper_rows}) == 1
        known = {row["row"] if by_row else (row["setting"], row["row"]): row for row in paper_rows}
        groups = {c.setting: c.profile.groups for c in comparisons(load_recipes()[self.name], "paper", {})}
        compared = self.comparisons().values()
        foreign = {c.setting for c in compared if c.added or c.profile.groups != groups.get(c.setting, ())}
        for row in rows:
            found = known.get(row["row"] if by_row else (row["setting"], row["row"]), {})
            paper = {} if row["setting"] in foreign else found
            row["published"] = {column: paper[column] for column in self.recipe.columns if column in paper}
            if "ap" in paper:
                row["published"]["per class"] = dict(zip(VOC, paper["ap"], strict=True))
        return list(rows)


def recipe_job(
    name: str,
    profile: str,
    orders: int | None,
    folder: Path,
    data_root: Path | None,
    added: Sequence[str],
    also: Sequence[str],
    skip_missing: bool,
    settings: Sequence[str] = (),
) -> Reproduction:
    """Make the job of a recipe; `orders` None: as many as the recipe says."""
    recipes = load_recipes()
    require_known("recipe", name, recipes)
    recipe, variants = recipes[name].at(profile), parsed_variants(also)
    return Reproduction(
        name, recipe, profile, orders or recipe.orders, folder, data_root, added, variants, skip_missing, settings
    )


def known_recipes(profile: str) -> dict[str, dict[str, Any]]:
    """Describe every recipe by name."""
    return {name: listed(recipe, profile) for name, recipe in load_recipes().items()}


def needed_data(
    recipe: Recipe, profile: str, also: Mapping[str, Changes] | None = None, given: Changes | None = None
) -> list[str]:
    """Name the data sets that a recipe needs."""
    found: dict[str, None] = {}
    for comparison in comparisons(recipe, profile, also or {}, given):
        with_aux = any(method_named(name).needs_aux(comparison.profile) for name in comparison.rows.values())
        found |= dict.fromkeys(streams.needed_data(recipe.stream, comparison.profile, with_aux))
    return list(found)


def listed(recipe: Recipe, profile: str) -> dict[str, Any]:
    """Describe a recipe: what it compares, and the data that it needs."""
    shown, used = recipe.at(profile), comparisons(recipe, profile, {})[0].profile
    sizes = [len(group) for group in used.groups]
    return {
        "title": shown.title,
        "source": shown.source,
        "group sizes": ["+".join(map(str, sizes))] if sizes else list(shown.group_sizes),
        "methods": list(shown.all_rows),
        "settings": [*shown.variants, *shown.in_turn],
        "classes": sum(sizes) or used.classes,
        "data": datasets.described(needed_data(recipe, profile)) | _weights(used),
    }


def _weights(profile: Profile) -> dict[str, dict[str, str]]:
    """Describe the ImageNet weights that a profile needs, as a data set is described."""
    if profile.weights != "imagenet":
        return {}
    what, where = (
        f"initial weights of {profile.arch}, trained on ImageNet",
        "the hub or torchvision; or a file, weights=FILE",
    )
    return {f"{profile.arch} weights": {"what": what, "size": "up to 0.5 GB", "from": where}}


def by_overlap(bench: Bench, orders: int) -> dict[str, Row]:
    """Give each method's accuracies on the classes that only the first group has, only the second, or both."""
    found: dict[str, Row] = {}
    for method, cells in collected(bench).items():
        shares = []
        for order in (order for order in cells if order < orders):
            first, second = (set(group) for group in bench.groups(order))
            spans = {"only first": first - second, "common": first & second, "only second": second - first}
            measured = bench.measured(method, order, 1)
            shares.append({span: measured.of(sorted(of)) for span, of in (spans | {"all": first | second}).items()})
        means = {span: mean_std([share[span] for share in shares]) for span in shares[0]} if shares else {}
        found[method] = {"orders": len(shares)} | {
            span: mean for span, mean in means.items() if mean["mean"] is not None
        }
    return found
