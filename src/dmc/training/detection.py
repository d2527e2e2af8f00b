"""Supervised training of a detector on images with boxes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dmc.data.batch import Batch
from dmc.data.detection_batch import DetectionBatch
from dmc.device import index
from dmc.models.detector import Detector
from dmc.models.one_stage import Answers
from dmc.training.objective import Objective


class DetectionLoss(Objective):
    """The loss of the detector's own family: focal loss and L1 for RetinaNet."""

    name = "Detection"

    def __init__(self, detector: Detector, data_classes: Sequence[str]) -> None:
        self.detector = detector
        self.column_of_label = tuple(detector.classes.require(name) for name in data_classes)

    def answers(self, network: nn.Module, batch: Batch) -> Answers:
        """Give the network's logits and boxes at each anchor."""
        return self.detector.with_module(network).answers(batch.images_N3HW)

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        parts = self.parts(self.answers(network, batch), batch)
        return {"loss": torch.stack(list(parts.values())).sum(), **parts}

    def parts(self, answers: Answers, batch: Batch) -> dict[str, Tensor]:
        """Compute the terms of the loss, such as those of classes and of boxes."""
        column_of_label = index(self.column_of_label, answers.logits_NAK.device)
        targets = [
            {"boxes": t["boxes"], "labels": column_of_label[t["labels"]]} for t in DetectionBatch.of(batch).targets
        ]
        return self.detector.one_stage.objective(answers, targets)
