"""What users call: each verb finds out whether it has to do with classifiers or with detectors.

What comes back depends on that, so the types say `Any`; the functions that these call are typed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dmc import consolidation as classifiers
from dmc import evaluation, loading
from dmc.data.opening import open_images, sample_of
from dmc.data.pictures import Picture
from dmc.detect import consolidation as detectors
from dmc.detect import evaluation as of_detectors
from dmc.detect import training as detector_training
from dmc.detect.detector import Detector
from dmc.detect.loading import find_detector
from dmc.detect.teachers import DetectorTeachers
from dmc.distill.teachers import Teachers
from dmc.errors import DmcError
from dmc.lessons import Place, images_and_exam, require_news, scenes_and_exam
from dmc.models.blueprint import is_detector
from dmc.plan import Images, Plan
from dmc.specialist import Model, Specialist
from dmc.training import supervised
from dmc.training.run import CHECKPOINT_EVERY

Given = Model | str | Path  # a model, or where it is
Limit = int | float | str | None  # of auxiliary images: a number, or a share such as 0.25 or "25%"
FOR_CLASSIFIERS = ("temperature", "scale", "output")  # settings that the other kind does not have
FOR_DETECTORS = ("anchors", "box_weight")


def load(source: Given, *arguments: Any, **settings: Any) -> Any:
    """A classifier or a detector: a saved folder, `timm:NAME`, `torchvision:NAME`, `hf-hub:OWNER/NAME`, or a state dict
    with `arch` and `classes`; as text, `old.pth,arch=resnet32,classes=old.txt`."""
    if isinstance(source, Detector):
        return source
    found = find_detector(source, *arguments, **settings) if isinstance(source, str | Path) else None
    return found or loading.load(source, *arguments, **settings)


def train(
    data: Place,
    out: str | Path | None = None,
    *,
    arch: str = "cifar_resnet32",
    val: Place | None = "auto",
    keep: Iterable[str] | None = None,
    **settings: Any,
) -> Any:
    """Train a specialist on labeled images, or a detector on scenes with boxes; `arch` decides which.

    `val` names labeled data to test on at the end. `"auto"` is the `val` or `test` folder beside a `train` folder, or
    every tenth image of each class, which is then not trained on, where there are twenty on average; for detectors,
    nothing. None trains on everything. `keep` names the classes to learn.

    Settings: `size` (of the input), `weights` (None for random, `"imagenet"`, or a file), `schedule`
    (`dmc.training.schedule.Schedule`), `seed`, `memory` (bytes of pixels to hold), `resume`, `checkpoint_every`
    (seconds), `preprocessing`; for classifiers `output` (`"softmax"` or `"sigmoid"`).
    """
    if is_detector(arch):
        own = _without(settings, FOR_CLASSIFIERS, "classifiers")
        scenes, seeing = scenes_and_exam(data, val, keep)
        return detector_training.train(scenes, out, arch=arch, exam=seeing, **own)
    own = _without(settings, FOR_DETECTORS, "detectors")
    source, exam = images_and_exam(data, val, keep)
    return supervised.train(source, out, arch=arch, exam=exam, **own)


def plan(teachers: Sequence[Given], aux: Images, *, aux_limit: Limit = None, **settings: Any) -> Plan[Any]:
    """A consolidation, verified as far as that goes without training."""
    if isinstance(teachers, Given):
        raise DmcError("teachers are a list of two or more models")
    loaded = [load(teacher) for teacher in teachers]
    seers = [model for model in loaded if not isinstance(model, Specialist)]
    specialists = [model for model in loaded if isinstance(model, Specialist)]
    if seers and specialists:
        raise DmcError(f"{specialists[0].name} is a classifier and {seers[0].name} a detector: merge one kind")
    aux = sampled(aux, aux_limit, settings)
    if seers:
        return detectors.DetectorConsolidation(seers, aux, **_without(settings, FOR_CLASSIFIERS, "classifiers"))
    return classifiers.Consolidation(specialists, aux, **_without(settings, FOR_DETECTORS, "detectors"))


def consolidate(
    teachers: Sequence[Given],
    aux: Images,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    checkpoint_every: float = CHECKPOINT_EVERY,
    **settings: Any,
) -> Any:
    """One model that knows every teacher's classes, from unlabeled images alone.

    `teachers` are models or whatever `dmc.load` takes, all classifiers or all detectors; `aux` is a folder, parquet,
    tar shards, `hf-hub:OWNER/NAME` or a uint8 array, or a list of such. With `out`, the run and the result are kept in
    that folder.

    Settings: `aux_limit` (a number of images, or a share such as 0.25, sampled by the seed), `arch`, `size` and
    `weights` of the student, `loss` (`"l2"`, `"l1"`, `"kd"`), `centring`, `schedule`, `seed`, `memory`; for classifiers
    `temperature` and `scale`, for detectors `anchors` and `box_weight`.
    """
    return plan(teachers, aux, **settings).run(out, resume, checkpoint_every)


def learn(
    model: Given,
    data: Place,
    aux: Images,
    out: str | Path | None = None,
    *,
    val: Place | None = "auto",
    keep: Iterable[str] | None = None,
    aux_limit: Limit = None,
    **settings: Any,
) -> Any:
    """Teach a model the classes of labeled `data` without its old data: train a specialist, consolidate.

    `val` and `keep` are those of `train`, for the specialist. Settings: those of `consolidate`, and
    `specialist_schedule`.
    """
    old = load(model)
    if isinstance(old, Specialist):
        own = _without(settings, FOR_DETECTORS, "detectors")
        source, exam = images_and_exam(data, val, keep)
        require_news(old, source)
        return classifiers.learn(old, source, sampled(aux, aux_limit, own), out, exam=exam, **own)
    own = _without(settings, FOR_CLASSIFIERS, "classifiers")
    scenes, seeing = scenes_and_exam(data, val, keep)
    require_news(old, scenes)
    return detectors.learn(old, scenes, sampled(aux, aux_limit, own), out, exam=seeing, **own)


def evaluate(model: Given | Teachers | DetectorTeachers, data: Place, **settings: Any) -> Any:
    """Accuracy, or average precision, on labeled data; classes are matched by name. `keep` names those to look at;
    `known=True` leaves out those that the model does not know; `rename={"tabby": "cat"}` gives classes of the data the
    model's names."""
    found = load(model) if isinstance(model, Model | str | Path) else model
    if isinstance(found, Specialist | Teachers):
        return evaluation.evaluate(found, data, **settings)
    return of_detectors.evaluate(found, data, **settings)


def predict(model: Given, images: Picture | Sequence[Picture], **settings: Any) -> Any:
    """The most probable classes of each image (`top`), or what a detector finds in it (`least` score).

    Images are files, folders (all images below), PIL's, or uint8 arrays, H x W or H x W x 3; one, or a list of them.
    The answer is a list; in it, an image that cannot be read is None, and a warning says which it was.
    """
    found = load(model)
    if isinstance(found, Specialist):
        return evaluation.predict(found, images, **settings)
    return of_detectors.predict(found, images, **settings)


def sampled(aux: Images, limit: Limit, settings: Mapping[str, Any]) -> Images:
    return aux if limit is None else sample_of(open_images(aux), limit, settings.get("seed", 0))


def _without(settings: dict[str, Any], foreign: Sequence[str], whose: str) -> dict[str, Any]:
    for name in foreign:
        if name in settings:
            raise DmcError(f"{name.replace('_', '-')} is a setting of {whose}")
    return settings
