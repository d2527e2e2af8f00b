"""Fixtures: a lesson that takes a moment."""

from __future__ import annotations

from pathlib import Path

from dmc.data.readers import ArrayImages
from dmc.methods.base import Lesson
from dmc.recipes.profile import Profile
from dmc.schedule import Schedule


def lesson(data: ArrayImages, folder: Path, strength: float = 0.0) -> Lesson:
    quick = Schedule(epochs=2, batch_size=8)
    profile = Profile(name="test", arch="cifar_resnet8", size=16, specialist=quick, consolidation=quick)
    return Lesson(data, None, profile, strength, seed=0, folder=folder, shared=folder)
