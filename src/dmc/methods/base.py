"""The interface of class-incremental methods: what a method is given, and what it returns.

To add a method, write one file: a subclass of `Method` with a name, what it needs, and `learn`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from dmc.choices import NetworkChoice
from dmc.config import RESUMED, Output
from dmc.data.sources import Source
from dmc.documents import Document, read_result
from dmc.errors import DmcError, reason_of
from dmc.files import digest, regular_size, replacing, write_text
from dmc.locks import locked
from dmc.models.load import load_saved
from dmc.models.model import AnyModel, Model
from dmc.recipes.profile import Profile
from dmc.schedule import Schedule
from dmc.tasks import task_of
from dmc.training.labeled import fit_labeled
from dmc.training.objective import Objective


@dataclass(frozen=True)
class Lesson:
    """A group of classes to learn. It has no images of earlier groups, except for methods that see everything."""

    data: Source
    aux: Source | None  # only for methods that say that they need them
    profile: Profile
    strength: float  # of the method's regulariser
    seed: int
    folder: Path  # for the runs of this lesson
    shared: Path  # for models that do not depend on the method


class SavedCount(Document):
    """learned.json: how many models there are."""

    models: int = Field(ge=1)


@dataclass
class Learned:
    """What a method carries from lesson to lesson: its model (or models, side by side), and tensors as notes."""

    specialists: list[Any]  # models of one kind
    notes: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        models = self.specialists if isinstance(self.specialists, list) else []
        if not models or not all(isinstance(model, Model) for model in models):
            raise DmcError("Learned takes a list of models, Learned([model])")
        if not all(isinstance(note, Tensor) for note in self.notes.values()):
            raise DmcError("Learned takes tensors as notes, by name")

    @property
    def model(self) -> Any:
        """The only model, or all of them side by side as one."""
        one, *others = self.specialists
        return task_of(self.specialists).side_by_side(self.specialists) if others else one

    def save(self, folder: Path) -> None:
        """Save the models and the notes in a folder."""
        for i, specialist in enumerate(self.specialists):
            specialist.save(folder / f"model-{i}")
        with replacing(folder / "notes.safetensors") as path:
            path.write_bytes(save({name: note.cpu().contiguous().clone() for name, note in self.notes.items()}))
        write_text(folder / "learned.json", json.dumps({"models": len(self.specialists)}))  # last: it says all is saved

    @classmethod
    def load(cls, folder: Path, archs: Iterable[str] = ()) -> Learned:
        """Load what was saved in a folder; `archs` are the user's networks, which may be code."""
        count, path = read_result(folder / "learned.json", SavedCount).models, folder / "notes.safetensors"
        try:
            regular_size(path)
            notes = load_file(path)
        except (SafetensorError, OSError) as error:
            raise DmcError(f"cannot read {path}: {reason_of(error)}") from None
        return cls([load_saved(folder / f"model-{i}", archs) for i in range(count)], notes)


class Method(ABC):
    """A class-incremental method: a row in every table."""

    name: ClassVar[str]  # on the command line
    title: ClassVar[str]  # in tables and figures
    kinds: ClassVar[tuple[type[Model], ...]] = (Model,)  # of models that it serves: all
    uses_aux: ClassVar[bool] = False  # whether it is given auxiliary images
    sees_everything: ClassVar[bool] = False  # whether it is given all data so far; only an upper bound may be
    is_part: ClassVar[bool] = False  # a model that others build on: tested on its own classes only, and not among `all`
    memory: ClassVar[int] = 0  # how many images of old classes it may keep
    strength: ClassVar[float] = 0.0  # of its regulariser, where recipes/strengths.yaml has none
    least_classes: ClassVar[int] = 1  # in a group; 2 where a softmax over the group alone is trained

    def serves(self, kind: type[Model]) -> bool:
        """Tell whether it works with models of a kind."""
        return issubclass(kind, self.kinds)

    def needs_aux(self, profile: Profile) -> bool:
        """Tell whether it is given auxiliary images with these settings."""
        return self.uses_aux

    def begin(self, first: Learned, lesson: Lesson) -> Learned:
        """Take over the first group's model, which most methods share; `first.notes` are the notes of all trackers."""
        return Learned(first.specialists)

    @abstractmethod
    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        """Learn the lesson's classes; return the model that knows the old ones and these."""

    def predictor(self, learned: Learned) -> Any:
        """Give what answers at test time; for most methods, the model."""
        return learned.model


def new_classes(old: Sequence[str], data: Source) -> list[str]:
    """Name the classes of the data that are not among the old ones."""
    return [name for name in data.classes if name not in old]


def widened(before: Learned, lesson: Lesson) -> tuple[Any, Any]:
    """Give the old model, and a copy of it that also has outputs for the lesson's new classes."""
    old = before.specialists[0]
    return old, old.widened(new_classes(old.names, lesson.data), lesson.seed)


def fitted(wide: AnyModel, lesson: Lesson, name: str, objective: Objective | None = None, **settings: Any) -> AnyModel:
    """Train a model on the lesson's data; give it back trained.

    `name` is the folder of the run in the lesson's folder. `objective` computes the loss; None: the usual one of the
    model's kind. `settings` are the objective's own: a run resumes only if they are the same.
    """
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
    """Give the model of the new classes alone, which DMC and inference twice build on; train it at first use."""
    profile = lesson.profile
    usual = (profile.new_network, profile.on_new_classes) == (profile.network, profile.specialist)
    differing = (profile.new_arch, Path(profile.new_weights or "").name, profile.new_epochs)
    name = "specialist" if usual else f"specialist-{digest(differing)}"
    return trained_once(lesson, name, profile.new_network, profile.on_new_classes)


def joint_model(lesson: Lesson) -> Any:
    """Give the model trained on all classes so far, for methods that see everything; train it at first use."""
    return trained_once(lesson, "joint", lesson.profile.network, lesson.profile.specialist)


def model_with_sigmoids(lesson: Lesson) -> Any:
    """Give a model of the first group with sigmoid outputs, for methods that distil those; train it at first use.

    A softmax compares outputs and leaves their level open: on images of other classes about half of the shared first
    model's outputs are above zero, and a method that takes their sigmoids for probabilities would distil noise.
    """
    return trained_once(lesson, "sigmoids", lesson.profile.network, lesson.profile.specialist, "sigmoid")


def trained_once(
    lesson: Lesson, name: str, network: NetworkChoice, schedule: Schedule, output: Output | None = None
) -> Any:
    """Train a model on the lesson's data alone, or load it if another method has trained it already."""
    lesson.shared.mkdir(parents=True, exist_ok=True)
    with locked(lesson.shared / f".{name}-lock"):  # another process may be training it
        return lesson.profile.task.trained(
            lesson.data,
            network,
            schedule,
            like=lesson.profile.preprocessing,
            output=output,
            seed=lesson.seed,
            out=lesson.shared / name,
            how=RESUMED,
        )
