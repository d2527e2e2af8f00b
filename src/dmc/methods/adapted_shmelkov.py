"""What the paper compares with: fine-tuning, and Shmelkov et al.'s method adapted to one-stage detectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from dmc.config import DetectorConsolidateConfig, Schedule
from dmc.data.annotations import DetectionImages
from dmc.data.batch import Batch
from dmc.device import pick_device
from dmc.distill.detector_teachers import DetectorTeachers, gathered
from dmc.models.detector import Detector
from dmc.training.detection import Detection, fit_scenes

ANCHORS = DetectorConsolidateConfig().anchors


class AdaptedShmelkov(Detection):
    """Learn the new classes while the old outputs stay where they were on the old model's best anchors.

    Shmelkov et al., "Incremental Learning of Object Detectors without Catastrophic Forgetting" (ICCV 2017): the
    detector's own loss plus a distillation of the old classes' logits (L2) and of the boxes (smooth L1). As in the DMC
    paper, the anchors are chosen by the old model's highest class probabilities instead of by proposals.
    """

    name = "AdaptedShmelkov"

    def __init__(
        self,
        wide: Detector,
        old: Detector,
        data_classes: Sequence[str],
        anchors: int = DetectorConsolidateConfig().anchors,
    ) -> None:
        super().__init__(wide, data_classes)
        self.old, self.anchors = DetectorTeachers([old], "none").to(pick_device()), anchors
        self.old.fold()

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        target = self.old.select(batch.images_N3HW, self.anchors)
        answers = self.answers(network, batch)
        parts = self.parts(answers, batch)
        old_classes = target.logits_NST.shape[2]
        logits_NSK = gathered(answers.logits_NAK, target.places_NS)[..., :old_classes]
        boxes_NSB = gathered(answers.boxes_NAB, target.places_NS)
        distilled = F.mse_loss(logits_NSK, target.logits_NST)
        kept = F.smooth_l1_loss(boxes_NSB, target.boxes_NSB, reduction="none").sum(dim=2).mean()
        loss = sum(parts.values()) + distilled + kept
        return {"loss": loss, **parts, "old classes": distilled, "old boxes": kept}

    def require_sound(self) -> None:
        self.old.require_finite()


def finetune(old: Detector, data: DetectionImages, out: Path, schedule: Schedule, seed: int) -> Detector:
    """Go on training on the new classes alone."""
    return fit_scenes(_grown(old, data, seed), data, out, schedule, seed, resume=True)


def adapted_shmelkov(old: Detector, data: DetectionImages, out: Path, schedule: Schedule, seed: int) -> Detector:
    wide = _grown(old, data, seed)
    return fit_scenes(wide, data, out, schedule, seed, resume=True, task=AdaptedShmelkov(wide, old, data.classes))


def _grown(old: Detector, data: DetectionImages, seed: int) -> Detector:
    return old.widened([name for name in data.classes if name not in old.names], seed)
