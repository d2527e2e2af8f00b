"""Profiles: the settings of a benchmark run, from YAML; unknown keys are errors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml
from pydantic import Field

from dmc.choices import NetworkChoice
from dmc.config import (
    CONSOLIDATION,
    SPECIALIST,
    ClassifierDistillationConfig,
    ConsolidateConfig,
    DetectorDistillationConfig,
    Scale,
    Schedule,
)
from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError, require_known
from dmc.tasks import VisionTask, task_for

SECTIONS = ("specialist", "consolidation")


class Profile(ClassifierDistillationConfig, DetectorDistillationConfig):
    """How long and with what, for every kind of model: a consolidation's settings, and the benchmark's own.

    The defaults are the paper's.
    """

    whose: ClassVar[str] = "every kind of model"

    name: str
    arch: str = "cifar_resnet32"
    weights: str | None = None  # where models begin: at random, imagenet, or a file
    scale: Scale = "none"
    balance: bool = False  # of the student's blocks of outputs, on auxiliary images that are then not trained on
    size: int | None = Field(default=None, ge=1)  # of the images that models see; None: the preprocessing's
    preprocessing: Preprocessing | None = None  # None: what the architecture was designed for
    classes: int | None = Field(default=None, ge=2)  # None: all of the stream's
    overlap: int = Field(default=0, ge=0)  # classes that a group shares with the one before
    data: str | None = None  # a data set with labels; None: the stream's own
    groups: tuple[tuple[str, ...], ...] = ()  # of classes, in this order, of which a run's number is the seed
    aux: str | None = None  # a data set's name or a place; None: what the stream has
    aux_images: int | float | None = Field(default=None, gt=0)  # below 1: a share of them; None: all there are
    new_arch: str | None = None  # of later groups' specialists; None: as the others
    new_weights: str | None = None  # where those begin; None: as the others
    new_epochs: int = Field(default=1, ge=1)  # times as many on a later group alone, which may have few images
    selection: Literal["random", "herding"] = "random"  # of DMC+'s exemplars
    specialist: Schedule = SPECIALIST
    consolidation: Schedule = CONSOLIDATION

    @property
    def task(self) -> VisionTask[Any]:
        """The kind of models that are trained."""
        return task_for("", self.arch)

    @property
    def network(self) -> NetworkChoice:
        return NetworkChoice(self.arch, self.size, initial(self.weights), "the profile's")

    @property
    def new_network(self) -> NetworkChoice:
        """What a later group's specialist is."""
        weights = initial(self.new_weights or self.weights)
        return NetworkChoice(self.new_arch or self.arch, self.size, weights, "the profile's")

    @property
    def on_new_classes(self) -> Schedule:
        """How to train on a later group alone."""
        return self.specialist.changed({"epochs": self.new_epochs * self.specialist.epochs})

    def distillation(self, seed: int) -> ConsolidateConfig:
        """Give the settings of a consolidation."""
        kind = self.task.consolidate_config
        own = {name: getattr(self, name) for name in Profile.model_fields if name in kind.model_fields}
        held_out = kind().held_out if self.balance else 0
        return kind.of({**own, "arch": None, "weights": initial(self.weights), "held_out": held_out, "seed": seed})

    @property
    def differences(self) -> dict[str, Any]:
        """All that is not the default."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def with_room_for(self, group_size: int) -> Profile:
        """Two whole groups, where the profile's number of classes leaves nothing to learn after the first one."""
        if self.classes is None or self.classes >= group_size + 2:
            return self
        return self.changed({"classes": 2 * group_size - self.overlap})

    def below(self, data_root: Path | None) -> Profile:
        """With files of weights below the data root, where they are there."""
        named = {key: getattr(self, key) for key in ("weights", "new_weights")}
        there = {key: data_root / file for key, file in named.items() if data_root and file}
        return self.changed({key: str(path) for key, path in there.items() if path.is_file()})

    @property
    def identity(self) -> dict[str, Any]:
        """The same, however the place of auxiliary images is written."""
        return self.differences | ({"aux": os.path.normpath(self.aux)} if self.aux else {})


def initial(weights: str | None) -> str | None:
    """Where a network begins; `random` is no place."""
    return None if weights == "random" else weights


def load_profile(name: str, stream: str, *changes: Mapping[str, Any]) -> Profile:
    """What the stream changes, then the profile, then these; a schedule's unnamed settings stay the paper's."""
    profiles = read_recipes("profiles.yaml")
    require_known("profile", name, profiles)
    settings: dict[str, Any] = {}
    schedules: dict[str, dict[str, Any]] = {key: {} for key in SECTIONS}
    of_stream = dict(read_recipes("streams.yaml").get(stream, {}))
    in_profile = of_stream.pop("profiles", {}).get(name, {})
    for layer in (of_stream, profiles[name], in_profile, *changes):
        for key, value in layer.items():
            if key not in SECTIONS:
                settings[key] = value
            elif isinstance(value, Mapping):
                schedules[key] |= value
            else:
                raise DmcError(f"setting {key} has parts: write {key}.epochs=20, not {key}={value}")
    task = task_for("", str(settings.get("arch", "")))
    task.consolidate_config.refuse_foreign(key for layer in changes for key in layer)
    for key, schedule in zip(SECTIONS, task.paper_schedules, strict=True):
        try:
            settings[key] = schedule.changed(schedules[key])
        except DmcError as error:
            raise DmcError(f"{key}: {error}") from None
    return Profile.of({"name": name, **settings})


def parsed_settings(texts: Iterable[str]) -> dict[str, Any]:
    """`loss=kd`, `consolidation.epochs=20` as changes to a profile."""
    changes: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        outer, _, inner = key.partition(".")
        if not (equals and outer) or outer == "name":
            raise DmcError(f"setting {text}: write SETTING=VALUE, such as loss=kd or consolidation.epochs=20")
        try:
            content = yaml.safe_load(value)
        except yaml.YAMLError:
            raise DmcError(f"setting {text}: cannot parse {value!r}") from None
        if inner:
            changes.setdefault(outer, {})[inner] = content
        else:
            changes[outer] = content
    return changes


def strength_for(method: str, group_size: int, default: float) -> float:
    """The appendix's strength for the nearest group size."""
    table: dict[int, float] = read_recipes("strengths.yaml").get(method, {})
    return float(table[min(table, key=lambda size: abs(size - group_size))]) if table else default


@cache
def read_recipes(name: str) -> Mapping[str, Any]:
    content: dict[str, Any] = yaml.safe_load((files("dmc.recipes") / name).read_text(encoding="utf-8"))
    return content
