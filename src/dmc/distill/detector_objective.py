"""Double distillation of detectors as a training objective (Eq. 8)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dmc.config import LossName
from dmc.data.batch import Batch
from dmc.data.detection_batch import DetectionBatch
from dmc.distill.detector_teachers import DetectorTeachers
from dmc.distill.losses import box_distance, loss_named
from dmc.distill.scene_labels import SceneLabels
from dmc.models.detector import Detector
from dmc.models.one_stage import Answers, gathered
from dmc.training.objective import Objective


class DetectionDistillation(Objective):
    """Eq. 8: at selected anchors, the student's logits and box against the teachers'."""

    name = "DetectionDistillation"

    def __init__(
        self,
        student: Detector,
        teachers: DetectorTeachers,
        loss: LossName,
        box_weight: float,
        labels: SceneLabels | None = None,
    ) -> None:
        self.student, self.teachers = student, teachers
        self.distance, self.box_weight, self.labels = loss_named(loss), box_weight, labels

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        target = self.teachers.targets(batch)
        answers = self.student.with_module(network).answers(batch.images_N3HW)
        logits_MT = gathered(answers.logits_NAK, target.places_NS).flatten(0, 1)
        boxes_MB = gathered(answers.boxes_NAB, target.places_NS).flatten(0, 1)
        wanted_MT, wanted_MB = target.logits_NST.flatten(0, 1), target.boxes_NSB.flatten(0, 1)
        off_M = box_distance(boxes_MB, wanted_MB)
        if target.box_weights_NS is not None:
            off_M = off_M * target.box_weights_NS.flatten()
        classes, boxes = self.distance(logits_MT, wanted_MT), off_M.mean()
        parts = {"classes": classes, "boxes": boxes}
        loss = classes + self.box_weight * boxes
        if self.labels is None:
            return {"loss": loss, **parts}
        labeled = self.labeled(self.labels, answers, DetectionBatch.of(batch))
        return {"loss": loss + labeled, **parts, "labels": labeled}

    def labeled(self, labels: SceneLabels, answers: Answers, batch: DetectionBatch) -> Tensor:
        """Give the detector's own loss on the images of a batch that have labels, as a mean over all of its images."""
        scenes = [i for i, objects in enumerate(batch.objects) if objects is not None]
        if not scenes:
            return answers.logits_NAK.new_zeros(())
        theirs = answers._replace(logits_NAK=answers.logits_NAK[scenes], boxes_NAB=answers.boxes_NAB[scenes])
        parts = self.student.one_stage.objective(theirs, labels(batch, scenes))
        return torch.stack(list(parts.values())).sum() * (len(scenes) / len(batch))

    def require_sound(self) -> None:
        self.teachers.require_finite()
