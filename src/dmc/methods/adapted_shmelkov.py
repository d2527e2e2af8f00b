"""Adapted Shmelkov: learn the new classes, and keep the old outputs at the anchors where the old model is surest.

Shmelkov et al., "Incremental Learning of Object Detectors without Catastrophic Forgetting" (ICCV 2017): the detector's
own loss plus a distillation of the old classes' logits (L2, not centred, as their code has it for sigmoids) and of the
boxes (smooth L1, summed over the offsets as in Eq. 6). As in the DMC paper, which adapts it to one-stage detectors,
anchors are chosen by the old model's highest class probabilities instead of by proposals.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from dmc.data.batch import Batch
from dmc.device import pick_device
from dmc.distill.anchor_teachers import AnchorTeachers
from dmc.distill.detector_teachers import ANCHORS
from dmc.distill.losses import box_distance
from dmc.methods.base import Learned, Lesson, Method, fitted, widened
from dmc.models.detector import Detector
from dmc.models.one_stage import gathered
from dmc.training.detection import DetectionLoss


class WithOldOutputs(DetectionLoss):
    """The detector's own loss, plus the distance of its outputs for old classes from the old model's."""

    name = "AdaptedShmelkov"

    def __init__(self, wide: Detector, old: Detector, data_classes: Sequence[str], anchors: int = ANCHORS) -> None:
        super().__init__(wide, data_classes)
        self.old, self.anchors = AnchorTeachers([old], "none").to(pick_device()), anchors
        self.old.fold()

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        target = self.old.select(batch.images_N3HW, self.anchors)
        answers = self.answers(network, batch)
        parts = self.parts(answers, batch)
        old_classes = target.logits_NST.shape[2]
        logits_NSK = gathered(answers.logits_NAK, target.places_NS)[..., :old_classes]
        boxes_NSB = gathered(answers.boxes_NAB, target.places_NS)
        distilled = F.mse_loss(logits_NSK, target.logits_NST)
        kept = box_distance(boxes_NSB, target.boxes_NSB).mean()
        loss = sum(parts.values()) + distilled + kept
        return {"loss": loss, **parts, "old classes": distilled, "old boxes": kept}

    def require_sound(self) -> None:
        self.old.require_finite()


class AdaptedShmelkov(Method):
    name, title = "adapted-shmelkov", "Adapted Shmelkov"
    kinds = (Detector,)

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        old, wide = widened(before, lesson)
        objective = WithOldOutputs(wide, old, lesson.data.classes, lesson.profile.anchors or ANCHORS)
        return Learned([fitted(wide, lesson, "adapted-shmelkov", objective)])
