"""What a kind of vision model is: all that differs between classifiers and detectors, named."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic

from dmc.choices import NetworkChoice
from dmc.consolidation import Consolidation
from dmc.data.preprocess import Preprocessing
from dmc.data.sources import Source
from dmc.distill.teachers import TeacherGroup
from dmc.errors import DmcError
from dmc.metrics.incremental import Measured
from dmc.models.specialist import AnyModel, Output
from dmc.training.held_out import HeldOut
from dmc.training.loop import Objective
from dmc.training.schedule import Schedule

Place = str | Path | Source  # labeled data, or where it is
Names = Iterable[str] | None  # of the classes to keep; None: all
NOTHING = (None, "none")  # to test on


class VisionTask(ABC, Generic[AnyModel]):
    """One kind of model. The verbs ask it for everything that is not the same for all kinds."""

    singular: ClassVar[str]  # what a model is called in messages
    paper_arch: ClassVar[str]  # what the paper trains
    paper_weights: ClassVar[str | None]  # where the paper's students begin
    paper_form: ClassVar[Mapping[str, Any]]  # settings of a consolidation as the paper has it
    paper_schedules: ClassVar[tuple[Schedule, Schedule]]  # of a training, and of a consolidation
    own_settings: ClassVar[tuple[str, ...]]  # of a consolidation or a model, that other kinds do not have
    metric: ClassVar[str]  # what the benchmark measures
    measurement: ClassVar[type[Measured]]  # and the form in which it does
    least_classes: ClassVar[int] = 1  # that a model can be trained on

    @abstractmethod
    def is_architecture(self, arch: str) -> bool:
        """Whether a network of that name is of this kind."""

    @abstractmethod
    def is_labeled(self, data: Place) -> bool:
        """Whether labeled data is for this kind, as far as can be told without reading it."""

    @abstractmethod
    def open_labeled(self, data: Place, val: Place | None, keep: Names) -> tuple[Source, HeldOut[AnyModel]]:
        """What to train on, and what to test on when that is done."""

    @abstractmethod
    def network_for(self, images: Source, arch: str | None, size: int | None, weights: str | None) -> NetworkChoice:
        """A network that suits the images, where none is named."""

    @abstractmethod
    def untrained(
        self, source: Source, network: NetworkChoice, like: Preprocessing | None, output: Output | None, seed: int
    ) -> AnyModel:
        """A network for the classes of labeled data. It has learned nothing yet, and sees what `like` says."""

    @abstractmethod
    def supervised(self, model: AnyModel, classes: Sequence[str]) -> Objective:
        """Training on labels of these classes."""

    @abstractmethod
    def supervised_schedules(self, images: int, pretrained: bool) -> tuple[Schedule, Schedule]:
        """The paper's, and one that fits the number of images."""

    @abstractmethod
    def distillation_schedules(self, images: int, pretrained: bool) -> tuple[Schedule, Schedule]:
        """The same for consolidation."""

    @abstractmethod
    def plan(self, teachers: Sequence[AnyModel], aux: Source, **settings: Any) -> Consolidation[AnyModel]:
        """A consolidation, verified and ready to run."""

    def side_by_side(self, models: Sequence[AnyModel]) -> TeacherGroup[AnyModel]:
        """Several models that answer as one, for the classes of all."""
        raise DmcError(f"there is no way for {self.singular}s to answer side by side")

    def measure(self, model: Any, test: Source, so_far: Sequence[str], asked: Sequence[str]) -> Measured:
        """Score a model, or several side by side, on the classes that it is asked about, of those so far."""
        raise DmcError(f"the benchmark has no way to score {self.singular}s")

    def refuse(self, settings: Iterable[str], others: Sequence[VisionTask[Any]]) -> None:
        """Settings of another kind would be ignored, so they are mistakes."""
        for other in others:
            for name in set(settings) & (set(other.own_settings) - set(self.own_settings)):
                raise DmcError(f"{name.replace('_', '-')} is a setting of {other.singular}s")
