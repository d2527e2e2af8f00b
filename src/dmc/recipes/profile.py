"""Profiles: the settings of a benchmark run, read from YAML; an unknown setting is an error."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field

from dmc.choices import NetworkChoice
from dmc.config import ClassifierDistillationConfig, ConsolidateConfig, DetectorDistillationConfig, Scale
from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError, require_known
from dmc.precision import settled
from dmc.schedule import CONSOLIDATION, SPECIALIST, Schedule
from dmc.tasks import VisionTask, task_for

SECTIONS = ("specialist", "consolidation")


class Profile(ClassifierDistillationConfig, DetectorDistillationConfig):
    """The settings of a benchmark run, for every kind of model: a distillation's, and the benchmark's own.

    The defaults are the paper's settings.
    """

    name: str
    arch: str = "cifar_resnet32"
    weights: str | None = None  # initial weights of models: random (None), imagenet, or a file
    scale: Scale = "none"
    balance: bool = False  # scale the student's outputs for each teacher's classes, on auxiliary images held out for it
    size: int | None = Field(default=None, ge=1)  # of the images that models see; None: the preprocessing's
    preprocessing: Preprocessing | None = None  # None: what the architecture was designed for
    classes: int | None = Field(default=None, ge=2)  # how many to learn; None: all of the stream's
    overlap: int = Field(default=0, ge=0)  # how many classes a group shares with the one before
    data: str | None = None  # name of a labeled data set; None: the stream's own
    groups: tuple[tuple[str, ...], ...] = ()  # class names of each; an order is then only a seed; empty: by size
    aux: str | None = None  # a data set's name, a folder or a file; None: the stream's own
    aux_images: int | float | None = Field(default=None, gt=0)  # how many, or (as 0.25 or 1.0) a share; None: all
    new_arch: str | None = None  # of later groups' specialists; None: `arch`
    new_weights: str | None = None  # their initial weights; None: `weights`
    views: int | None = Field(default=None, ge=1)  # of each auxiliary image, asked about once; None: new ones
    new_epochs: int = Field(default=1, ge=1)  # factor on the epochs for later groups, which may have few images
    selection: Literal["random", "herding"] = "random"  # of DMC+'s exemplars
    specialist: Schedule = SPECIALIST
    consolidation: Schedule = CONSOLIDATION

    @property
    def task(self) -> VisionTask[Any]:
        """The kind of model that is trained."""
        return task_for("", self.arch)

    @property
    def network(self) -> NetworkChoice:
        """The network of the first group's model."""
        return NetworkChoice(self.arch, self.size, initial(self.weights), "the profile's")

    @property
    def new_network(self) -> NetworkChoice:
        """The network of later groups' specialists."""
        weights = initial(self.new_weights or self.weights)
        return NetworkChoice(self.new_arch or self.arch, self.size, weights, "the profile's")

    @property
    def on_new_classes(self) -> Schedule:
        """The schedule for training on a later group alone."""
        return self.specialist.changed({"epochs": self.specialist.epochs * self.new_epochs})

    @property
    def precision(self) -> str:
        """The arithmetic of its trainings, for what tells how a result was made."""
        return " and ".join(sorted({settled(part).precision for part in (self.specialist, self.consolidation)}))

    def distillation(self, seed: int, cache: Path) -> ConsolidateConfig:
        """Give the settings of a consolidation; its teachers' answers may be kept in a cache."""
        kind = self.task.consolidate_config
        own = {name: getattr(self, name) for name in Profile.model_fields if name in kind.model_fields}
        held_out = kind().held_out if self.balance else 0
        own |= {"arch": None, "weights": initial(self.weights), "held_out": held_out, "seed": seed}
        own |= {"views": kind().views} if self.views is None else {"cache": str(cache)}
        return kind.of(own)

    @property
    def differences(self) -> dict[str, Any]:
        """All settings that are not the default."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def with_room_for(self, group_size: int) -> Profile:
        """Give room for two whole groups, if the profile has fewer than two classes beyond the first group."""
        if self.classes is None or self.classes >= group_size + 2 or self.overlap >= group_size:  # which is refused
            return self
        return self.changed({"classes": 2 * group_size - self.overlap})

    def below(self, data_root: Path | None) -> Profile:
        """Use files of weights below the data root, where such files exist."""
        named = {key: getattr(self, key) for key in ("weights", "new_weights")}
        paths = {key: data_root / file for key, file in named.items() if data_root and file}
        return self.changed({key: str(path) for key, path in paths.items() if path.is_file()})

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that tell runs apart: the differences, with one spelling of the place of auxiliary images."""
        return self.differences | ({"aux": os.path.normpath(self.aux)} if self.aux else {})


def initial(weights: str | None) -> str | None:
    """Give the initial weights of a network; None for `random`."""
    return None if weights == "random" else weights


def load_profile(name: str, stream: str, *changes: Mapping[str, Any]) -> Profile:
    """Load a profile: the stream's changes, then the profile's, then these.

    Settings of a schedule that none of them names stay the paper's.
    """
    profiles = read_recipes("profiles.yaml")
    require_known("profile", name, profiles)
    settings: dict[str, Any] = {}
    schedules: dict[str, dict[str, Any]] = {key: {} for key in SECTIONS}
    of_stream = dict(read_recipes("streams.yaml").get(stream, {}))
    in_profile = of_stream.pop("profiles", {}).get(name, {})
    for layer in (of_stream, profiles[name], in_profile, *changes):
        for key, value in layer.items():
            if key in Schedule.model_fields:
                raise DmcError(f"setting {key} is a schedule's: write specialist.{key} or consolidation.{key}")
            if key not in SECTIONS:
                inner = layer in changes and isinstance(value, Mapping) and isinstance(settings.get(key), Mapping)
                settings[key] = {**settings[key], **value} if inner else value  # preprocessing.size=64 leaves the rest
            elif isinstance(value, Mapping):
                schedules[key] |= value
            else:
                raise DmcError(f"setting {key} has settings of its own: write {key}.epochs=20, not {key}={value}")
    task = task_for("", str(settings.get("arch", "")))
    task.consolidate_config.refuse_foreign(key for layer in changes for key in layer)
    for key, schedule in zip(SECTIONS, task.paper_schedules, strict=True):
        try:
            settings[key] = schedule.changed(schedules[key])
        except DmcError as error:
            raise DmcError(f"{key}: {error}") from None
    return Profile.of({"name": name, **settings})


def parsed_settings(texts: Iterable[str]) -> dict[str, Any]:
    """Parse settings such as `loss=kd` and `consolidation.epochs=20` into changes to a profile."""
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
    """Give the appendix's strength for the nearest group size; `default` if it has none for the method."""
    table: dict[int, float] = read_recipes("strengths.yaml").get(method, {})
    return float(table[min(table, key=lambda size: abs(size - group_size))]) if table else default


@cache
def read_recipes(name: str) -> Mapping[str, Any]:
    """Read a YAML file of this folder."""
    content: dict[str, Any] = yaml.safe_load((files("dmc.recipes") / name).read_text(encoding="utf-8"))
    return content
