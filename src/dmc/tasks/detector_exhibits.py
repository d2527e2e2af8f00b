"""What a report shows of a detector on images with boxes, beside the teachers that it learned from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image

from dmc.data.annotations import DetectionImages, Objects
from dmc.data.decode import opened, upright_rgb, upright_size
from dmc.data.sources import Record
from dmc.data.thumbnails import encoded
from dmc.distill.box_teachers import side_by_side
from dmc.distill.detector_agreement import SURE, false_alarms, missed
from dmc.distill.detector_teachers import DetectorTeachers
from dmc.evaluation.detection import Found, detected, found_in
from dmc.exhibits import AnyExhibit, BarChart, Exhibit, Facts, Gallery, Line, LineChart, Marked
from dmc.metrics.average_precision import average_precision, best_precision, mean_precision, precision_recall
from dmc.models.detector import Detector

MODEL, STUDENT, TOGETHER = "model", "student", "teachers side by side"
SHOWN, SIDE = 8, 224  # scenes in the gallery, and the longer side of each in pixels
RECALLS = [step / 50 for step in range(51)]
Speaker = Detector | DetectorTeachers


def exhibits(model: Detector, teachers: Mapping[str, Detector], source: DetectionImages) -> list[AnyExhibit]:
    """Show how well a detector finds objects of its classes; `teachers` are by what the report calls them."""
    speakers: dict[str, Speaker] = {STUDENT if teachers else MODEL: model}
    if len(teachers) > 1:
        speakers[TOGETHER] = side_by_side(list(teachers.values()))
    found = {who: found_in(speaker, source) for who, speaker in speakers.items()}
    first = next(iter(speakers))
    return [
        _summary(found, speakers, teachers, source),
        _precisions(found, speakers, source),
        _curves(found[first], model, source, first),
        _gallery(found[first], {first: model, **teachers}, source),
    ]


def _precision(found: Found, speaker: Speaker, name: str) -> float:
    return average_precision(found.detections, found.truth, speaker.classes.names.index(name)).eleven_points


def _summary(
    found: Mapping[str, Found],
    speakers: Mapping[str, Speaker],
    teachers: Mapping[str, Detector],
    source: DetectionImages,
) -> Facts:
    """State the mean average precision of all classes, and the student's of each teacher's."""
    rows = {"images with boxes": f"{len(source):,} in {source.name}"}
    for who, speaker in speakers.items():
        mean = mean_precision([_precision(found[who], speaker, name) for name in source.classes])
        rows[f"mAP (VOC 2007), {who}"] = f"{mean:.1%}"
    for who, teacher in teachers.items():
        shown = [name for name in teacher.names if name in source.classes]
        mean = mean_precision([_precision(found[STUDENT], speakers[STUDENT], name) for name in shown])
        rows[f"student's mAP on classes of {who}"] = f"{mean:.1%}"
    return Facts(rows)


def _precisions(found: Mapping[str, Found], speakers: Mapping[str, Speaker], source: DetectionImages) -> BarChart:
    rows = []
    for name in source.classes:
        values = [_precision(found[who], speaker, name) for who, speaker in speakers.items()]
        rows.append((name, [None if np.isnan(value) else value for value in values]))
    axis = "average precision (VOC 2007, 11 points), %"
    return BarChart("average-precision", "Average precision of each class", axis, list(speakers), rows)


def _curves(found: Found, model: Detector, source: DetectionImages, who: str) -> LineChart:
    lines = []
    for name in source.classes:
        curve = precision_recall(found.detections, found.truth, model.names.index(name))
        best = [(100 * recall, best_precision(curve, recall)) for recall in RECALLS]
        reached = [(recall, precision) for recall, precision in best if precision is not None]
        if curve.objects and reached:
            lines.append(Line(name, [recall for recall, _ in reached], [precision for _, precision in reached]))
    note = "The best precision at each recall or more. A line ends at the share of the class's objects that are found."
    title = f"Precision and recall of the {who}, by class"
    return LineChart("precision-recall", title, "recall, %", "precision, %", lines, note=note)


def _gallery(found: Found, speakers: Mapping[str, Detector], source: DetectionImages) -> Gallery:
    """Show some scenes, from the one with most mistakes to the one with fewest."""
    mistakes = [false_alarms(*pair) + missed(*pair) for pair in zip(found.detections, found.truth, strict=True)]
    ranked = sorted(range(len(mistakes)), key=lambda i: -mistakes[i])
    chosen = dict.fromkeys(ranked[round(i)] for i in np.linspace(0, len(ranked) - 1, SHOWN))
    wanted = {id(found.annotated[i]): i for i in chosen}
    records = {wanted[id(one.annotation)]: one for one in source.records() if id(one.annotation) in wanted}
    scenes = [_scene(records[i], found.annotated[i], speakers, source.classes) for i in chosen]
    note = f"Objects with a score above {SURE:.0%}; from the scene with the most mistakes to the one with the fewest."
    return Gallery("detections", "What each of them finds", scenes, note)


def _scene(record: Record, there: Objects, speakers: Mapping[str, Detector], classes: Sequence[str]) -> Exhibit:
    with opened(record) as stored:
        width, _ = upright_size(stored)
        image = upright_rgb(stored, at_least=SIDE)
    image.thumbnail((SIDE, SIDE), Image.Resampling.BILINEAR)
    marks = zip(there.labels_M.tolist(), there.boxes_M4.tolist(), strict=True)
    found = {"labels": [_mark(classes[label], None, box, image.width / there.width) for label, box in marks]}
    zoom = image.width / width  # another one if the image was resized after it was annotated
    for who, detector in speakers.items():
        found[who] = [_mark(one.name, one.score, one.box, zoom) for one in detected(detector, record, SURE)]
    return Exhibit(encoded(image), found=found)


def _mark(name: str, score: float | None, box: Sequence[float], zoom: float) -> Marked:
    left, top, right, bottom = (round(zoom * edge, 1) for edge in box)
    return Marked(name, score, (left, top, right, bottom))
