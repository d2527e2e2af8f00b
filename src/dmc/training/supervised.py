"""Supervised training on labeled images: how specialists are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from dmc.config import SPECIALIST, Output, RunConfig, Schedule
from dmc.data.batch import Batch
from dmc.data.decode import decoded
from dmc.data.loader import MEMORY, fits, open_loader
from dmc.data.open import open_labeled
from dmc.data.preprocess import Preprocessing
from dmc.data.sources import Source
from dmc.device import index, pick_device
from dmc.errors import DmcError
from dmc.models.architectures import default_preprocessing
from dmc.models.model import AnyModel, Model
from dmc.models.specialist import Specialist
from dmc.training.held_out import HeldOut
from dmc.training.loop import Objective, fit, images_per_second
from dmc.training.run_folder import Run, versions


class Supervised(Objective):
    """Cross entropy for softmax outputs, binary cross entropy for sigmoid ones."""

    name = "Supervised"

    def __init__(self, specialist: Specialist, data_classes: Sequence[str]) -> None:
        self.specialist = specialist
        self.column_of_label = tuple(specialist.classes.require(name) for name in data_classes)

    def logits(self, network: nn.Module, batch: Batch) -> Tensor:
        """Give the network's logits of a batch, for the specialist's classes."""
        return self.specialist.answering_with(network).logits(batch.images_N3HW)

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"loss": self.classification(self.logits(network, batch), batch.labels_N)}

    def among_data_classes(self, logits_NK: Tensor, labels_N: Tensor) -> Tensor:
        """Compute the cross entropy in which only the classes of the data compete, as if in a head of their own."""
        return F.cross_entropy(logits_NK[:, index(self.column_of_label, logits_NK.device)], labels_N)

    def classification(self, logits_NK: Tensor, labels_N: Tensor) -> Tensor:
        """Compute the loss in which all of the specialist's classes compete; labels are those of the data."""
        wanted_N = index(self.column_of_label, logits_NK.device)[labels_N]
        if self.specialist.output == "softmax":
            return F.cross_entropy(logits_NK, wanted_N)
        wanted_NK = F.one_hot(wanted_N, logits_NK.shape[1]).to(logits_NK)
        return F.binary_cross_entropy_with_logits(logits_NK, wanted_NK)


def train(
    data: str | Path | Source,
    out: str | Path | None = None,
    *,
    arch: str = "cifar_resnet32",
    preprocessing: Preprocessing | None = None,
    size: int | None = None,
    output: Output = "softmax",
    weights: str | None = None,
    schedule: Schedule = SPECIALIST,
    seed: int = 0,
    memory: int = MEMORY,
    resume: bool = False,
    checkpoint_every: float = 30.0,
    exam: HeldOut[Specialist] | None = None,
) -> Specialist:
    """Train a specialist on labeled images.

    `size` is the side of the input in pixels, None for the architecture's own; `weights` is where the network begins:
    at random (None), `imagenet`, or a file; `out` is the run's folder, None for a temporary one; `memory` is how many
    bytes of images may be held; `checkpoint_every` is in seconds; `exam` measures the specialist when it is trained.
    """
    source = open_labeled(data)
    specialist = specialist_for(source, arch, preprocessing, size, output, weights, seed)
    began = {"weights": weights}
    return fit_labeled(
        specialist, source, out, schedule, seed, memory, resume, checkpoint_every, settings=began, exam=exam
    )


def specialist_for(
    source: Source,
    arch: str,
    preprocessing: Preprocessing | None = None,
    size: int | None = None,
    output: Output = "softmax",
    weights: str | None = None,
    seed: int = 0,
) -> Specialist:
    """Make an untrained specialist for the classes of a source."""
    if output == "softmax" and len(source.classes) < 2:
        raise DmcError(f"{source.name} has one class ({source.classes[0]!r}); a softmax classifier needs two or more")
    preprocessing = preprocessing or default_preprocessing(arch)
    preprocessing = replace(preprocessing, size=size or preprocessing.size)
    return Specialist.untrained(arch, source.classes, preprocessing, output, seed, weights)


def fit_labeled(
    specialist: Specialist,
    source: Source,
    out: str | Path | None = None,
    schedule: Schedule = SPECIALIST,
    seed: int = 0,
    memory: int = MEMORY,
    resume: bool = False,
    checkpoint_every: float = 30.0,
    task: Supervised | None = None,
    settings: Mapping[str, Any] | None = None,
    exam: HeldOut[Specialist] | None = None,
) -> Specialist:
    """Train a given specialist on labeled images of some or all of its classes; see `train` for the arguments.

    A method that wants more than cross entropy brings its own `task`, and the `settings` of it for run.json.
    """
    task = task or Supervised(specialist, source.classes)
    how = RunConfig(resume=resume, checkpoint_every=checkpoint_every)
    return fit_model(specialist, source, task, out, schedule, seed, memory, how, settings, exam)


def fit_model(
    model: AnyModel,
    source: Source,
    task: Objective,
    out: str | Path | None,
    schedule: Schedule,
    seed: int,
    memory: int,
    how: RunConfig,
    settings: Mapping[str, Any] | None = None,
    exam: HeldOut[AnyModel] | None = None,
) -> AnyModel:
    """Train a model in a run's folder, or read the result if the run is finished."""
    config = {
        "command": "train",
        "task": {"name": task.name, **(settings or {})},
        "data": {"name": source.name, "images": len(source), "classes": list(source.classes)},
        **(exam.config if exam else {}),
        "held": fits(source, model.transform, memory),
        "model": model.settings | {"fingerprint": model.fingerprint},
        "schedule": schedule.model_dump(),
        "seed": seed,
        "versions": versions(),
    }
    with Run(out, config, how) as run:
        if run.finished:
            run.recall(task.notes())
            return run.result(model)
        loader = open_loader(source, model.transform, memory)
        if exam:
            exam.begin(source, loader.count)
        at = fit(model.module, task, loader, schedule, run, seed, "training")
        model.provenance = {
            "made by": "dmc train",
            "data": f"{source.name} ({loader.count} images, {len(loader.skipped)} skipped)",
            "training": f"{schedule.epochs} epochs, {at.images} images seen, seed {seed}",
            **(exam.result(model) if exam else {}),
        }
        return run.finish(model)


def labeled_pace(task: Objective, model: Model, source: Source, batch_size: int) -> float:
    """Measure the images per second of a training on one batch of its images."""
    images = (
        (record, image) for record, image in decoded(source.records(seed=0), model.transform) if image is not None
    )
    framed = list(islice(images, batch_size))
    if not framed:
        raise DmcError(f"no image in {source.name} can be decoded")
    model.to(pick_device())
    return images_per_second(model.module, task, model.transform.batch(framed).to(pick_device()))
