"""Average precision as PASCAL VOC defines it: by 11 points (2007) and by area (2010).

No well-kept library computes the 2007 metric exactly. The edges of boxes here are borders of pixels, so their areas
are those of VOC's convention, in which a box from pixel 3 to pixel 5 is three pixels wide.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dmc.data.annotations import Objects
from dmc.documents import Document, read_result
from dmc.files import without_nan, write_text
from dmc.metrics.incremental import Measured

OVERLAP = 0.5  # intersection over union at which an object counts as found
Floats = npt.NDArray[np.float64]


class Detections(NamedTuple):
    """What a detector found in one image, in the image's own pixels."""

    boxes_M4: npt.NDArray[np.float32]
    scores_M: npt.NDArray[np.float32]
    labels_M: npt.NDArray[np.int64]


class AveragePrecision(NamedTuple):
    """The average precision of one class, as fractions."""

    eleven_points: float
    area: float
    objects: int  # without difficult ones


def mean_precision(values: Sequence[float]) -> float:
    """Give the mean over classes that have objects; the others are NaN. NaN if there are none."""
    real = [value for value in values if not math.isnan(value)]
    return sum(real) / len(real) if real else float("nan")


class SavedPrecisions(Document):
    """precisions.json: null is the precision of a class without objects."""

    per_class: dict[str, float | None]
    overall: dict[str, float | None]


@dataclass(frozen=True)
class Precisions(Measured):
    """VOC2007's 11-point average precision of each class, and in `overall` the means by area and by COCO at IoU 0.5."""

    of_classes: Mapping[str, float]
    overall: Mapping[str, float]
    file = "precisions.json"

    @property
    def per_class(self) -> Mapping[str, float]:
        return self.of_classes

    @property
    def details(self) -> Mapping[str, float]:
        return self.overall

    def of(self, names: Sequence[str]) -> float:
        asked = all(name in self.of_classes for name in names)
        return mean_precision([self.of_classes[name] for name in names]) if asked else float("nan")

    def save(self, folder: Path) -> None:
        content = {"per_class": without_nan(self.of_classes), "overall": without_nan(self.overall)}
        write_text(folder / self.file, json.dumps(content, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path, names: Sequence[str]) -> Self:
        saved = read_result(folder / cls.file, SavedPrecisions)
        parts = (saved.per_class, saved.overall)
        return cls(*({key: math.nan if value is None else value for key, value in part.items()} for part in parts))


class Curve(NamedTuple):
    """Recall and precision of one class, down to each score of a detection from the highest on."""

    recall: Floats
    precision: Floats
    objects: int  # without difficult ones


def average_precision(found: Sequence[Detections], truth: Sequence[Objects], label: int) -> AveragePrecision:
    """Measure one class over all images; NaN for a class without objects."""
    curve = precision_recall(found, truth, label)
    if not curve.objects:
        return AveragePrecision(float("nan"), float("nan"), 0)
    return AveragePrecision(_eleven_points(curve), _area(curve.recall, curve.precision), curve.objects)


def precision_recall(found: Sequence[Detections], truth: Sequence[Objects], label: int) -> Curve:
    """Follow one class over all images, from its most certain detection to the least; empty without objects."""
    objects = sum(int(((t.labels_M == label) & ~t.difficult_M).sum()) for t in truth)
    if not objects:
        return Curve(np.zeros(0), np.zeros(0), 0)
    scores: list[float] = []
    hits: list[bool | None] = []  # None: on a difficult object, counts as neither right nor wrong
    for image, known in zip(found, truth, strict=True):
        mine = image.labels_M == label
        there = known.labels_M == label
        scores += image.scores_M[mine].tolist()
        hits += _hits(image.boxes_M4[mine], image.scores_M[mine], known.boxes_M4[there], known.difficult_M[there])
    order = np.argsort(-np.array(scores), kind="stable")
    counted = [hits[i] for i in order if hits[i] is not None]
    right = np.cumsum(np.array(counted, dtype=float))
    return Curve(right / objects, right / np.arange(1, len(right) + 1), objects)


def _hits(
    boxes_M4: npt.NDArray[np.float32],
    scores_M: npt.NDArray[np.float32],
    truth_G4: npt.NDArray[np.float32],
    difficult_G: npt.NDArray[np.bool_],
) -> list[bool | None]:
    """Tell which boxes of one image are right (True), wrong (False), or on a difficult object (None).

    Best score first, each box takes the object that it overlaps most; an object is found once.
    """
    hits: list[bool | None] = [False] * len(boxes_M4)
    taken = np.zeros(len(truth_G4), dtype=bool)
    overlap_MG = overlaps(boxes_M4, truth_G4)
    for i in np.argsort(-scores_M, kind="stable"):
        if not len(truth_G4):
            break
        best = int(overlap_MG[i].argmax())
        if overlap_MG[i, best] < OVERLAP:
            continue
        if difficult_G[best]:
            hits[i] = None
        elif not taken[best]:
            hits[i] = taken[best] = True
    return hits


def overlaps(a_M4: npt.NDArray[np.float32], b_G4: npt.NDArray[np.float32]) -> Floats:
    """Give the intersection over union of each pair of boxes, in double precision: annotations do hit exactly 0.5."""
    a, b = a_M4.astype(np.float64)[:, None], b_G4.astype(np.float64)[None]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    common = sides.clip(min=0).prod(axis=-1)
    areas = (a[..., 2:] - a[..., :2]).prod(axis=-1) + (b[..., 2:] - b[..., :2]).prod(axis=-1)
    shared: Floats = common / np.maximum(areas - common, 1e-12)
    return shared


def best_precision(curve: Curve, recall: float) -> float | None:
    """Give the best precision at a recall or more; None if it is not reached."""
    reached = curve.precision[curve.recall >= recall - 1e-12]
    return float(reached.max()) if len(reached) else None


def _eleven_points(curve: Curve) -> float:
    """Average as VOC2007 does: over recalls 0, 0.1, ..., 1, the best precision at that recall or more."""
    return float(np.mean([best_precision(curve, tenth / 10) or 0.0 for tenth in range(11)]))


def _area(recall: Floats, precision: Floats) -> float:
    """Average as VOC2010 does: the area under the curve of the best precision at each recall or more."""
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    steps = np.diff(np.concatenate([[0.0], recall]))
    return float((steps * envelope).sum())
