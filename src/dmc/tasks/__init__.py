"""One file per kind of model: all that differs between them. Nothing elsewhere asks which kind it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dmc.distill.teachers import TeacherGroup
from dmc.errors import DmcError
from dmc.models.model import Model
from dmc.tasks.base import Place, VisionTask
from dmc.tasks.classification import Classification
from dmc.tasks.detection import Detection

__all__ = ["TASKS", "VisionTask", "register", "task_for", "task_named", "task_of"]

TASKS: list[VisionTask[Any]] = [Detection(), Classification()]  # the first that fits


def register(task: VisionTask[Any]) -> None:
    """Add a kind of model; it is asked before those that are there."""
    TASKS.insert(0, task)


def task_of(models: Sequence[Model | TeacherGroup[Any]]) -> VisionTask[Any]:
    """Find the kind that all of these are."""
    singles = [model.specialists[0] if isinstance(model, TeacherGroup) else model for model in models]
    kinds = [next(task for task in TASKS if isinstance(model, task.model)) for model in singles]
    for model, kind in zip(singles, kinds, strict=True):
        if kind is not kinds[0]:
            first = f"{singles[0].name} is a {kinds[0].singular}"
            raise DmcError(f"{first} and {model.name} a {kind.singular}: merge one kind")
    return kinds[0]


def task_for(data: Place, arch: str | None) -> VisionTask[Any]:
    """Find the kind that an architecture is of, or that labeled data is for."""
    return next(task for task in TASKS if (task.is_architecture(arch) if arch is not None else task.is_labeled(data)))


def task_named(tag: str) -> VisionTask[Any]:
    """Find the kind by the hub's name for it, as a model's config.json has it."""
    return next(task for task in TASKS if task.model.pipeline_tag == tag)
