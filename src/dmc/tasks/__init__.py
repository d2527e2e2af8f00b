"""One file per kind of model: all that differs between them. Nothing elsewhere asks which kind it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dmc.distill.teachers import TeacherGroup
from dmc.errors import DmcError
from dmc.models.model import Model
from dmc.tasks.base import Place, VisionTask
from dmc.tasks.classification import Classification
from dmc.tasks.detection import Detection

__all__ = ["TASKS", "VisionTask", "register", "task_for", "task_named", "task_of"]

TASKS: list[VisionTask[Any]] = [Detection(), Classification()]  # the first that fits is taken


def register(task: VisionTask[Any]) -> None:
    """Add a kind of model; it is tried before those that are already there."""
    TASKS.insert(0, task)


def task_of(models: Sequence[Model | TeacherGroup[Any]]) -> VisionTask[Any]:
    """Find the kind of some models; refuse models of different kinds."""
    singles = [model.specialists[0] if isinstance(model, TeacherGroup) else model for model in models]
    kinds = [_first(task for task in TASKS if isinstance(model, task.model)) for model in singles]
    for model, kind in zip(singles, kinds, strict=True):
        if kind is not kinds[0]:
            first = f"{singles[0].name} is a {kinds[0].singular}"
            raise DmcError(f"{first} and {model.name} a {kind.singular}: take models of one kind")
    return kinds[0]


def task_for(data: Place, arch: str | None) -> VisionTask[Any]:
    """Find the kind of model by its architecture, or where that is None, by the labeled data."""
    return _first(task for task in TASKS if (task.is_architecture(arch) if arch is not None else task.is_labeled(data)))


def task_named(tag: str) -> VisionTask[Any]:
    """Find the kind of model by its pipeline tag, the hub's name for it, which a model's config.json has."""
    return _first(task for task in TASKS if task.model.pipeline_tag == tag)


def _first(fitting: Iterator[VisionTask[Any]]) -> VisionTask[Any]:
    found = next(fitting, None)
    if found is None:
        raise DmcError(f"there is no such kind of model; dmc has {', '.join(task.singular for task in TASKS)}")
    return found
