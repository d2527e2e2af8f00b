"""Detectors of any kind used as one: what they find is taught at the student's anchors."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from dmc.config import Centring
from dmc.data.detection_batch import ShorterSide
from dmc.data.fitting import Size
from dmc.distill.anchor_teachers import AnchorTeachers, same_anchors
from dmc.distill.box_targets import at_anchors
from dmc.distill.cache import Kept
from dmc.distill.detector_teachers import THROUGH_BOXES, DetectorTeachers, Selected
from dmc.distill.targets import build_targets
from dmc.errors import DmcError
from dmc.metrics.average_precision import Detections
from dmc.models.detector import MAX_DETECTIONS, MIN_SCORE, NMS, Candidates, Detector


def side_by_side(detectors: Sequence[Detector]) -> DetectorTeachers:
    """Group detectors to find objects together, whatever their anchors are, and the size of their images."""
    alike = len({one.preprocessing.size for one in detectors}) == 1 and same_anchors(detectors)
    return AnchorTeachers(detectors) if alike else BoxTeachers(detectors)


class BoxTeachers(DetectorTeachers):
    """Detectors that need have nothing in common. Each sees images at the size that it was made for."""

    def __init__(
        self,
        detectors: Sequence[Detector],
        student: Detector | None = None,
        centring: Centring | None = None,
        anchors: int | None = None,
    ) -> None:
        """Group detectors; without a student, they detect side by side, but have no anchors to teach at."""
        super().__init__(detectors, centring, anchors or THROUGH_BOXES)
        # A copy tells where the anchors lie: asking the student itself in training would change its norms.
        self.student = student and student.with_module(copy.deepcopy(student.module).eval())
        self.layouts: dict[torch.Size, Tensor] = {}

    @property
    def transform(self) -> ShorterSide:
        """The student's transform; without a student, that of the largest teacher, with all proportions kept."""
        return self.student.transform if self.student else ShorterSide(super().transform.size)

    @property
    def shown(self) -> int:
        return self.transform.size

    def to(self, device: torch.device) -> Self:
        if self.student:
            self.student.to(device)
        return super().to(device)

    def kept(self) -> list[Kept]:
        """Keep what is taught at the anchors of such a student."""
        fits = [teacher.network.fit for teacher in self.specialists]  # which neither weights nor settings tell
        more = {"student": [self.learner.arch, self.transform.size], "fits": fits}
        return [one._replace(key={**one.key, **more}) for one in super().kept()]

    def each(self, images_N3HW: Tensor, sizes: Sequence[Size] | None = None) -> list[Candidates]:
        """Give every teacher's most probable boxes."""
        frame = (int(images_N3HW.shape[2]), int(images_N3HW.shape[3]))
        return self.candidates(images_N3HW, sizes or [frame] * len(images_N3HW))

    def select(self, images_N3HW: Tensor, count: int, sizes: Sequence[Size] | None = None) -> Selected:
        """Select the `count` anchors of the student at which some teacher found the most probable objects."""
        found, student = self.each(images_N3HW, sizes), self.learner.one_stage
        with torch.no_grad():
            draws_N = images_N3HW[:, :, ::8, ::8].sum(dim=(1, 2, 3))  # a number that differs with the image
            at = at_anchors(found, self.layout(images_N3HW), student, count, draws_N)
            target_MT = build_targets([odds_NSK.flatten(0, 1) for odds_NSK in at.odds], self.union, self.centring)
            logits_NST = student.logits_for(target_MT).view(*at.places_NS.shape, -1)
        return Selected(at.places_NS, logits_NST, at.boxes_NSB, at.box_weights_NS)

    @property
    def learner(self) -> Detector:
        if self.student is None:
            raise DmcError(f"{self.name} detect side by side; to teach, they need a student")
        return self.student

    def layout(self, images_N3HW: Tensor) -> Tensor:
        """Give the student's anchors in such images."""
        frame = images_N3HW.shape[2:]
        if frame not in self.layouts:
            with torch.no_grad():
                self.layouts[frame] = self.learner.answers(torch.zeros_like(images_N3HW[:1])).anchors_A4
        return self.layouts[frame]

    def detections(self, images_N3HW: Tensor, sizes: Sequence[Size], min_score: float = MIN_SCORE) -> list[Detections]:
        """Put together what all teachers find; of a class that several know, boxes hide others as in one detector."""
        theirs = [teacher.detections(images_N3HW, sizes, min_score, self.shown) for teacher in self.inference_models]
        return [joined(of_image, self.union.columns) for of_image in zip(*theirs, strict=True)]


def joined(finds: Sequence[Detections], columns: Sequence[Sequence[int]]) -> Detections:
    """Join what several detectors found in one image; `columns` are each one's classes in the union."""
    from torchvision import ops

    boxes_M4, scores_M = (np.concatenate([found[part] for found in finds]) for part in (0, 1))
    labels_M = np.concatenate([np.array(own)[found.labels_M] for found, own in zip(finds, columns, strict=True)])
    kept = ops.batched_nms(*map(torch.from_numpy, (boxes_M4, scores_M, labels_M)), NMS)[:MAX_DETECTIONS].numpy()
    return Detections(boxes_M4[kept], scores_M[kept], labels_M[kept])
