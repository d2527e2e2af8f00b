"""What users call: one body for every kind of model; what differs between kinds is in `tasks`.

Settings are keyword arguments; each is written down once, in `dmc.config`, and listed in docs/settings.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Unpack, overload

from dmc.choices import BegunRun, NetworkChoice, schedule_for, timed
from dmc.classes import listed
from dmc.config import AUTO, LearnConfig, Length, NetworkConfig, Output, RunConfig
from dmc.consolidation import Images
from dmc.data.decode import DecodeError
from dmc.data.pictures import Picture, pictures
from dmc.data.preprocess import Preprocessing
from dmc.data.sources import Source
from dmc.distill.detector_teachers import DetectorTeachers
from dmc.distill.teachers import TeacherGroup, Teachers
from dmc.errors import DmcError
from dmc.evaluation.classification import Evaluation
from dmc.evaluation.detection import DetectedObject, DetectionEvaluation
from dmc.files import require_free
from dmc.keywords import CheckKeywords, ConsolidateKeywords, LearnKeywords, PredictKeywords, TrainKeywords
from dmc.merging import Merge
from dmc.models import load as loading
from dmc.models.detector import Detector
from dmc.models.model import AnyModel, Model, require
from dmc.models.specialist import Specialist
from dmc.tasks import task_for, task_of
from dmc.tasks.base import Place, Result, VisionTask
from dmc.training.held_out import HeldOut
from dmc.training.supervised import fit_model, labeled_pace

log = logging.getLogger("dmc")
Given = Model | str | Path  # a model, or where it is


@overload
def load(
    source: Given,
    arch: str | None = None,
    classes: Sequence[str] | str | Path | None = None,
    preprocessing: Preprocessing | None = None,
    output: Output | None = None,
) -> Model: ...
@overload
def load(
    source: Given,
    arch: str | None = None,
    classes: Sequence[str] | str | Path | None = None,
    preprocessing: Preprocessing | None = None,
    output: Output | None = None,
    *,
    kind: type[AnyModel],
) -> AnyModel: ...
def load(
    source: Given,
    arch: str | None = None,
    classes: Sequence[str] | str | Path | None = None,
    preprocessing: Preprocessing | None = None,
    output: Output | None = None,
    *,
    kind: type[Model] = Model,
) -> Model:
    """Load a classifier or a detector.

    Args:
        source: a saved folder, `timm:NAME`, `torchvision:NAME`, `hf-hub:OWNER/NAME`, or a state dict's file. Settings
            may follow as text: `old.pth,arch=resnet32,classes=old.txt,mean=0.5/0.5/0.5`.
        arch: the architecture of a state dict; for a folder that was saved with code, that code: `net.py:make_network`.
        classes: the class names of a state dict: a list, a file with a name on each line, or `"imagenet-1k"`.
        preprocessing: what the network was trained to see, where that is not its architecture's.
        output: `"softmax"` where classes compete, `"sigmoid"` where they do not.
        kind: `dmc.Specialist` or `dmc.Detector`, where it has to be one; another kind is refused.
    """
    return require(loading.load(source, arch, classes, preprocessing, output), kind)


def train(
    data: Place,
    out: str | Path | None = None,
    *,
    keep: Iterable[str] | None = None,
    val: Place | None = "auto",
    preprocessing: Preprocessing | None = None,
    **settings: Unpack[TrainKeywords],
) -> Model:
    """Train a specialist on labeled images, or a detector on images with boxes.

    What is not said is chosen by the images: architecture, input size, initial weights, and how long to train.

    Args:
        data: a folder per class, parquet, npz, `hf-hub:OWNER/NAME`; for detectors a VOC folder or a COCO file.
        out: a folder for the run and its result; without one, nothing is kept.
        keep: the classes to learn.
        val: labeled data to test on at the end. `"auto"` is the `val` or `test` folder beside a `train` folder, or
            every tenth image of each class, which is then not trained on, where there are twenty on average; for
            detectors, nothing. None trains on everything.
        preprocessing: what the network sees, where that is not its architecture's.
        **settings: of `dmc.config`: `TrainConfig` (`arch`, `size`, `weights`, `seed`, `memory`; of classifiers
            `output`), `Length` (`profile`, `minutes`, or a whole `schedule`), single fields of `Schedule` (`epochs`,
            `lr`, `batch_size`, ...), `RunConfig` (`resume`, `checkpoint_every`).
    """
    how, rest = RunConfig.taken_from(settings)
    length, rest = Length.taken_from(rest)
    if out is not None:
        require_free(Path(out), how.resume)
    task = task_for(data, rest.get("arch"))
    config = task.train_config.of(rest)
    if length.profile == "paper":
        weights = task.paper_weights if config.weights == AUTO else config.weights
        config = config.changed({"arch": config.arch or task.paper_arch, "weights": weights})
    source, held_out = task.open_labeled(data, val, keep)
    begun = BegunRun.in_folder(out, how.resume)
    network = begun.unless(config) if begun else task.network_for(source, config)
    model = task.untrained(source, network, preprocessing, getattr(config, "output", None), config.seed)
    training = LabeledTraining(task, source, held_out, network, length, config, str(network))
    return training.run(model, out, how)


@dataclass(frozen=True)
class LabeledTraining:
    """Labeled data, and how a network is trained on it."""

    task: VisionTask[Any]
    source: Source
    held_out: HeldOut[Any]
    network: NetworkChoice
    length: Length
    config: NetworkConfig
    what: str  # it is, in the line that says what was chosen

    def run(self, model: Model, out: str | Path | None, how: RunConfig) -> Model:
        """Train the model, for as long as was said or as fits."""
        images, begun = len(self.source), BegunRun.in_folder(out, how.resume)
        usual = self.task.supervised_schedules(images, pretrained=self.network.weights is not None)
        schedule = schedule_for(self.length, *usual, begun)
        objective = self.task.supervised(model, self.source.classes)
        if not begun:
            pace = labeled_pace(objective, model, self.source, schedule.batch_size)
            schedule = timed(self.length, schedule, images, pace, self.what)
        began = {"weights": self.network.weights}
        seed, memory = self.config.seed, self.config.memory_bytes
        held_out = self.held_out
        trained: Model = fit_model(model, self.source, objective, out, schedule, seed, memory, how, began, held_out)
        return trained


@overload
def consolidate(
    teachers: Sequence[AnyModel], aux: Images, out: str | Path | None = None, **settings: Unpack[ConsolidateKeywords]
) -> AnyModel: ...
@overload
def consolidate(
    teachers: Sequence[Given], aux: Images, out: str | Path | None = None, **settings: Unpack[ConsolidateKeywords]
) -> Model: ...
def consolidate(
    teachers: Sequence[Any], aux: Images, out: str | Path | None = None, **settings: Unpack[ConsolidateKeywords]
) -> Model:
    """Merge models into one that knows every teacher's classes, from unlabeled images alone.

    What is not said is chosen by teachers and images: the student's network, and how long it is trained.

    Args:
        teachers: models, or whatever `dmc.load` takes; all classifiers or all detectors.
        aux: a folder, parquet, tar shards, npz, a glob, `hf-hub:OWNER/NAME` or a uint8 array; or a list of such.
        out: a folder for the run and its result; without one, nothing is kept.
        **settings: of `dmc.config`: `ConsolidateConfig` (`arch`, `size`, `weights`, `loss`, `centring`, `aux_limit`,
            `seed`, `memory`; of classifiers `temperature`, `scale`, `balance`; of detectors `anchors`, `box_weight`),
            `Length` (`profile`, `minutes`, or a whole `schedule`), single fields of `Schedule` (`epochs`, `lr`,
            `batch_size`, ...), `RunConfig` (`resume`, `checkpoint_every`). `profile="paper"` takes the paper's
            settings, and the literal form of its method.
    """
    how, rest = RunConfig.taken_from(settings)
    loaded = _all(teachers)
    if out is not None:
        require_free(Path(out), how.resume)
    merge = Merge.chosen(loaded, aux, out, how, rest)
    merged: Model = merge.timed(merge.with_teachers(loaded)).run(out, how)
    return merged


def check(teachers: Sequence[Given], aux: Images, **settings: Unpack[CheckKeywords]) -> dict[str, Any]:
    """Say what can be said about a consolidation before it trains. Nothing is written.

    Args:
        teachers: as for `consolidate`.
        aux: as for `consolidate`.
        **settings: those of `consolidate`, but for the run's.

    Returns:
        Classes, preprocessing, images, time, and whether one teacher would drown the others.
    """
    loaded = _all(teachers)
    merge = Merge.chosen(loaded, aux, None, RunConfig(), settings)
    planned = merge.with_teachers(loaded)
    return (merge.timed(planned) if merge.length.minutes is not None else planned).check()


@overload
def learn(
    model: AnyModel,
    data: Place,
    aux: Images,
    out: str | Path | None = None,
    *,
    keep: Iterable[str] | None = None,
    val: Place | None = "auto",
    **settings: Unpack[LearnKeywords],
) -> AnyModel: ...
@overload
def learn(
    model: str | Path,
    data: Place,
    aux: Images,
    out: str | Path | None = None,
    *,
    keep: Iterable[str] | None = None,
    val: Place | None = "auto",
    **settings: Unpack[LearnKeywords],
) -> Model: ...
def learn(
    model: Given,
    data: Place,
    aux: Images,
    out: str | Path | None = None,
    *,
    keep: Iterable[str] | None = None,
    val: Place | None = "auto",
    **settings: Unpack[LearnKeywords],
) -> Model:
    """Teach a model the classes of labeled data without its old data: train a specialist, consolidate.

    Args:
        model: what `dmc.load` takes.
        data: labeled images of the new classes, as for `train`.
        aux: unlabeled images, as for `consolidate`.
        out: a folder for both runs and the result; without one, nothing is kept.
        keep: the classes to learn, as for `train`.
        val: labeled data to test the specialist on, as for `train`.
        **settings: those of `consolidate`, and `specialist_epochs` or a whole `specialist_schedule`; of `minutes`,
            half goes to each part.
    """
    how, rest = RunConfig.taken_from(settings)
    own, rest = LearnConfig.taken_from(rest)
    old = load(model)
    task = task_of([old])
    source, held_out = task.open_labeled(data, val, keep)
    require_news(old, source)
    if out is not None:
        require_free(Path(out), how.resume)
    merge = Merge.chosen([old], aux, out, how, {**rest, "share": 0.5})
    new = task.untrained(source, merge.network, merge.alike(old), old.output, merge.config.seed)
    first = merge.timed(merge.with_teachers([old, new]))  # what is wrong with it should show before days of training

    length = _for_specialist(merge.length, own)
    what = f"specialist: {merge.network}"
    training = LabeledTraining(task, source, held_out, merge.network, length, merge.config, what)
    place = Path(out) / "specialist" if out is not None else None
    new = training.run(new, place, how)

    merging = merge.with_teachers([old, new])
    merging.schedule, merging.made_by = first.schedule, f"dmc learn, new classes from {source.name}"
    tested = {key: line for key, line in new.provenance.items() if key.startswith("held-out")}
    merging.notes = {f"{key} of the new classes' own model": line for key, line in tested.items()}
    taught: Model = merging.run(out, how)
    return taught


def _for_specialist(length: Length, own: LearnConfig) -> Length:
    """Give the specialist's own number of epochs; the other changes hold for both trainings."""
    changes = {key: value for key, value in length.changes.items() if key != "epochs"}
    changes |= {} if own.specialist_epochs is None else {"epochs": own.specialist_epochs}
    return length.changed({"schedule": own.specialist_schedule, "changes": changes})


def require_news(old: Model, source: Source) -> None:
    """Say which classes are known already; refuse if that is all of them."""
    known = [name for name in source.classes if name in old.names]
    if len(known) == len(source.classes):
        raise DmcError(
            f"{old.name} knows {listed(known, 5)} already: there is nothing new to learn from {source.name}; train a "
            "model of its own and consolidate the two; where classes only share a name, rename one"
        )
    if known:
        both = "they are taught by both models, whose mean is the target"
        log.warning("%s knows %d of the classes already (%s): %s", old.name, len(known), listed(known, 5), both)


@overload
def evaluate(
    model: Specialist | Teachers,
    data: Place,
    *,
    keep: Sequence[str] | None = None,
    known: bool = False,
    rename: Mapping[str, str] | None = None,
) -> Evaluation: ...
@overload
def evaluate(
    model: Detector | DetectorTeachers,
    data: Place,
    *,
    keep: Sequence[str] | None = None,
    known: bool = False,
    rename: Mapping[str, str] | None = None,
) -> DetectionEvaluation: ...
@overload
def evaluate(
    model: Given,
    data: Place,
    *,
    keep: Sequence[str] | None = None,
    known: bool = False,
    rename: Mapping[str, str] | None = None,
) -> Result: ...
def evaluate(
    model: Given | TeacherGroup[Any],
    data: Place,
    *,
    keep: Sequence[str] | None = None,
    known: bool = False,
    rename: Mapping[str, str] | None = None,
) -> Result:
    """Measure accuracy, or average precision, on labeled data; classes are matched by name.

    Args:
        model: what `dmc.load` takes, or several models side by side.
        data: labeled images, as for `train`.
        keep: the classes of the data to look at.
        known: leave out the classes that the model does not know.
        rename: for classes of the data the model's names: `{"tabby": "cat"}`.
    """
    found = model if isinstance(model, TeacherGroup) else load(model)
    return task_of([found]).evaluate(found, data, keep, known, rename or {})


@overload
def predict(
    model: Specialist, images: Picture | Sequence[Picture], **settings: Unpack[PredictKeywords]
) -> list[dict[str, float] | None]: ...
@overload
def predict(
    model: Detector, images: Picture | Sequence[Picture], **settings: Unpack[PredictKeywords]
) -> list[list[DetectedObject] | None]: ...
@overload
def predict(model: Given, images: Picture | Sequence[Picture], **settings: Unpack[PredictKeywords]) -> list[Any]: ...
def predict(model: Given, images: Picture | Sequence[Picture], **settings: Unpack[PredictKeywords]) -> list[Any]:
    """Give the most probable classes of each image, or what a detector finds in it.

    Args:
        model: what `dmc.load` takes.
        images: files, folders (all images below), PIL's, or uint8 arrays, H x W or H x W x 3; one, or a list of them.
        **settings: of `dmc.config`: of classifiers `top`, of detectors `min_score`.

    Returns:
        An answer for each image; None for one that cannot be read, and a warning says which it was.
    """
    found = load(model)
    task = task_of([found])
    answers = task.predict(found, pictures(images), task.predict_config.of(settings))
    return [None if isinstance(answer, DecodeError) else answer for answer in answers]


def _all(teachers: Sequence[Given]) -> list[Model]:
    if isinstance(teachers, Given):
        raise DmcError("teachers are a list of two or more models")
    loaded = [load(teacher) for teacher in teachers]
    for one, other in combinations(loaded, 2):
        if one.names == other.names and one.fingerprint == other.fingerprint:
            raise DmcError(f"{one.name} and {other.name} are the same model: there is nothing to merge")
    return loaded
