"""What users call: one body for every kind of model; what differs between kinds is in `tasks`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from dmc.choices import AUTO, BegunRun, Length, NetworkChoice, ProfileName
from dmc.classes import listed
from dmc.consolidation import Images
from dmc.data.loader import MEMORY
from dmc.data.pictures import Picture
from dmc.data.preprocess import Preprocessing
from dmc.data.sources import Source
from dmc.distill.detector_teachers import DetectorTeachers
from dmc.distill.teachers import Teachers
from dmc.errors import DmcError
from dmc.evaluation import classification as evaluation
from dmc.evaluation import detection as of_detectors
from dmc.files import require_free
from dmc.merging import Merger
from dmc.models import load as loading
from dmc.models.model import Model, Output
from dmc.models.specialist import Specialist
from dmc.report.check import findings
from dmc.tasks import task_for, task_of
from dmc.tasks.base import Place, VisionTask
from dmc.training.held_out import HeldOut
from dmc.training.run_folder import CHECKPOINT_EVERY
from dmc.training.schedule import Schedule
from dmc.training.supervised import fit_model, labeled_pace

log = logging.getLogger("dmc")
Given = Model | str | Path  # a model, or where it is


def load(source: Given, *arguments: Any, **settings: Any) -> Any:
    """A classifier or a detector: a saved folder, `timm:NAME`, `torchvision:NAME`, `hf-hub:OWNER/NAME`, or a state dict
    with `arch` and `classes`; as text, `old.pth,arch=resnet32,classes=old.txt`."""
    return loading.load(source, *arguments, **settings)


def train(
    data: Place,
    out: str | Path | None = None,
    *,
    arch: str | None = None,
    size: int | None = None,
    weights: str | None = AUTO,
    preprocessing: Preprocessing | None = None,
    output: Output | None = None,
    keep: Iterable[str] | None = None,
    val: Place | None = "auto",
    profile: ProfileName = "auto",
    minutes: float | None = None,
    schedule: Schedule | None = None,
    seed: int = 0,
    memory: int = MEMORY,
    resume: bool = False,
    checkpoint_every: float = CHECKPOINT_EVERY,
    **changes: Any,
) -> Any:
    """Train a specialist on labeled images, or a detector on scenes with boxes.

    What is not said is chosen by the images: `arch`, input `size`, `weights` to begin with (None: random, `"imagenet"`,
    a file; by default ImageNet's where they help and can be had), and how long; `profile="paper"` takes the paper's
    settings. `minutes` is a budget of time. `changes` are fields of `dmc.Schedule`: `epochs`, `lr`, `batch_size`, ...;
    `schedule` replaces all of them.

    `val` names labeled data to test on at the end. `"auto"` is the `val` or `test` folder beside a `train` folder, or
    every tenth image of each class, which is then not trained on, where there are twenty on average; for detectors,
    nothing. None trains on everything. `keep` names the classes to learn.

    `output` says whether a classifier's classes compete (`"softmax"`) or not (`"sigmoid"`); `preprocessing` is what it
    sees, where that is not its architecture's; `memory` is how many bytes of pixels to hold. With `out`, the run and
    the result are kept in that folder, where `resume` continues it; `checkpoint_every` is in seconds.
    """
    length = Length(profile, minutes, schedule, changes)
    if out is not None:
        require_free(Path(out), resume)
    task = task_for(data, arch)
    source, exam = task.open_labeled(data, val, keep)
    begun = BegunRun.in_folder(out, resume)
    if profile == "paper":
        arch, weights = arch or task.paper_arch, task.paper_weights if weights == AUTO else weights
    network = begun.unless(arch, size, weights) if begun else task.network_for(source, arch, size, weights)
    model = task.untrained(source, network, preprocessing, output, seed)
    training = LabeledTraining(task, source, exam, network, length, str(network))
    return training.run(model, out, seed, memory, resume, checkpoint_every)


@dataclass(frozen=True)
class LabeledTraining:
    """Labeled data, and how a network is trained on it."""

    task: VisionTask[Any]
    source: Source
    exam: HeldOut[Any]
    network: NetworkChoice
    length: Length
    what: str  # it is, in the line that says what was chosen

    def run(
        self, model: Model, out: str | Path | None, seed: int, memory: int, resume: bool, checkpoint_every: float
    ) -> Model:
        images, begun = len(self.source), BegunRun.in_folder(out, resume)
        usual = self.task.supervised_schedules(images, pretrained=self.network.weights is not None)
        schedule = self.length.of(*usual, begun)
        loss = self.task.supervised(model, self.source.classes)
        if not begun:
            pace = labeled_pace(loss, model, self.source, schedule.batch_size)
            schedule = self.length.timed(schedule, images, pace, self.what)
        began = {"weights": self.network.weights}
        kept = (out, schedule, seed, memory, resume, checkpoint_every)
        taught: Model = fit_model(model, self.source, loss, *kept, began, self.exam)
        return taught


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
    tar shards, `hf-hub:OWNER/NAME` or a uint8 array, or a list of such; `aux_limit` takes a number of them, or a share
    such as 0.25. With `out`, the run and the result are kept in that folder.

    What is not said is chosen by teachers and images: the student's `arch`, `size` and `weights`, and how long it is
    trained (`minutes` is a budget; fields of `dmc.Schedule`, such as `epochs` and `lr`, change the schedule, `schedule`
    replaces it). `profile="paper"` takes the paper's settings, and the literal form of its method.

    Other settings: `loss` (`"l2"`, `"l1"`, `"kd"`), `centring`, `seed`, `memory` (bytes of pixels to hold); for
    classifiers `temperature` (of kd), `scale` of the teachers' logits (`"none"`, `"pool-std"`, `"balanced"`, `"auto"`)
    and `balance` of the student's outputs; for detectors `anchors` and `box_weight`.
    """
    loaded = _all(teachers)
    if out is not None:
        require_free(Path(out), resume)
    merger = Merger.chosen(loaded, aux, BegunRun.in_folder(out, resume), **settings)
    return merger.timed(merger.plan(loaded)).run(out, resume, checkpoint_every)


def check(teachers: Sequence[Given], aux: Images, **settings: Any) -> dict[str, Any]:
    """What can be said about a consolidation before it trains: classes, preprocessing, images, time, and whether one
    teacher would drown the others. The settings are those of `consolidate`; nothing is written."""
    loaded = _all(teachers)
    merger = Merger.chosen(loaded, aux, None, **settings)
    plan = merger.plan(loaded)
    return findings(merger.timed(plan) if merger.length.minutes is not None else plan)


def learn(
    model: Given,
    data: Place,
    aux: Images,
    out: str | Path | None = None,
    *,
    keep: Iterable[str] | None = None,
    val: Place | None = "auto",
    specialist_epochs: int | None = None,
    specialist_schedule: Schedule | None = None,
    resume: bool = False,
    checkpoint_every: float = CHECKPOINT_EVERY,
    **settings: Any,
) -> Any:
    """Teach a model the classes of labeled `data` without its old data: train a specialist, consolidate.

    `val` and `keep` are those of `train`, for the specialist, whose schedule is chosen, given (`specialist_schedule`),
    or as long as `specialist_epochs`. The other settings are those of `consolidate`; of `minutes`, half goes to each.
    """
    old = load(model)
    task = task_of([old])
    source, exam = task.open_labeled(data, val, keep)
    require_news(old, source)
    if out is not None:
        require_free(Path(out), resume)
    merger = Merger.chosen([old], aux, BegunRun.in_folder(out, resume), **settings)
    merger = replace(merger, length=replace(merger.length, share=0.5))
    seed, memory = settings.get("seed", 0), settings.get("memory", MEMORY)
    new = task.untrained(source, merger.network, merger.alike(old), old.output, seed)
    first = merger.timed(merger.plan([old, new]))  # what is wrong with it should show before days of training

    changes = {key: value for key, value in merger.length.changes.items() if key != "epochs"}
    changes |= {} if specialist_epochs is None else {"epochs": specialist_epochs}
    length = replace(merger.length, schedule=specialist_schedule, changes=changes)
    training = LabeledTraining(task, source, exam, merger.network, length, f"specialist: {merger.network}")
    place = Path(out) / "specialist" if out is not None else None
    new = training.run(new, place, seed, memory, resume, checkpoint_every)

    merging = merger.plan([old, new])
    merging.schedule, merging.made_by = first.schedule, f"dmc learn, new classes from {source.name}"
    tested = {key: line for key, line in new.provenance.items() if key.startswith("held-out")}
    merging.notes = {f"{key} of the new classes' own model": line for key, line in tested.items()}
    return merging.run(out, resume, checkpoint_every)


def require_news(old: Model, source: Source) -> None:
    """Say which classes are known already; refuse if that is all of them."""
    known = [name for name in source.classes if name in old.names]
    if len(known) == len(source.classes):
        raise DmcError(
            f"{old.name} knows {listed(known, 5)} already: there is nothing new to learn from {source.name}; train a "
            "model of its own (dmc train), and merge it (dmc consolidate, --rename where classes only share a name)"
        )
    if known:
        both = "they are taught by both models, whose mean is the target"
        log.warning("%s knows %d of the classes already (%s): %s", old.name, len(known), listed(known, 5), both)


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


def _all(teachers: Sequence[Given]) -> list[Model]:
    if isinstance(teachers, Given):
        raise DmcError("teachers are a list of two or more models")
    loaded: list[Model] = [load(teacher) for teacher in teachers]
    for one, other in combinations(loaded, 2):
        if one.names == other.names and one.fingerprint == other.fingerprint:
            raise DmcError(f"{one.name} and {other.name} are the same model: there is nothing to merge")
    return loaded
