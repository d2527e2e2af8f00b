"""Profiles: the settings of a benchmark run, from YAML; unknown keys are errors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dmc.config import CONSOLIDATION, SPECIALIST, LossName, Scale, Schedule
from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError, nearest, require_known


class Profile(BaseModel):
    """How long and with what; the defaults are the paper's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    arch: str = "cifar_resnet32"
    weights: str | None = None  # where models begin: at random, imagenet, or a file
    preprocessing: Preprocessing | None = None  # None: what the architecture was designed for
    classes: int | None = Field(default=None, ge=2)  # None: all of the stream's
    overlap: int = Field(default=0, ge=0)  # classes that a group shares with the one before
    aux: str | None = None  # a data set's name or a place; None: what the stream has
    aux_images: int | None = Field(default=None, ge=1)  # None: all there are
    loss: LossName = "l2"
    temperature: float = Field(default=2.0, gt=0)
    scale: Scale = "none"
    balance: bool = False  # of the student's blocks of outputs, on auxiliary images that are then not trained on
    selection: Literal["random", "herding"] = "random"  # of DMC+'s exemplars
    specialist: Schedule = SPECIALIST
    consolidation: Schedule = CONSOLIDATION

    @property
    def differences(self) -> dict[str, Any]:
        """All that is not the paper's."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def with_room_for(self, group_size: int) -> Profile:
        """Two whole groups, where the profile's number of classes leaves nothing to learn after the first one."""
        if self.classes is None or self.classes >= group_size + 2:
            return self
        return self.model_copy(update={"classes": 2 * group_size - self.overlap})

    @property
    def identity(self) -> dict[str, Any]:
        """The same, however the place of auxiliary images is written."""
        return self.differences | ({"aux": os.path.normpath(self.aux)} if self.aux else {})


def load_profile(name: str, stream: str, *changes: Mapping[str, Any]) -> Profile:
    """What the stream changes, then the profile, then these; a schedule's unnamed settings stay the paper's."""
    profiles = read_recipes("profiles.yaml")
    require_known("profile", name, profiles)
    settings: dict[str, Any] = {"specialist": SPECIALIST.model_dump(), "consolidation": CONSOLIDATION.model_dump()}
    of_stream = read_recipes("streams.yaml").get(stream, {})
    in_profile = of_stream.pop("profiles", {}).get(name, {})
    for layer in (of_stream, profiles[name], in_profile, *changes):
        for key, value in layer.items():
            if key not in ("specialist", "consolidation"):
                settings[key] = value
            elif isinstance(value, Mapping):
                settings[key] |= value
            else:
                raise DmcError(f"setting {key} has parts: write {key}.epochs=20, not {key}={value}")
    try:
        return Profile(name=name, **settings)
    except ValidationError as error:
        wrong = error.errors()[0]
        key = ".".join(map(str, wrong["loc"]))
        *outer, last = map(str, wrong["loc"])
        known = [".".join([*outer, name]) for name in (Schedule if outer else Profile).model_fields]
        hint = nearest(f"{'.'.join([*outer, last])}", known) if wrong["type"] == "extra_forbidden" else ""
        raise DmcError(f"setting {key}: {wrong['msg']}{hint}") from None


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


def read_recipes(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((files("dmc.recipes") / name).read_text(encoding="utf-8"))
    return content
