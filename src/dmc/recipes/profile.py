"""Profiles: the settings of a benchmark run, from YAML; unknown keys are errors."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError, nearest
from dmc.training.schedule import CONSOLIDATION, SPECIALIST, Schedule


class Profile(BaseModel):
    """How long and with what; the defaults are the paper's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    arch: str = "cifar_resnet32"
    preprocessing: Preprocessing = Preprocessing()
    classes: int | None = Field(default=None, ge=2)  # None: all of the stream's
    aux_images: int | None = Field(default=None, ge=1)  # None: all there are
    specialist: Schedule = SPECIALIST
    consolidation: Schedule = CONSOLIDATION


def load_profile(name: str, stream: str) -> Profile:
    """The profile, with what the stream changes; a schedule's unnamed settings stay the paper's."""
    profiles = _read("profiles.yaml")
    if name not in profiles:
        raise DmcError(f"unknown profile {name!r}{nearest(name, profiles)} (known: {', '.join(profiles)})")
    settings: dict[str, Any] = {"specialist": SPECIALIST.model_dump(), "consolidation": CONSOLIDATION.model_dump()}
    for layer in (profiles[name], _read("streams.yaml").get(stream, {})):
        for key, value in layer.items():
            settings[key] = settings[key] | value if key in ("specialist", "consolidation") else value
    return Profile(name=name, **settings)


def strength_for(method: str, group_size: int, default: float) -> float:
    """The appendix's strength for the nearest group size."""
    table: dict[int, float] = _read("strengths.yaml").get(method, {})
    return float(table[min(table, key=lambda size: abs(size - group_size))]) if table else default


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((files("dmc.recipes") / name).read_text(encoding="utf-8"))
    return content
