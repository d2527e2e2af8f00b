"""One-stage detectors: images with boxes, the family's own loss, Eq. 6 to 8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Unpack

from pydantic import BaseModel, Field

from dmc.choices import NetworkChoice, clamped, shorter_side
from dmc.config import DetectorConsolidateConfig, DetectorPredictConfig, NetworkConfig, Output
from dmc.consolidation import Joining
from dmc.data.annotations import DetectionImages, is_annotated, open_annotated
from dmc.data.decode import DecodeError, result_or_error
from dmc.data.open import refuse_trained_on
from dmc.data.preprocess import Preprocessing
from dmc.data.sources import Record, Source
from dmc.device import pick_device
from dmc.distill.box_teachers import side_by_side
from dmc.distill.detector_teachers import DetectorTeachers
from dmc.errors import DmcError
from dmc.evaluation import detection as evaluation
from dmc.evaluation.detection import DetectedObject
from dmc.evaluation.matching import ClassChoice
from dmc.exhibits import AnyExhibit
from dmc.metrics.average_precision import Precisions
from dmc.models.detector import Detector
from dmc.models.exported import Exportable
from dmc.models.load import class_for
from dmc.schedule import DETECTION, Schedule
from dmc.specs import split_spec
from dmc.tasks import detector_export
from dmc.tasks.base import NOTHING, Names, Place, VisionTask
from dmc.tasks.detector_consolidation import DetectorConsolidation
from dmc.tasks.detector_exhibits import exhibits
from dmc.text import one_line
from dmc.training.detection import DetectionLoss
from dmc.training.held_out import HeldOut, tested_classes
from dmc.training.objective import Objective

# For mergers chosen on auxiliary images, and better on VOC's than 1e-3 and 1e-4 (results/best-detectors.md). On labels
# 48.0 mAP instead of 41.7 at 1e-3 (results/voc-lite.md).
PRETRAINED_RATE = 3e-4


class ObjectAnswer(BaseModel):
    """One object that a detector finds."""

    name: str = Field(alias="class", description="Its class")
    score: float = Field(description="How sure the detector is, from 0 to 1")
    box: tuple[float, float, float, float] = Field(description="Left, top, right, bottom, in the image's own pixels")


class ObjectsAnswer(BaseModel):
    """What a detector says about an image."""

    objects: list[ObjectAnswer] = Field(description="What it finds, best first")


class Detection(VisionTask[Detector]):
    """The task of one-stage detectors: which objects an image shows, and where."""

    model = Detector
    consolidate_config, predict_config = DetectorConsolidateConfig, DetectorPredictConfig
    paper_arch, paper_weights = "retinanet_resnet50_fpn", "imagenet"
    paper_schedules = (DETECTION, DETECTION)
    metric, measurement = "mAP", Precisions
    finds_boxes, answer_form = True, ObjectsAnswer

    def is_architecture(self, arch: str) -> bool:
        return class_for(arch) is Detector

    def is_labeled(self, data: Place) -> bool:
        """Tell whether the data is a VOC folder or a COCO file."""
        if isinstance(data, Source):
            return isinstance(data, DetectionImages)
        return is_annotated(split_spec(str(data), ("split", "images", "image", "label", "config"))[0])

    def open_labeled(self, data: Place, val: Place | None, keep: Names) -> tuple[Source, HeldOut[Detector]]:
        """Open the data; `auto` tests on nothing: most images show several classes, so no share of each is held out."""
        source = open_annotated(data)
        if keep is not None:
            source = source.keep(keep)
        if val is None or val in (*NOTHING, "auto"):
            return source, HeldOut(None, "mAP", _precision)
        held_out = open_annotated(val)
        refuse_trained_on(held_out, source)
        return source, HeldOut(held_out.keep(tested_classes(held_out, source, keep), empty=True), "mAP", _precision)

    def network_for(self, images: Source, asked: NetworkConfig) -> NetworkChoice:
        """Choose a RetinaNet as large as the machine can train, at about the images' own size."""
        arch, size, weights = asked.arch, asked.size, asked.weights
        if arch is not None:
            return NetworkChoice(arch, size, Detector.architectures.weights(arch, weights), "as asked")
        side, on_cpu = shorter_side(images), pick_device().type == "cpu"
        arch = "retinanet_resnet18_fpn" if on_cpu else "retinanet_resnet50_fpn"
        size = size or min(320 if on_cpu else 640, max(64, side // 32 * 32))
        weights = Detector.architectures.weights(arch, weights)
        return NetworkChoice(arch, size, weights, f"images of about {side} pixels")

    def untrained(
        self, source: Source, network: NetworkChoice, like: Preprocessing | None, output: Output | None, seed: int
    ) -> Detector:
        if output not in (None, "sigmoid"):
            raise DmcError("output is a setting of classifiers: a detector decides each class for itself")
        preprocessing = self.seen_by(network, like)
        return Detector.untrained(network.arch, source.classes, preprocessing, seed, network.weights)

    def supervised(self, model: Detector, classes: Sequence[str]) -> Objective:
        return DetectionLoss(model, classes)

    def supervised_schedule(self, images: int, pretrained: bool) -> Schedule:
        """Show the network about 12,000 images."""
        return fitting(clamped(12_000 / images, 8, 100), pretrained)

    def distillation_schedule(self, images: int, pretrained: bool) -> Schedule:
        """Show the student about 24,000 images. More passes were not better (results/best-detectors.md)."""
        return fitting(clamped(24_000 / images, 4, 100), pretrained)

    def consolidation(
        self,
        teachers: Sequence[Detector],
        aux: Source,
        config: DetectorConsolidateConfig,
        schedule: Schedule,
        joining: Joining | None = None,
    ) -> DetectorConsolidation:
        return DetectorConsolidation(teachers, aux, config, schedule, joining)

    def exportable(self, model: Detector, pixels: bool) -> Exportable:
        return detector_export.exportable(model, pixels)

    def side_by_side(self, models: Sequence[Detector]) -> DetectorTeachers:
        return side_by_side(models)

    def measure(
        self, model: Detector | DetectorTeachers, test: Source, so_far: Sequence[str], asked: Sequence[str]
    ) -> Precisions:
        """Evaluate on all images: where there are no objects, false alarms count."""
        found = evaluation.evaluate(model, test, keep=[name for name in asked if name in model.classes.names])
        per_class = {name: precision.eleven_points for name, precision in found.per_class.items()}
        known = all(name in per_class for name in so_far)
        overall = {"all": found.of(so_far)} if known else {}
        return Precisions(per_class, overall | {"area": found.mean_area, "COCO AP50": found.coco_50})

    def evaluate(
        self, model: Detector | DetectorTeachers, data: Place, **choice: Unpack[ClassChoice]
    ) -> evaluation.DetectionEvaluation:
        return evaluation.evaluate(model, data, **choice)

    def exhibits(self, model: Detector, teachers: Mapping[str, Detector], data: Place) -> list[AnyExhibit]:
        return exhibits(model, teachers, evaluation.matched(model, data, known=True)[0])

    def predict(
        self, model: Detector, records: Sequence[Record], config: DetectorPredictConfig
    ) -> list[list[DetectedObject] | DecodeError]:
        """Give the objects found in each image with a score of at least `min_score`, best first."""
        return [result_or_error(partial(evaluation.detected, model, record, config.min_score)) for record in records]

    def answer_as_dict(self, answer: list[DetectedObject]) -> dict[str, Any]:
        objects = [{"class": s.name, "score": round(s.score, 4), "box": [round(v, 1) for v in s.box]} for s in answer]
        return {"objects": objects}

    def answer_as_text(self, answer: list[DetectedObject]) -> str:
        said = ", ".join(f"{one_line(s.name)} {s.score:.0%} at {'/'.join(f'{v:.0f}' for v in s.box)}" for s in answer)
        return said or "nothing"

    def answer_as_scores(self, answer: list[DetectedObject]) -> list[tuple[str, float]]:
        return [(sighting.name, sighting.score) for sighting in answer]

    def size_as_text(self, size: int) -> str:
        return f"{size} pixels on the shorter side"

    def teachers_as_text(self, seen: Mapping[str, Any]) -> list[str]:
        spreads = ", ".join(f"{spread:g}" for spread in seen["logit_spreads"])
        objects = " / ".join(f"{count:,}" for count in seen["objects"])
        shares = " / ".join(f"{count / seen['images']:.0%}" for count in seen["images_with_objects"])
        where = f"side by side, in {seen['images']} auxiliary images"
        unseen = [i for i, count in enumerate(seen["objects"], start=1) if not count]
        return [f"{where}: they find {objects} objects, in {shares} of the images; spread of logits {spreads}"] + [
            f"  teacher {i} is sure of nothing there: such images teach little about its classes" for i in unseen
        ]


def fitting(epochs: int, pretrained: bool) -> Schedule:
    """Shorten the paper's schedule, whose rate is too high for pretrained networks then."""
    rate = PRETRAINED_RATE if pretrained else DETECTION.lr
    return DETECTION.changed({"epochs": epochs, "shape": "one-cycle", "lr": rate})


def _precision(model: Detector, images: Source) -> str:
    found = evaluation.evaluate(model, images)
    return f"{found.mean:.1%} on {found.images:,} images"
