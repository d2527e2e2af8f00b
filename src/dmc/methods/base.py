"""What a class-incremental method is given, what it gives back, and nothing else.

A method author writes one file: a subclass of `Method` with a name, what it needs, and `learn`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from filelock import FileLock
from safetensors.torch import load_file, save_file
from torch import Tensor

from dmc.data.sources import Source
from dmc.distill.teachers import Teachers
from dmc.evaluation.classification import Classifier
from dmc.files import replacing, write_text
from dmc.models.load import load
from dmc.models.model import require
from dmc.models.specialist import Specialist
from dmc.recipes.profile import Profile
from dmc.training.supervised import Supervised, fit_labeled, train


@dataclass(frozen=True)
class Lesson:
    """One group of classes arrives. Images of earlier groups are not in it, except for the Oracle."""

    data: Source
    aux: Source | None  # only for methods that declare `uses_aux`
    profile: Profile
    strength: float  # of a regulariser
    seed: int
    folder: Path  # for the runs of this lesson
    shared: Path  # for what does not depend on the method


@dataclass
class Learned:
    """What a method carries from lesson to lesson: its model (or models, side by side) and its notes."""

    specialists: list[Specialist]
    notes: dict[str, Tensor] = field(default_factory=dict)

    @property
    def model(self) -> Specialist | Teachers:
        return self.specialists[0] if len(self.specialists) == 1 else Teachers(self.specialists)

    def save(self, folder: Path) -> None:
        for i, specialist in enumerate(self.specialists):
            specialist.save(folder / f"model-{i}")
        with replacing(folder / "notes.safetensors") as path:
            save_file({name: note.cpu().contiguous().clone() for name, note in self.notes.items()}, path)
        write_text(folder / "learned.json", json.dumps({"models": len(self.specialists)}))  # last: it is complete

    @classmethod
    def load(cls, folder: Path) -> Learned:
        count = json.loads((folder / "learned.json").read_text())["models"]
        models = [require(load(folder / f"model-{i}"), Specialist) for i in range(count)]
        return cls(models, load_file(folder / "notes.safetensors"))


class Method(ABC):
    """A row in every table."""

    name: ClassVar[str]  # on the command line
    title: ClassVar[str]  # in tables and figures
    uses_aux: ClassVar[bool] = False
    sees_everything: ClassVar[bool] = False  # all data so far, which only the upper bound may have
    memory: ClassVar[int] = 0  # how many images of old classes it may keep
    strength: ClassVar[float] = 0.0  # of its regulariser, where a recipe says nothing else
    least_classes: ClassVar[int] = 1  # in a group; 2 where a softmax over the group alone is trained

    def begin(self, first: Learned, lesson: Lesson) -> Learned:
        """Take over the first group's model, which all methods share; its notes are every tracker's."""
        return Learned(first.specialists)

    @abstractmethod
    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        """Learn the lesson's classes."""

    def classifier(self, learned: Learned) -> Classifier:
        """What answers at test time; for most methods, the model."""
        return learned.model


def new_classes(old: Sequence[str], data: Source) -> list[str]:
    return [name for name in data.classes if name not in old]


def widened(before: Learned, lesson: Lesson) -> tuple[Specialist, Specialist]:
    """The old model, and a copy with outputs for the lesson's new classes."""
    old = before.specialists[0]
    return old, old.widened(new_classes(old.names, lesson.data), lesson.seed)


def fitted(wide: Specialist, lesson: Lesson, name: str, task: Supervised | None = None, **settings: Any) -> Specialist:
    """The lesson's training of a model that a method has prepared; `settings` are what makes its task."""
    run, schedule = lesson.folder / name, lesson.profile.specialist
    return fit_labeled(wide, lesson.data, run, schedule, lesson.seed, resume=True, task=task, settings=settings)


def from_scratch(like: Specialist, lesson: Lesson, run: Path) -> Specialist:
    """A model for the lesson's classes alone, from random weights."""
    return train(
        lesson.data,
        run,
        arch=str(like.arch),
        preprocessing=like.preprocessing,
        weights=lesson.profile.weights,
        schedule=lesson.profile.specialist,
        seed=lesson.seed,
        resume=True,
    )


def specialist_for(like: Specialist, lesson: Lesson) -> Specialist:
    """The model of the new classes that DMC and inference twice build on: the same for all, so trained once."""
    lesson.shared.mkdir(parents=True, exist_ok=True)
    with FileLock(lesson.shared / ".specialist-lock"):  # another process may be at it
        return from_scratch(like, lesson, lesson.shared / "specialist")
