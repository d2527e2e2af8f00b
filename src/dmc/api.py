"""The functions that users call, the same for every kind of model; what differs between kinds is in `tasks`.

Settings are keyword arguments. Each is defined once, in `dmc.config`, and listed in docs/settings.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Unpack, overload

from dmc.checks import Check
from dmc.choices import ResumedRun
from dmc.config import Length, Output, RunConfig
from dmc.data.auxiliary import Images
from dmc.data.decode import DecodeError
from dmc.data.open import require_outside
from dmc.data.pictures import Picture, pictures
from dmc.data.preprocess import Preprocessing
from dmc.distill.detector_teachers import DetectorTeachers
from dmc.distill.teachers import TeacherGroup, Teachers
from dmc.errors import DmcError
from dmc.estimate import checked
from dmc.evaluation.classification import Evaluation
from dmc.evaluation.detection import DetectedObject, DetectionEvaluation
from dmc.evaluation.matching import ClassChoice
from dmc.exporting.export import TOLERANCE, Exported, ExportFormat, export_model
from dmc.files import require_own
from dmc.jobs import LabeledTraining, Merge
from dmc.keywords import CheckKeywords, ConsolidateKeywords, LearnKeywords, PredictKeywords, TrainKeywords
from dmc.learning import learned
from dmc.models import load as loading
from dmc.models.detector import Detector
from dmc.models.model import AnyModel, Model, require
from dmc.models.push import UNKNOWN, require_hub
from dmc.models.push import push as publish
from dmc.models.specialist import Specialist
from dmc.processes import is_main
from dmc.tasks import task_for, task_of
from dmc.tasks.base import Place, Result

log = logging.getLogger("dmc")
Given = Model | str | Path  # a model, or where to load it from


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
        source: a saved folder, `timm:NAME`, `torchvision:NAME`, `hf-hub:OWNER/NAME`, `transformers:OWNER/NAME`, an
            ONNX file, or a state dict's file. Settings may follow as text:
            `old.pth,arch=resnet32,classes=old.txt,mean=0.5/0.5/0.5`.
        arch: the architecture of a state dict. For a folder that was saved with code, name that code here, since it is
            run: `net.py:make_network`.
        classes: the class names of a state dict: a list, a file with a name on each line, or `"imagenet-1k"`.
        preprocessing: the preprocessing that the network was trained with, if it is not its architecture's.
        output: `"softmax"` if the classes compete, `"sigmoid"` if each is decided on its own.
        kind: the class that the model must be of, `dmc.Specialist` or `dmc.Detector`; another kind is refused.
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

    Architecture, input size, initial weights and length of training are chosen to suit the images, unless given.

    Args:
        data: a folder per class, parquet, npz, `hf-hub:OWNER/NAME`; for detectors a VOC folder or a COCO file.
        out: a folder for the run and its result; None writes nothing to disk.
        keep: the classes to learn; None learns all of them.
        val: labeled data to test on at the end; None tests on nothing and trains on everything. `"auto"` takes the
            `val` or `test` folder beside a `train` folder. Where there is none, it holds out every tenth image of each
            class, if classes have twenty images on average. For detectors, `"auto"` tests on nothing.
        preprocessing: the preprocessing of the network, if it should not be its architecture's.
        **settings: any setting of `dmc train` (docs/settings.md), or a whole `schedule`.
    """
    how, rest = RunConfig.taken_from(settings)
    length, rest = Length.taken_from(rest)
    if out is not None and is_main():
        require_own(Path(out), how.resume)
        require_outside(Path(out), data, val)
    task = task_for(data, rest.get("arch"))
    config = task.train_config.of(rest)
    if length.profile == "paper":
        config = task.as_in_paper(config, task.paper_arch)
    source, held_out = task.open_labeled(data, val, keep)
    begun = ResumedRun.in_folder(out, how.resume)
    network = begun.unless(config) if begun else task.network_for(source, config)
    model = task.untrained(source, network, preprocessing, config.output, config.seed)
    training = LabeledTraining(task, source, held_out, network, length, config, str(network))
    return _reported(training.run(model, out, how), out, how)


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

    The student's network and the length of training are chosen to suit the teachers and the images, unless given.

    Args:
        teachers: models, or whatever `dmc.load` takes; all classifiers or all detectors.
        aux: unlabeled images: a folder, parquet, tar shards, npz, a glob, `hf-hub:OWNER/NAME` or a uint8 array; or a
            list of these.
        out: a folder for the run and its result; None writes nothing to disk.
        **settings: any setting of `dmc consolidate` (docs/settings.md), or a whole `schedule`. `profile="paper"` takes
            the paper's settings and method, `recipe="best"` sets what was found to help beyond it.
    """
    how, rest = RunConfig.taken_from(settings)
    loaded = _all(teachers)
    if out is not None and is_main():
        require_own(Path(out), how.resume)
        require_outside(Path(out), aux)
    merge = Merge.chosen(loaded, aux, out, how, rest)
    merged: Model = merge.timed(merge.with_teachers(loaded)).run(out, how)
    return _reported(merged, out, how)


def check(teachers: Sequence[Given], aux: Images, **settings: Unpack[CheckKeywords]) -> Check:
    """Verify and estimate a consolidation before it trains. Nothing is written to disk.

    Args:
        teachers: as for `consolidate`.
        aux: as for `consolidate`.
        **settings: those of `consolidate`, without those of `RunConfig`.

    Returns:
        Classes, preprocessing, images, estimated time, and whether one teacher would drown the others.
    """
    loaded = _all(teachers)
    merge = Merge.chosen(loaded, aux, None, RunConfig(), settings)
    planned = merge.with_teachers(loaded)
    return checked(merge.timed(planned) if merge.length.minutes is not None else planned)


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
    """Teach a model new classes without its old data: train a specialist on them, then consolidate the two.

    Args:
        model: a model, or whatever `dmc.load` takes.
        data: labeled images of the new classes, as for `train`.
        aux: unlabeled images, as for `consolidate`.
        out: a folder for both runs and the result; None writes nothing to disk.
        keep: the classes to learn, as for `train`.
        val: labeled data to test the specialist on, as for `train`.
        **settings: those of `consolidate`, and `specialist_epochs` or a whole `specialist_schedule`, `from_old`,
            `keep_specialists`, `use_new` and `use_labels`. Each of the two trainings gets half of `minutes`.
    """
    how, rest = RunConfig.taken_from(settings)
    return _reported(learned(model, data, aux, out, keep, val, how, rest), out, how)


@overload
def evaluate(model: Specialist | Teachers, data: Place, **choice: Unpack[ClassChoice]) -> Evaluation: ...
@overload
def evaluate(model: Detector | DetectorTeachers, data: Place, **choice: Unpack[ClassChoice]) -> DetectionEvaluation: ...
@overload
def evaluate(model: Given | Sequence[Given], data: Place, **choice: Unpack[ClassChoice]) -> Result: ...
def evaluate(model: Given | TeacherGroup[Any] | Sequence[Given], data: Place, **choice: Unpack[ClassChoice]) -> Result:
    """Measure accuracy, or average precision, on labeled data; classes are matched by name.

    Args:
        model: a model, whatever `dmc.load` takes, or several models side by side.
        data: labeled images, as for `train`.
        **choice: `keep`, the classes of the data to measure on; `known=True` leaves out the classes that the model does
            not know, which are refused otherwise; `rename`, the model's names for classes of the data:
            `{"tabby": "cat"}`.
    """
    if isinstance(model, TeacherGroup):
        found: Model | TeacherGroup[Any] = model
    elif isinstance(model, Given):
        found = load(model)
    else:
        several = [load(one) for one in model]
        found = task_of(several).side_by_side(several)
    return task_of([found]).evaluate(found, data, **choice)


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
    """Give the most probable classes of each image, or the objects that a detector finds in it.

    Args:
        model: a model, or whatever `dmc.load` takes.
        images: a file, a folder (all images below it), a PIL image, or a uint8 array, H x W or H x W x 3; or a list of
            these.
        **settings: `top` for classifiers, `min_score` for detectors.

    Returns:
        An answer for each image. One that cannot be read has the answer None, and a warning names it.
    """
    found = load(model)
    task = task_of([found])
    answers = task.predict(found, pictures(images), task.predict_config.of(settings))
    return [None if isinstance(answer, DecodeError) else answer for answer in answers]


def export(
    model: Given,
    path: str | Path,
    format: ExportFormat = "onnx",
    *,
    pixels: bool = False,
    images: Picture | Sequence[Picture] | None = None,
    tolerance: float = TOLERANCE,
) -> Exported:
    """Write a model to one file for other programs, and compare the file's answers with the model's.

    Class names and preprocessing are in the file, too. A classifier takes any number of images, a detector one.

    Args:
        model: a model, or whatever `dmc.load` takes; classes that it does not `keep` are no part of the file.
        path: the file, which must not exist: `.onnx`, `.pt2` for `"torch-export"`, or `.pt` for `"torchscript"`.
        format: `"onnx"`, `"torch-export"` or `"torchscript"`.
        pixels: put the preprocessing inside: uint8 images in, probabilities out.
        images: images to compare on, as for `predict`, of which 16 are used; None makes some.
        tolerance: the largest difference between the answers; a file that differs more is an error, and not kept.
    """
    return export_model(load(model), Path(path), format, pixels, images, tolerance)


def push(model: Given, repo: str, *, license: str = UNKNOWN, public: bool = False) -> str:
    """Publish a model on the Hugging Face hub: its files and a complete card, in one commit.

    Args:
        model: a model, or whatever `dmc.load` takes.
        repo: its name there, `OWNER/NAME`. A model that is there already is replaced, and stays as visible as it is.
        license: by the hub's short name, such as `apache-2.0`.
        public: let everybody see it; otherwise only its owner does.

    Returns:
        The address of its page.
    """
    require_hub(repo, license)
    return publish(load(model), repo, license, public)


def write_report(
    runs: str | Path | Sequence[str | Path], out: str | Path | None = None, data: Place | None = None
) -> Path:
    """Write what happened in a run as one page, `report.html`, and its figures as PNG and SVG in `report-figures`.

    `train`, `consolidate` and `learn` do so when they end; a run that is still going can be reported on, too.

    Args:
        runs: a folder that one of these, or `dmc bench` or `dmc reproduce`, has written; or a list of such folders.
        out: the folder to write to; None is the run's own, and `report` for several runs.
        data: labeled images, as for `train`, to measure the run's model and its teachers on.

    Returns:
        The path of the page.
    """
    from dmc.report.writing import write_report as write

    return write([runs] if isinstance(runs, str | Path) else runs, out, data)


def _reported(model: Model, out: str | Path | None, how: RunConfig) -> Model:
    """Write the report of a finished run, if it is wanted."""
    if out is not None and how.report and is_main():
        from dmc.report.writing import report_at_end

        report_at_end(Path(out))
    return model


def _all(teachers: Sequence[Given]) -> list[Model]:
    """Load the teachers; refuse a model that is given twice."""
    if isinstance(teachers, Given) or len(teachers) < 2:
        raise DmcError("teachers must be a list of two or more models: consolidation needs at least two teachers")
    loaded = [load(teacher) for teacher in teachers]
    for one, other in combinations(loaded, 2):
        if one.names == other.names and one.fingerprint == other.fingerprint:
            raise DmcError(f"{one.name} and {other.name} are the same model: there is nothing to merge")
    return loaded
