"""Several detectors used as one: what teaching anchor by anchor and teaching by decoded boxes have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dmc.config import Centring
from dmc.data.batch import Batch
from dmc.data.detection_batch import DetectionBatch, ShorterSide
from dmc.data.fitting import Size
from dmc.device import index
from dmc.distill.answer_table import Part
from dmc.distill.cache import Kept, noise
from dmc.distill.teachers import TeacherGroup
from dmc.metrics.average_precision import Detections
from dmc.models.detector import MIN_SCORE, Candidates, Detector

# Anchors that are taught in each image: the paper's, and through boxes, which leave out all background if these are few
# (results/decoded-boxes.md: 8 points of mAP).
ANCHORS, THROUGH_BOXES = 64, 512
MOST_FINDS = 100  # of one teacher in one image; at most half as many as anchors, since a find has several of these
DEFAULT_CENTRING: Centring = "none"  # sigmoid logits are absolute log-odds: see docs/detection.md


class Selected(NamedTuple):
    """The anchors of each image at which some teacher is most confident, and what the student should answer there."""

    places_NS: Tensor  # indices of the anchors
    logits_NST: Tensor  # over the union of classes (Eq. 4)
    boxes_NSB: Tensor  # from the teacher with the most probable class at that anchor
    box_weights_NS: Tensor | None = None  # 0: there is no box to teach; None: there is one at every anchor


class DetectorTeachers(TeacherGroup[Detector]):
    """Detectors over the union of their classes."""

    def __init__(self, detectors: Sequence[Detector], centring: Centring | None, anchors: int) -> None:
        super().__init__(detectors, centring or DEFAULT_CENTRING)
        self.anchors = anchors  # that are taught in each image

    @property
    def transform(self) -> ShorterSide:
        """The transform of the teacher with the largest input."""
        return max((d.transform for d in self.specialists), key=lambda transform: transform.size)

    @abstractmethod
    def each(self, images_N3HW: Tensor, sizes: Sequence[Size] | None = None) -> Sequence[Any]:
        """Give every teacher's own answers. `sizes` are height and width without padding; None: there is none."""

    @abstractmethod
    def select(self, images_N3HW: Tensor, count: int, sizes: Sequence[Size] | None = None) -> Selected:
        """Select `count` anchors of each image, and tell what the student should answer there."""

    @property
    def shown(self) -> int | None:
        """The pixels on the shorter side that each teacher is told images have; None: what it was made for."""
        return None

    def candidates(self, images_N3HW: Tensor, sizes: Sequence[Size]) -> list[Candidates]:
        """Give every teacher's most probable boxes, loosely suppressed."""
        found = []
        for teacher in self.inference_models:
            with self.blaming(teacher):
                count = min(-(-self.anchors // 2), MOST_FINDS)
                found.append(teacher.candidates(images_N3HW, sizes, count, self.shown))
        self.watch([boxes.sum() + odds.sum() for boxes, odds in found])
        return found

    def finds(self, images_N3HW: Tensor, sizes: Sequence[Size]) -> list[list[Detections]]:
        """Give what each teacher finds in each image by itself."""
        return [teacher.detections(images_N3HW, sizes, MIN_SCORE, self.shown) for teacher in self.inference_models]

    @abstractmethod
    def detections(self, images_N3HW: Tensor, sizes: Sequence[Size], min_score: float = MIN_SCORE) -> list[Detections]:
        """Detect by inference twice: put together what all of them find."""

    def kept(self) -> list[Kept]:
        """Keep what is selected of all teachers' answers together."""
        answer = self.select(noise(self.transform.size, self.specialists[0].device), self.anchors)
        key = {
            "teachers": [teacher.settings | {"weights": teacher.fingerprint} for teacher in self.specialists],
            "centring": self.centring,
        }
        # A square of noise may have fewer anchors than are taught elsewhere.
        places, *floats = ((self.anchors, *part.shape[2:]) for part in answer if part is not None)
        # The highest logits of each class tell teachers apart: which anchors these are may depend on rounding.
        return [Kept(key, [Part(places, torch.int32), *map(Part, floats)], answer.logits_NST.amax(dim=1))]

    def targets(self, batch: Batch) -> Selected:
        """Select the anchors to be taught, and give the targets there; from the table where they are there."""

        def ask() -> Selected:
            return self.select(batch.images_N3HW, self.anchors, sizes_in(batch))

        if not self.tables:
            return ask()
        found = Selected(*self.tables[0](batch, lambda: filled(ask(), self.anchors)))
        device = found.logits_NST.device
        self.watch([found.logits_NST[..., index(tuple(columns), device)] for columns in self.union.columns])
        return found


def filled(found: Selected, count: int) -> list[Tensor]:
    """Give the parts with `count` anchors of each image; a long, narrow image has fewer, and its best come again."""
    again_S = torch.arange(count, device=found.places_NS.device) % found.places_NS.shape[1]
    return [part[:, again_S] for part in found if part is not None]


def sizes_in(batch: Batch) -> Sequence[Size] | None:
    """Give height and width of each image without its padding; None: they are not padded."""
    return batch.sizes if isinstance(batch, DetectionBatch) else None
