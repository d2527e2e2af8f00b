"""What detectors find in auxiliary images before they teach: whether it can be boxes, and whether there is any."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dmc.data.batch import Batch
from dmc.data.detection_batch import DetectionBatch
from dmc.data.fitting import Size
from dmc.distill.box_teachers import BoxTeachers
from dmc.distill.detector_agreement import SURE
from dmc.errors import DmcError
from dmc.models.detector import MIN_SCORE

ODD = 0.5  # a detector of whose boxes a larger share is impossible is misunderstood


@dataclass
class Seen:
    """What one teacher found."""

    images: int = 0
    with_finds: int = 0  # images in which it found anything
    boxes: int = 0  # that it is sure of
    impossible: int = 0  # of these: without a size, or with their center outside of the image


def survey(teachers: BoxTeachers, batches: Iterable[Batch]) -> list[Seen]:
    """Look at what each teacher finds in some images; refuse one whose boxes are mostly impossible."""
    seen = [Seen() for _ in teachers.specialists]
    for batch in map(DetectionBatch.of, batches):
        for one, found in zip(seen, teachers.each(batch.images_N3HW, batch.sizes), strict=True):
            peaks_NM = found.odds_NMK.amax(dim=2).sigmoid()
            one.images += len(batch)
            one.with_finds += int((peaks_NM > MIN_SCORE).any(dim=1).sum())
            one.boxes += int((peaks_NM > SURE).sum())
            one.impossible += int(((peaks_NM > SURE) & ~possible(found.boxes_NM4, batch.sizes)).sum())
    teachers.require_finite()
    for teacher, one in zip(teachers.specialists, seen, strict=True):
        if one.impossible > ODD * one.boxes:
            wrong = f"{one.impossible} of {one.boxes} boxes in {one.images} auxiliary images"
            raise DmcError(
                f"{teacher.name} is misunderstood: {wrong} have no size or lie outside; look at what it finds, and "
                "say how its outputs are laid out (layout), and how images are fitted (fit)"
            )
    return seen


def possible(boxes_NM4: Tensor, sizes: Sequence[Size]) -> Tensor:
    """Tell which boxes have a size, and their center in the image."""
    low_NM2, high_NM2 = boxes_NM4[..., :2], boxes_NM4[..., 2:]
    middle_NM2 = (low_NM2 + high_NM2) / 2
    limits_N12 = torch.tensor([[(width, height)] for height, width in sizes], device=boxes_NM4.device)
    return ((high_NM2 > low_NM2) & (middle_NM2 >= 0) & (middle_NM2 <= limits_N12)).all(dim=2)
