"""Supervised training of a detector on images with boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from dmc.config import DETECTION, RunConfig, Schedule
from dmc.data.annotations import open_annotated
from dmc.data.batch import Batch
from dmc.data.detection_batch import DetectionBatch
from dmc.data.loader import MEMORY
from dmc.data.preprocess import Preprocessing
from dmc.data.sources import Source
from dmc.device import index
from dmc.models.detector import Detector
from dmc.models.one_stage import Answers
from dmc.training.held_out import HeldOut
from dmc.training.loop import Objective
from dmc.training.supervised import fit_model


class Detection(Objective):
    """The loss of the detector's own family: focal loss and L1 for RetinaNet."""

    name = "Detection"

    def __init__(self, detector: Detector, data_classes: Sequence[str]) -> None:
        self.detector = detector
        self.column_of_label = tuple(detector.classes.require(name) for name in data_classes)

    def answers(self, network: nn.Module, batch: Batch) -> Answers:
        """Give the network's logits and boxes at each anchor."""
        return self.detector.answering_with(network).answers(batch.images_N3HW)

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        parts = self.parts(self.answers(network, batch), batch)
        return {"loss": torch.stack(list(parts.values())).sum(), **parts}

    def parts(self, answers: Answers, batch: Batch) -> dict[str, Tensor]:
        """Compute the terms of the loss, such as those of classes and of boxes."""
        column_of_label = index(self.column_of_label, answers.logits_NAK.device)
        targets = [
            {"boxes": t["boxes"], "labels": column_of_label[t["labels"]]} for t in DetectionBatch.of(batch).targets
        ]
        return self.detector.network.objective(answers, targets)


def train(
    data: str | Path | Source,
    out: str | Path | None = None,
    *,
    arch: str = "retinanet_resnet50_fpn",
    preprocessing: Preprocessing | None = None,
    size: int | None = None,
    weights: str | None = "imagenet",
    schedule: Schedule = DETECTION,
    seed: int = 0,
    memory: int = MEMORY,
    resume: bool = False,
    checkpoint_every: float = 30.0,
    exam: HeldOut[Detector] | None = None,
) -> Detector:
    """Train a detector on images with boxes.

    `size` is the shorter side in pixels, None for the architecture's own; `weights` is where the backbone begins:
    `imagenet`, a file, or at random (None); `out` is the run's folder, None for a temporary one; `memory` is how many
    bytes of images may be held; `checkpoint_every` is in seconds; `exam` measures the detector when it is trained.
    """
    source = open_annotated(data)
    detector = detector_for(source, arch, preprocessing, size, weights, seed)
    how = RunConfig(resume=resume, checkpoint_every=checkpoint_every)
    objective = Detection(detector, source.classes)
    return fit_model(detector, source, objective, out, schedule, seed, memory, how, {"weights": weights}, exam)


def detector_for(
    source: Source,
    arch: str,
    preprocessing: Preprocessing | None = None,
    size: int | None = None,
    weights: str | None = "imagenet",
    seed: int = 0,
) -> Detector:
    """Make an untrained detector for the classes of a source."""
    preprocessing = preprocessing or Detector.architectures.preprocessing(arch)
    preprocessing = replace(preprocessing, size=size or preprocessing.size)
    return Detector.untrained(arch, source.classes, preprocessing, seed, weights)
