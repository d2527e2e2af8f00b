"""The interface of a kind of vision model: it names all that differs between classifiers and detectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, Unpack

from dmc.choices import NetworkChoice
from dmc.config import AUTO, ConsolidateConfig, NetworkConfig, Output, PredictConfig, RunConfig, TrainConfig
from dmc.consolidation import Consolidation, Joining
from dmc.data.decode import DecodeError
from dmc.data.preprocess import Preprocessing
from dmc.data.sources import Record, Source
from dmc.distill.teachers import TeacherGroup
from dmc.errors import DmcError
from dmc.evaluation.matching import ClassChoice
from dmc.exhibits import AnyExhibit, Facts
from dmc.metrics.incremental import Measured
from dmc.models.exported import Exportable
from dmc.models.model import AnyModel, Model
from dmc.schedule import Schedule
from dmc.training.held_out import HeldOut
from dmc.training.labeled import fit_labeled
from dmc.training.objective import Objective

Place = str | Path | Source  # labeled data, or where it is
Names = Iterable[str] | None  # of the classes to keep; None: all
NOTHING = (None, "none")  # values of `val` that test on nothing
AnyConfig = TypeVar("AnyConfig", bound=NetworkConfig)


class Result(Protocol):
    """How well a model does on labeled data, overall and for each class."""

    @property
    def per_class(self) -> Mapping[str, Any]: ...

    def as_dict(self) -> dict[str, Any]:
        """Give all numbers in a form that JSON can hold."""

    def as_text(self) -> str:
        """Give a table to read."""


class VisionTask(ABC, Generic[AnyModel]):
    """One kind of model. The rest of the code asks it for everything that is not the same for all kinds."""

    model: ClassVar[type[Model]]  # the class of its models
    train_config: ClassVar[type[TrainConfig]] = TrainConfig
    consolidate_config: ClassVar[type[ConsolidateConfig]] = ConsolidateConfig
    predict_config: ClassVar[type[PredictConfig]] = PredictConfig
    paper_arch: ClassVar[str]  # the paper's architecture
    paper_weights: ClassVar[str | None] = None  # the paper's initial weights; None: random
    paper_schedules: ClassVar[tuple[Schedule, Schedule]]  # of a training, and of a consolidation
    metric: ClassVar[str]  # what the benchmark measures
    measurement: ClassVar[type[Measured]]  # and the form in which it does
    least_classes: ClassVar[int] = 1  # that a model can be trained on
    finds_boxes: ClassVar[bool] = False  # are its answers lists of `DetectedObject`, which can be drawn?
    answer_form: ClassVar[Any] = dict[str, Any]  # the schema of what `answer_as_dict` gives, for the JSON endpoint

    @property
    def singular(self) -> str:
        """The word for one model in messages."""
        return self.model.singular

    @abstractmethod
    def is_architecture(self, arch: str) -> bool:
        """Tell whether an architecture of that name is of this kind."""

    @abstractmethod
    def is_labeled(self, data: Place) -> bool:
        """Tell whether labeled data is for this kind, as far as that shows without reading it."""

    @abstractmethod
    def open_labeled(self, data: Place, val: Place | None, keep: Names) -> tuple[Source, HeldOut[AnyModel]]:
        """Open the data to train on and the data to test on afterwards; the arguments are those of `dmc.train`."""

    @abstractmethod
    def network_for(self, images: Source, asked: NetworkConfig) -> NetworkChoice:
        """Choose architecture, size and weights that suit the images, as far as they are not asked for."""

    @abstractmethod
    def untrained(
        self, source: Source, network: NetworkChoice, like: Preprocessing | None, output: Output | None, seed: int
    ) -> AnyModel:
        """Make an untrained model for the classes of `source`; `like` is its preprocessing, or None for the usual."""

    def as_in_paper(self, config: AnyConfig, arch: str) -> AnyConfig:
        """Fill in the paper's network: this architecture and its initial weights, where nothing else was asked for."""
        arch = config.arch or arch
        usual = self.paper_weights and self.model.architectures.weights(arch, AUTO)  # some networks have none
        return config.changed({"arch": arch, "weights": usual if config.weights == AUTO else config.weights})

    def seen_by(self, network: NetworkChoice, like: Preprocessing | None) -> Preprocessing:
        """Give what a network sees: what `like` or its architecture says, at the size that was chosen."""
        usual = like or self.model.architectures.preprocessing(network.arch)
        return replace(usual, size=network.size or usual.size)

    def trained(
        self,
        source: Source,
        network: NetworkChoice,
        schedule: Schedule,
        *,
        like: Preprocessing | None = None,
        output: Output | None = None,
        seed: int = 0,
        out: str | Path | None = None,
        how: RunConfig = RunConfig(),  # noqa: B008 (frozen)
    ) -> AnyModel:
        """Train a new model on labeled images, where everything is said already; None: the kind's usual output."""
        model = self.untrained(source, network, like, output, seed)
        objective, began = self.supervised(model, source.classes), {"weights": network.weights}
        return fit_labeled(model, source, objective, schedule, seed=seed, out=out, how=how, settings=began)

    @abstractmethod
    def supervised(self, model: AnyModel, classes: Sequence[str]) -> Objective:
        """Give the training loss on data with labels of these classes."""

    @abstractmethod
    def supervised_schedule(self, images: int, pretrained: bool) -> Schedule:
        """Give a schedule for training on labels that suits the number of images."""

    @abstractmethod
    def distillation_schedule(self, images: int, pretrained: bool) -> Schedule:
        """Give a schedule for consolidation that suits the number of images."""

    @abstractmethod
    def consolidation(
        self,
        teachers: Sequence[AnyModel],
        aux: Source,
        config: Any,
        schedule: Schedule,
        joining: Joining | None = None,
    ) -> Consolidation[AnyModel]:
        """Build and verify a consolidation, ready to run; `config` is a `consolidate_config`."""

    def exportable(self, model: AnyModel, pixels: bool) -> Exportable:
        """Make a model on the CPU ready to be exported; with `pixels`, its preprocessing is a part of the network."""
        raise DmcError(f"there is no way to export {self.singular}s")

    def side_by_side(self, models: Sequence[AnyModel]) -> TeacherGroup[AnyModel]:
        """Let several models answer as one, for the classes of all."""
        raise DmcError(f"there is no way for {self.singular}s to answer side by side")

    def measure(self, model: Any, test: Source, so_far: Sequence[str], asked: Sequence[str]) -> Measured:
        """Score a model, or several side by side, on the classes that it is asked about, of those so far."""
        raise DmcError(f"the benchmark has no way to score {self.singular}s")

    @abstractmethod
    def evaluate(self, model: Any, data: Place, **choice: Unpack[ClassChoice]) -> Result:
        """Measure how well a model, or several side by side, does on labeled data; see `dmc.evaluate`."""

    def exhibits(self, model: AnyModel, teachers: Mapping[str, AnyModel], data: Place) -> list[AnyExhibit]:
        """Give what a report shows of a model, and of its teachers by their names in it, on labeled data."""
        numbers = self.evaluate(model, data, known=True).as_dict()
        return [Facts({name: str(value) for name, value in numbers.items() if isinstance(value, str | int | float)})]

    @abstractmethod
    def predict(self, model: AnyModel, records: Sequence[Record], config: Any) -> Sequence[Any | DecodeError]:
        """Give the model's answer to each image, or the reason why the image cannot be read."""

    @abstractmethod
    def answer_as_dict(self, answer: Any) -> dict[str, Any]:
        """Give an answer in a form that JSON can hold."""

    @abstractmethod
    def answer_as_text(self, answer: Any) -> str:
        """Give an answer as a line to read."""

    def answer_as_scores(self, answer: Any) -> list[tuple[str, float]]:
        """Give what an answer names, best first, each with its probability; empty: it is told as text alone."""
        return []

    @abstractmethod
    def size_as_text(self, size: int) -> str:
        """Say what an input size means for this kind."""

    @abstractmethod
    def teachers_as_text(self, seen: Mapping[str, Any]) -> list[str]:
        """Say what a consolidation's `measure_teachers` found before training."""
