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
    """One table or figure. `settings` and `variants` are changes to a profile."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    source: str  # where in the paper
    stream: str = "icifar100"
    group_sizes: tuple[int, ...]
    methods: tuple[str, ...]
    settings: Changes = {}
    variants: dict[str, Changes] = {}
    figure: Literal["curves", "first-task", "confusion", "settings", "amount", "bars"] = "bars"  # of a table
    columns: tuple[str, ...] = ("average incremental", "final")
    note: str = ""
    profiles: dict[str, Changes] = {}

    def at(self, profile: str) -> Recipe:
        """With what the profile changes."""
        return self.model_validate(self.model_dump() | self.profiles.get(profile, {}))


@dataclass(frozen=True)
class Comparison:
    """One setting of a recipe: all of its methods under the same conditions."""

    setting: str
    group_size: int
    profile: Profile
    added: bool  # by the user, so that the paper has no number for it


def load_recipes() -> dict[str, Recipe]:
    return {name: Recipe.model_validate(content) for name, content in read_recipes("recipes.yaml").items()}


def comparisons(recipe: Recipe, profile: str, also: Mapping[str, Changes]) -> list[Comparison]:
    """Every group size with every variant, and with those that the user adds."""
    recipe = recipe.at(profile)
    found = []
    for size in recipe.group_sizes:
        for label, changes in ((recipe.variants or {"": {}}) | dict(also)).items():
            by_size = f"g = {size}" if len(recipe.group_sizes) > 1 or not label else ""
            setting = ", ".join(part for part in (label, by_size) if part)
            settings = load_profile(profile, recipe.stream, recipe.settings, changes)
            found.append(Comparison(setting, size, settings, added=label in also))
    return found


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
    found: list[dict[str, Any]] = read_recipes("published.yaml").get(name, [])
    return found
