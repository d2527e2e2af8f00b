"""What `evaluate` and `predict` say, as data and as text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from dmc.data.decode import DecodeError, or_reason
from dmc.data.pictures import pictures
from dmc.errors import DmcError
from dmc.evaluation import classification as evaluation
from dmc.evaluation import detection as detection
from dmc.evaluation.classification import Evaluation
from dmc.evaluation.detection import DetectionEvaluation
from dmc.files import without_nan
from dmc.models.detector import Detector
from dmc.models.specialist import Specialist
from dmc.report.drawing import drawn


class Shown(NamedTuple):
    """Images that cannot be read are in the data, and not in the text: the log has told."""

    data: list[dict[str, Any]]
    text: str

    @property
    def failed(self) -> bool:
        return any("error" in entry for entry in self.data)


def as_dict(result: Evaluation | DetectionEvaluation) -> dict[str, Any]:
    if isinstance(result, Evaluation):
        return asdict(result)
    overall = {"mean": result.mean, "mean_area": result.mean_area, "coco": result.coco, "coco_50": result.coco_50}
    return {
        **without_nan(overall),
        "per_class": {name: without_nan(precision._asdict()) for name, precision in result.per_class.items()},
        "data": result.data,
        "images": result.images,
        "skipped": result.skipped,
    }


def as_text(result: Evaluation | DetectionEvaluation) -> str:
    width = max(len(name) for name in (*result.per_class, "mean"))
    counted = f"of {result.images:,} images ({result.skipped} skipped)"
    if isinstance(result, Evaluation):
        lines = [f"{name:<{width}}  {accuracy:6.1%}" for name, accuracy in result.per_class.items()]
        return "\n".join([*lines, f"{'all':<{width}}  {result.accuracy:6.1%}  {counted}"])
    lines = [f"{'':<{width}}  VOC07 AP  area AP  objects"]
    for name, (points, area, objects) in result.per_class.items():
        shown = f"{points:8.1%}  {area:7.1%}" if objects else f"{'-':>8}  {'-':>7}"
        lines.append(f"{name:<{width}}  {shown}  {objects:7}")
    lines.append(f"{'mean':<{width}}  {result.mean:8.1%}  {result.mean_area:7.1%}  {counted} in {result.data}")
    coco = "not available" if math.isnan(result.coco) else f"{result.coco:.1%}, at overlap 0.5 {result.coco_50:.1%}"
    return "\n".join([*lines, f"COCO AP {coco}"])


def classes_of(model: Specialist, images: Sequence[str], top: int) -> Shown:
    records = pictures(images)
    data: list[dict[str, Any]] = []
    lines = []
    for record, answer in zip(records, evaluation.classified(model, records, top), strict=True):
        if isinstance(answer, DecodeError):
            data.append({"image": record.name, "error": answer.reason})
            continue
        data.append({"image": record.name, "classes": answer})
        lines.append(f"{record.name}: " + ", ".join(f"{name} {p:.1%}" for name, p in answer.items()))
    return Shown(data, "\n".join(lines))


def objects_of(model: Detector, images: Sequence[str], least: float, draw: Path | None) -> Shown:
    """Boxes as left, top, right, bottom in the picture's pixels; `draw` is a folder for pictures."""
    names = [record.name for record in pictures(images)]
    drawings = {} if draw is None else dict(zip(names, _places(draw, names), strict=True))
    data: list[dict[str, Any]] = []
    lines = []
    for record in pictures(images):
        found = or_reason(partial(detection.sightings, model, record, least))
        if isinstance(found, DecodeError):
            data.append({"image": record.name, "error": found.reason})
            continue
        objects = [{"class": s.name, "score": round(s.score, 4), "box": [round(v, 1) for v in s.box]} for s in found]
        data.append({"image": record.name, "objects": objects})
        said = ", ".join(f"{s.name} {s.score:.0%} at {'/'.join(f'{v:.0f}' for v in s.box)}" for s in found)
        lines.append(f"{record.name}: {said or 'nothing'}")
        if record.name in drawings:
            drawings[record.name].parent.mkdir(parents=True, exist_ok=True)
            drawn(record.name, found, model.names).save(drawings[record.name])
    return Shown(data, "\n".join(lines))


def _places(draw: Path, images: Sequence[str]) -> list[Path]:
    """For each image its drawing, which must not overwrite another one, or a picture that was given."""
    if draw.is_file():
        raise DmcError(f"{draw} is a file; give a folder to draw to")
    places = [draw / f"{Path(image).stem}.png" for image in images]
    twice = [place for place, count in Counter(places).items() if count > 1]
    if twice:
        raise DmcError(f"two of the images are called {twice[0].stem}, and both would be drawn as {twice[0].name}")
    given = {Path(image).resolve() for image in images}
    lost = [place for place in places if place.resolve() in given]
    if lost:
        raise DmcError(f"{lost[0]} would be overwritten by a drawing; choose another folder to draw to")
    return places
