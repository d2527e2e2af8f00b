"""Measure a detector on images with boxes, and ask it about single images."""

from __future__ import annotations

import contextlib
import io
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np

from dmc.classes import Classes
from dmc.data.annotations import DetectionImages, Objects, open_annotated
from dmc.data.decode import decode, opened, upright_size
from dmc.data.detection_batch import DetectionBatch
from dmc.data.loader import StreamLoader
from dmc.data.sources import Record, Source
from dmc.device import pick_device
from dmc.distill.detector_teachers import DetectorTeachers
from dmc.errors import DmcError
from dmc.evaluation.matching import ClassChoice, known_names, log_left_out, map_class_names, require_known_classes
from dmc.extras import require_extra
from dmc.files import without_nan
from dmc.metrics.average_precision import AveragePrecision, Detections, average_precision, mean_precision
from dmc.models.detector import MIN_SCORE, Detector
from dmc.progress import progress
from dmc.text import one_line

log = logging.getLogger("dmc")


@dataclass(frozen=True)
class DetectionEvaluation:
    """Average precision as fractions: VOC's by 11 points and by area for each class, and COCO's over all classes."""

    per_class: dict[str, AveragePrecision]
    coco: float  # mean over overlaps 0.5, 0.55, ..., 0.95; NaN: not available
    coco_50: float  # at overlap 0.5
    data: str  # the name of the images
    images: int
    skipped: int

    @property
    def mean(self) -> float:
        """The mAP by VOC2007's 11 points, over the classes that have objects."""
        return self.of(list(self.per_class))

    @property
    def mean_area(self) -> float:
        """The mAP by area (VOC2010), over the classes that have objects."""
        return mean_precision([p.area for p in self.per_class.values()])

    def of(self, names: Sequence[str]) -> float:
        """Give the mAP of some classes, by 11 points."""
        return mean_precision([self.per_class[name].eleven_points for name in names])

    def as_dict(self) -> dict[str, Any]:
        overall = {"mean": self.mean, "mean_area": self.mean_area, "coco": self.coco, "coco_50": self.coco_50}
        return {
            **without_nan(overall),
            "per_class": {name: without_nan(precision._asdict()) for name, precision in self.per_class.items()},
            "data": self.data,
            "images": self.images,
            "skipped": self.skipped,
        }

    def as_text(self) -> str:
        """Give a table with a line for each class, one for their mean, and one for COCO's metric."""
        width = max(len(one_line(name)) for name in (*self.per_class, "mean"))
        lines = [f"{'':<{width}}  VOC07 AP  area AP  objects"]
        for name, (points, area, objects) in self.per_class.items():
            shown = f"{points:8.1%}  {area:7.1%}" if objects else f"{'-':>8}  {'-':>7}"
            lines.append(f"{one_line(name):<{width}}  {shown}  {objects:7}")
        counted = f"of {self.images:,} images ({self.skipped} skipped)"
        lines.append(f"{'mean':<{width}}  {self.mean:8.1%}  {self.mean_area:7.1%}  {counted} in {self.data}")
        coco = "not available" if math.isnan(self.coco) else f"{self.coco:.1%}, at overlap 0.5 {self.coco_50:.1%}"
        return "\n".join([*lines, f"COCO AP {coco}"])


def evaluate(
    model: Detector | DetectorTeachers, data: str | Path | Source, **choice: Unpack[ClassChoice]
) -> DetectionEvaluation:
    """Measure average precision on images with boxes; images without objects stay in, since false alarms count.

    A choice of classes leaves out objects, not images. For a class of `keep` that the model knows and the images do not
    show, average precision is NaN.
    """
    source, absent = matched(model, data, **choice)
    found = found_in(model, source)
    labels = {name: model.classes.require(name) for name in (*source.classes, *absent)}
    per_class = {name: average_precision(found.detections, found.truth, label) for name, label in labels.items()}
    overall = coco_average_precision(found.detections, found.truth, [labels[name] for name in source.classes])
    return DetectionEvaluation(per_class, *overall, source.name, len(found.truth), found.skipped)


def matched(
    model: Detector | DetectorTeachers, data: str | Path | Source, **choice: Unpack[ClassChoice]
) -> tuple[DetectionImages, list[str]]:
    """Open images with boxes, under the model's class names; also give the classes of `keep` that they do not show."""
    whole, keep = open_annotated(data).require_objects(), choice.get("keep")
    renamed = map_class_names(whole, model.classes, model.name, choice.get("rename") or {})
    source, absent = whole.rename(renamed), list[str]()
    if keep is not None:
        asked = Classes.of(dict.fromkeys((*whole.classes, *model.classes.names))).keep(keep, whole.name).names
        wanted = dict.fromkeys(renamed.get(name, name) for name in asked)  # as the data or as the model calls them
        absent = [name for name in wanted if name not in source.classes]
        source = source.keep([name for name in wanted if name not in absent], empty=True)
    if choice.get("known"):
        whole, source = source, source.keep(known_names(source, model.classes, model.name), empty=True)
        log_left_out("objects", whole, source, model.name)
    require_known_classes(source, model.classes, model.name)
    return source, absent


class Found(NamedTuple):
    """What a detector finds in each image, and what is there, in pixels of the image's full size."""

    detections: list[Detections]
    annotated: list[Objects]  # as the images have it
    truth: list[Objects]  # the same, with the detector's labels
    skipped: int  # images that cannot be read


def found_in(model: Detector | DetectorTeachers, source: DetectionImages) -> Found:
    """Let a detector look at every image; it knows all classes of the images."""
    model.to(pick_device())
    found: list[Detections] = []
    annotated: list[Objects] = []
    stream = StreamLoader(source, model.transform)  # every image is wanted once, so none is kept
    with progress(stream.count, "evaluating") as bar:
        for batch in map(DetectionBatch.of, stream.in_order(8)):
            answers = model.detections(batch.images_N3HW.to(pick_device()), batch.sizes)
            for one, (height, width), there in zip(answers, batch.sizes, batch.objects, strict=True):
                assert there is not None
                found.append(scaled(one, there.width / width, there.height / height))
                annotated.append(there)
            bar.update(len(batch))
    labels = np.array([model.classes.require(name) for name in source.classes], dtype=np.int64)
    truth = [there._replace(labels_M=labels[there.labels_M]) for there in annotated]
    return Found(found, annotated, truth, len(stream.skipped))


def scaled(found: Detections, x: float, y: float) -> Detections:
    """Multiply the sides of boxes by `x` and `y`."""
    return found._replace(boxes_M4=(found.boxes_M4 * np.array([x, y, x, y])).astype(np.float32))


def coco_average_precision(
    found: Sequence[Detections], truth: Sequence[Objects], labels: Sequence[int]
) -> tuple[float, float]:
    """Compute COCO's average precision, and that at overlap 0.5, with a COCO library; difficult objects become crowds.

    Both are NaN if the library is missing or all objects are difficult, and 0 if nothing was found.
    """
    try:
        require_extra("bench", "faster_coco_eval")
    except DmcError as missing:
        log.warning(f"COCO's average precision is not available: {missing}")
        return math.nan, math.nan
    from faster_coco_eval import COCO, COCOeval_faster

    def xywh(box: Any) -> list[float]:
        left, top, right, bottom = (float(v) for v in box)
        return [left, top, right - left, bottom - top]

    annotations: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    for i, (seen, there) in enumerate(zip(found, truth, strict=True)):
        for box, label, difficult in zip(there.boxes_M4, there.labels_M, there.difficult_M, strict=True):
            x, y, width, height = xywh(box)
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": i,
                    "category_id": int(label),
                    "bbox": [x, y, width, height],
                    "area": width * height,
                    "iscrowd": int(difficult),
                }
            )
        for box, label, score in zip(seen.boxes_M4, seen.labels_M, seen.scores_M, strict=True):
            if int(label) in labels:
                answers.append({"image_id": i, "category_id": int(label), "bbox": xywh(box), "score": float(score)})
    if not answers or not annotations:
        return 0.0, 0.0
    images = [{"id": i, "width": there.width, "height": there.height} for i, there in enumerate(truth)]
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO(
            {"images": images, "annotations": annotations, "categories": [{"id": k, "name": str(k)} for k in labels]}
        )
        job = COCOeval_faster(known, known.loadRes(answers), "bbox")
        job.evaluate()
        job.accumulate()
        job.summarize()
    average, at_half = (float(value) if value >= 0 else math.nan for value in job.stats[:2])  # -1: no object counts
    return average, at_half


@dataclass(frozen=True)
class DetectedObject:
    """One object that was found; `box` is left, top, right, bottom in pixels of the image's full size."""

    name: str
    score: float
    box: tuple[float, float, float, float]


def detected(model: Detector | DetectorTeachers, record: Record, min_score: float) -> list[DetectedObject]:
    """Find the objects in one image that have at least `min_score`, best first."""
    model.to(pick_device())
    batch = model.transform.batch([(record, decode(record, model.transform))])
    with opened(record) as image:
        width, height = upright_size(image)
    one = model.detections(batch.images_N3HW.to(pick_device()), batch.sizes, min(min_score, MIN_SCORE))[0]
    one = scaled(one, width / batch.sizes[0][1], height / batch.sizes[0][0])
    return [
        DetectedObject(model.classes.names[label], float(score), (float(a), float(b), float(c), float(d)))
        for (a, b, c, d), score, label in zip(one.boxes_M4, one.scores_M, one.labels_M, strict=True)
        if score >= min_score
    ]
