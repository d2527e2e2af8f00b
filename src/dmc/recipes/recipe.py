"""Recipes: what to run for each table and figure of the paper, and the numbers that the paper published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from dmc.errors import DmcError
from dmc.recipes.profile import Profile, load_profile, read_recipes

Changes = dict[str, Any]  # to a profile


class Recipe(BaseModel):
    """A table or figure of the paper. `settings`, `variants` and `rows` hold changes to a profile."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    source: str  # where in the paper
    stream: str = "icifar100"
    group_sizes: tuple[int, ...] = ()  # empty: a profile names the groups
    methods: tuple[str, ...] = ()  # each is a row
    rows: dict[str, Changes] = {}  # further rows by name: the `method` of each, and its changes
    settings: Changes = {}  # for all rows
    variants: dict[str, Changes] = {}  # by label: settings to compare under
    in_turn: tuple[str, ...] = ()  # classes; for each there is a variant in which it arrives after all the others
    orders: int = 5  # unless the user says how many
    figure: Literal["curves", "first-task", "confusion", "settings", "amount", "bars"] = "bars"  # for a table
    columns: tuple[str, ...] = ("average incremental", "final")
    per_class: bool = False  # first a column for each class; published numbers are then rows of their own
    note: str = ""
    profiles: dict[str, Changes] = {}  # what a profile changes in the recipe itself

    def at(self, profile: str) -> Recipe:
        """Give the recipe as a profile changes it."""
        return self.model_validate(self.model_dump() | self.profiles.get(profile, {}))

    @property
    def all_variants(self) -> dict[str, Changes]:
        """The changes of each variant, by label; one without a label if there are none."""
        turns = {name: {"groups": [[n for n in self.in_turn if n != name], [name]]} for name in self.in_turn}
        return self.variants | turns or {"": {}}

    @property
    def all_rows(self) -> dict[str, tuple[str, Changes]]:
        """The method and the changes of each row, by name."""
        named = {
            row: (own["method"], {k: v for k, v in own.items() if k != "method"}) for row, own in self.rows.items()
        }
        return {name: (name, {}) for name in self.methods} | named


@dataclass(frozen=True)
class Comparison:
    """Methods that are compared under the same settings."""

    name: str  # the setting's, and the first row's as well if that row has changes
    setting: str
    group_size: int
    profile: Profile
    added: bool  # whether the user added it, so that the paper has no numbers for it
    rows: dict[str, str]  # the method of each row


def load_recipes() -> dict[str, Recipe]:
    """Read all recipes."""
    return {name: Recipe.model_validate(content) for name, content in read_recipes("recipes.yaml").items()}


def comparisons(
    recipe: Recipe, profile: str, also: Mapping[str, Changes], given: Changes | None = None
) -> list[Comparison]:
    """List the comparisons of a recipe: every group size with every variant, `also` those that the user adds.

    `given` are settings of the user for all of them.

    Rows with the same settings, whose methods alone differ, are one comparison.
    """
    recipe = recipe.at(profile)
    found: dict[tuple[str, Profile], Comparison] = {}
    for size in recipe.group_sizes or (0,):
        for label, changes in (recipe.all_variants | dict(also)).items():
            by_size = f"g = {size}" if size and (len(recipe.group_sizes) > 1 or not label) else ""
            setting = _joined(label, by_size)
            for row, (method, own) in recipe.all_rows.items():
                settings = load_profile(profile, recipe.stream, recipe.settings, changes, own, given or {})
                name = _joined(setting, row if own else "")
                comparison = Comparison(name, setting, size, settings, label in also, {})
                found.setdefault((setting, settings), comparison).rows[row] = method
    return list(found.values())


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def parsed_variants(texts: Iterable[str]) -> dict[str, Changes]:
    """Parse variants that a user adds, such as `My photos: {aux: photos/}`, into changes by label."""
    found: dict[str, Changes] = {}
    for text in texts:
        try:
            content = yaml.safe_load(text)
        except yaml.YAMLError:
            content = None
        if not isinstance(content, dict) or not all(isinstance(changes, dict) for changes in content.values()):
            raise DmcError(f"variant {text}: write 'LABEL: {{SETTING: VALUE}}', such as 'My photos: {{aux: photos/}}'")
        found |= {str(label): changes for label, changes in content.items()}
    return found


def published(name: str) -> list[dict[str, Any]]:
    """Give the paper's numbers for a recipe, in %; none where the paper has a figure without numbers."""
    rows: list[dict[str, Any]] = read_recipes("published.yaml").get(name, [])
    listed = ({k: v if isinstance(v, list | str) else [v] for k, v in row.items() if v is not None} for row in rows)
    return [{"setting": ""} | row for row in listed]
