"""Recipes: what to run for each table and figure of the paper, and what the paper found there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from dmc.errors import DmcError
from dmc.recipes.profile import Profile, load_profile, read_recipes

Changes = dict[str, Any]


class Recipe(BaseModel):
    """One table or figure. `settings`, `variants` and `rows` are changes to a profile."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    source: str  # where in the paper
    stream: str = "icifar100"
    group_sizes: tuple[int, ...] = ()  # none: the groups are given
    methods: tuple[str, ...] = ()  # a row for each
    rows: dict[str, Changes] = {}  # a row by its name: its `method`, and under which changes
    settings: Changes = {}
    variants: dict[str, Changes] = {}
    in_turn: tuple[str, ...] = ()  # classes, each of which makes a variant in which it arrives after the others
    orders: int = 5  # where the user does not say how many
    figure: Literal["curves", "first-task", "confusion", "settings", "amount", "bars"] = "bars"  # of a table
    columns: tuple[str, ...] = ("average incremental", "final")
    per_class: bool = False  # a column for each class, before the others; published numbers then have rows of their own
    note: str = ""
    profiles: dict[str, Changes] = {}

    def at(self, profile: str) -> Recipe:
        """With what the profile changes."""
        return self.model_validate(self.model_dump() | self.profiles.get(profile, {}))

    @property
    def all_variants(self) -> dict[str, Changes]:
        turns = {name: {"groups": [[n for n in self.in_turn if n != name], [name]]} for name in self.in_turn}
        return self.variants | turns or {"": {}}

    @property
    def all_rows(self) -> dict[str, tuple[str, Changes]]:
        """The method of each row, and its changes."""
        named = {
            row: (own["method"], {k: v for k, v in own.items() if k != "method"}) for row, own in self.rows.items()
        }
        return {name: (name, {}) for name in self.methods} | named


@dataclass(frozen=True)
class Comparison:
    """Methods under the same conditions."""

    name: str  # of the setting, and where it has several comparisons, of the first row
    setting: str
    group_size: int
    profile: Profile
    added: bool  # by the user, so that the paper has no number for it
    rows: dict[str, str]  # the method of each


def load_recipes() -> dict[str, Recipe]:
    return {name: Recipe.model_validate(content) for name, content in read_recipes("recipes.yaml").items()}


def comparisons(recipe: Recipe, profile: str, also: Mapping[str, Changes]) -> list[Comparison]:
    """Every group size with every variant, and with those that the user adds; in each, rows that differ in the method
    alone are compared with each other."""
    recipe = recipe.at(profile)
    found: dict[tuple[str, Profile], Comparison] = {}
    for size in recipe.group_sizes or (0,):
        for label, changes in (recipe.all_variants | dict(also)).items():
            by_size = f"g = {size}" if size and (len(recipe.group_sizes) > 1 or not label) else ""
            setting = _joined(label, by_size)
            for row, (method, own) in recipe.all_rows.items():
                settings = load_profile(profile, recipe.stream, recipe.settings, changes, own)
                name = _joined(setting, row if own else "")
                alike = Comparison(name, setting, size, settings, label in also, {})
                found.setdefault((setting, settings), alike).rows[row] = method
    return list(found.values())


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def parsed_variants(texts: Iterable[str]) -> dict[str, Changes]:
    """`My photos: {aux: photos/}` as one more variant."""
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
    """The paper's numbers for a recipe, in %; empty where it shows a figure without any."""
    rows: list[dict[str, Any]] = read_recipes("published.yaml").get(name, [])
    listed = ({k: v if isinstance(v, list | str) else [v] for k, v in row.items() if v is not None} for row in rows)
    return [{"setting": ""} | row for row in listed]
