"""What detectors find in auxiliary images before they teach: whether it can be boxes, and whether there is any."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dmc.data.batch import Batch
from dmc.data.detection_batch import DetectionBatch
from dmc.data.fitting import Size
from dmc.distill.detector_agreement import SAMPLE, SURE
from dmc.distill.detector_teachers import DetectorTeachers
from dmc.errors import DmcError
from dmc.models.detector import MIN_SCORE

log = logging.getLogger("dmc")
ODD, ENOUGH = 0.5, 5  # a detector of whose boxes, if it has enough, a larger share is impossible is misunderstood
RARELY = 0.05  # a detector that finds something in a smaller share of the images teaches little


@dataclass
class Seen:
    """What one teacher found."""

    with_finds: int = 0  # images in which it found anything
    boxes: int = 0  # that it is sure of
    impossible: int = 0  # of these: without a size, or with their center outside of the image


class Survey:
    """Look at what each teacher finds in some images."""

    def __init__(self, teachers: DetectorTeachers) -> None:
        self.teachers, self.images = teachers, 0
        self.seen = [Seen() for _ in teachers.specialists]

    def look(self, batch: Batch) -> None:
        """Look at a batch, until there were enough images."""
        if self.images >= SAMPLE:
            return
        images = DetectionBatch.of(batch)
        self.images += len(images)
        for one, found in zip(self.seen, self.teachers.candidates(images.images_N3HW, images.sizes), strict=True):
            peaks_NM = found.odds_NMK.amax(dim=2).sigmoid()
            one.with_finds += int((peaks_NM > MIN_SCORE).any(dim=1).sum())
            one.boxes += int((peaks_NM > SURE).sum())
            one.impossible += int(((peaks_NM > SURE) & ~possible(found.boxes_NM4, images.sizes)).sum())

    def require_possible(self, trained: int | None = None) -> None:
        """Refuse one of the first `trained` teachers (None: of all) whose boxes are mostly impossible or no numbers."""
        self.teachers.require_finite()
        for teacher, one in [*zip(self.teachers.specialists, self.seen, strict=True)][:trained]:
            if one.boxes >= ENOUGH and one.impossible > ODD * one.boxes:
                wrong = f"{one.impossible} of {one.boxes} boxes in {self.images} auxiliary images"
                raise DmcError(
                    f"{teacher.name} is misunderstood: {wrong} have no size or lie outside; `dmc check` can draw what "
                    "it finds; say of an ONNX file how its outputs are laid out (layout=) and images fitted (fit=)"
                )

    def warn(self) -> None:
        """Name the teachers that find hardly anything."""
        for teacher, one in zip(self.teachers.specialists, self.seen, strict=True):
            if one.with_finds < RARELY * self.images:
                found = f"something in {one.with_finds} of" if one.with_finds else "nothing in"
                log.warning(
                    f"{teacher.name} finds {found} {self.images} auxiliary images (scores above {MIN_SCORE:.0%}): it "
                    "teaches little more than that its classes are not there; does it see what it was made for?"
                )


def possible(boxes_NM4: Tensor, sizes: Sequence[Size]) -> Tensor:
    """Tell which boxes have a size, and their center in the image."""
    low_NM2, high_NM2 = boxes_NM4[..., :2], boxes_NM4[..., 2:]
    middle_NM2 = (low_NM2 + high_NM2) / 2
    limits_N12 = torch.tensor([[(width, height)] for height, width in sizes], device=boxes_NM4.device)
    return ((high_NM2 > low_NM2) & (middle_NM2 >= 0) & (middle_NM2 <= limits_N12)).all(dim=2)
