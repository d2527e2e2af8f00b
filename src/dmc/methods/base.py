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

from dmc.choices import NetworkChoice
from dmc.config import RESUMED, Schedule
from dmc.data.sources import Source
from dmc.files import digest, replacing, write_text
from dmc.models.load import load
from dmc.models.model import AnyModel
from dmc.recipes.profile import Profile
from dmc.tasks import task_of
from dmc.training.labeled import fit_labeled
from dmc.training.loop import Objective


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

    specialists: list[Any]  # models of one kind
    notes: dict[str, Tensor] = field(default_factory=dict)

    @property
    def model(self) -> Any:
        """The one, or all of them side by side."""
        one, *others = self.specialists
        return task_of(self.specialists).side_by_side(self.specialists) if others else one

    def save(self, folder: Path) -> None:
        for i, specialist in enumerate(self.specialists):
            specialist.save(folder / f"model-{i}")
        with replacing(folder / "notes.safetensors") as path:
            save_file({name: note.cpu().contiguous().clone() for name, note in self.notes.items()}, path)
        write_text(folder / "learned.json", json.dumps({"models": len(self.specialists)}))  # last: it is complete

    @classmethod
    def load(cls, folder: Path) -> Learned:
        count = json.loads((folder / "learned.json").read_text())["models"]
        return cls([load(folder / f"model-{i}") for i in range(count)], load_file(folder / "notes.safetensors"))


class Method(ABC):
    """A row in every table."""

    name: ClassVar[str]  # on the command line
    title: ClassVar[str]  # in tables and figures
    kinds: ClassVar[tuple[str, ...]] = ()  # of models: "classifier", "detector"; none: it serves all
    uses_aux: ClassVar[bool] = False
    sees_everything: ClassVar[bool] = False  # all data so far, which only the upper bound may have
    is_part: ClassVar[bool] = False  # a model that others build on: asked about its own classes, and not among `all`
    memory: ClassVar[int] = 0  # how many images of old classes it may keep
    strength: ClassVar[float] = 0.0  # of its regulariser, where a recipe says nothing else
    least_classes: ClassVar[int] = 1  # in a group; 2 where a softmax over the group alone is trained

    def serves(self, kind: str) -> bool:
        """Whether it can teach models of that kind."""
        return not self.kinds or kind in self.kinds

    def begin(self, first: Learned, lesson: Lesson) -> Learned:
        """Take over the first group's model, which all methods share; its notes are every tracker's."""
        return Learned(first.specialists)

    @abstractmethod
    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        """Learn the lesson's classes."""

    def predictor(self, learned: Learned) -> Any:
        """What answers at test time; for most methods, the model."""
        return learned.model


def new_classes(old: Sequence[str], data: Source) -> list[str]:
    return [name for name in data.classes if name not in old]


def widened(before: Learned, lesson: Lesson) -> tuple[Any, Any]:
    """The old model, and a copy with outputs for the lesson's new classes."""
    old = before.specialists[0]
    return old, old.widened(new_classes(old.names, lesson.data), lesson.seed)


def fitted(wide: AnyModel, lesson: Lesson, name: str, objective: Objective | None = None, **settings: Any) -> AnyModel:
    """Train a model that a method has prepared on the lesson's data; `settings` are what makes the objective."""
    objective = objective or task_of([wide]).supervised(wide, lesson.data.classes)
    return fit_labeled(
        wide,
        lesson.data,
        objective,
        lesson.profile.on_new_classes,
        seed=lesson.seed,
        out=lesson.folder / name,
        how=RESUMED,
        settings=settings,
    )


def specialist_for(lesson: Lesson) -> Any:
    """The model of the new classes that DMC and inference twice build on."""
    profile = lesson.profile
    usual = (profile.new_network, profile.on_new_classes) == (profile.network, profile.specialist)
    unlike = (profile.new_arch, Path(profile.new_weights or "").name, profile.new_epochs)
    name = "specialist" if usual else f"specialist-{digest(unlike)}"
    return trained_once(lesson, name, profile.new_network, profile.on_new_classes)


def joint_model(lesson: Lesson) -> Any:
    """The model of all classes so far, for those who are given their data."""
    return trained_once(lesson, "joint", lesson.profile.network, lesson.profile.specialist)


def trained_once(lesson: Lesson, name: str, network: NetworkChoice, schedule: Schedule) -> Any:
    """A model for the lesson's classes alone: the same for all methods, whichever needs it first."""
    lesson.shared.mkdir(parents=True, exist_ok=True)
    with FileLock(lesson.shared / f".{name}-lock"):  # another process may be at it
        return lesson.profile.task.trained(
            lesson.data,
            network,
            schedule,
            like=lesson.profile.preprocessing,
            seed=lesson.seed,
            out=lesson.shared / name,
            how=RESUMED,
        )
