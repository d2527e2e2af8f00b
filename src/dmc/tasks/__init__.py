"""One file per kind of model: all that differs between them. Nothing elsewhere should ask which kind it has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dmc.errors import DmcError
from dmc.models.detector import Detector
from dmc.models.load import load
from dmc.models.load_detector import find_detector
from dmc.models.specialist import Model
from dmc.tasks.base import Place, VisionTask
from dmc.tasks.classification import Classification
from dmc.tasks.detection import Detection

__all__ = ["TASKS", "VisionTask", "load_folder", "others", "task_for", "task_of"]

TASKS: tuple[VisionTask[Any], ...] = (Detection(), Classification())  # the first that fits


def task_of(models: Sequence[Model]) -> VisionTask[Any]:
    """The kind that all of these are."""
    detection, classification = TASKS
    kinds = [detection if isinstance(model, Detector) else classification for model in models]
    for model, kind in zip(models, kinds, strict=True):
        if kind is not kinds[0]:
            first = f"{models[0].name} is a {kinds[0].singular}"
            raise DmcError(f"{first} and {model.name} a {kind.singular}: merge one kind")
    return kinds[0]


def task_for(data: Place, arch: str | None) -> VisionTask[Any]:
    """The kind that an architecture is of, or that labeled data is for."""
    return next(task for task in TASKS if (task.is_architecture(arch) if arch is not None else task.is_labeled(data)))


def load_folder(folder: Path) -> Any:
    """A saved model of any kind."""
    return find_detector(folder) or load(folder)


def others(task: VisionTask[Any]) -> list[VisionTask[Any]]:
    return [other for other in TASKS if other is not task]
