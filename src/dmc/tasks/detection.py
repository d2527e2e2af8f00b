"""One-stage detectors: scenes with boxes, the family's own loss, Eq. 6 to 8."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dmc.choices import AUTO, NetworkChoice, clamped, shorter_side
from dmc.data.annotations import DetectionImages, open_annotated
from dmc.data.preprocess import Preprocessing
from dmc.data.sources import Source
from dmc.device import pick_device
from dmc.distill.detector_teachers import DetectorTeachers
from dmc.errors import DmcError
from dmc.evaluation import detection as evaluation
from dmc.metrics.average_precision import Precisions
from dmc.models.blueprint import is_detector
from dmc.models.detector import Detector
from dmc.models.specialist import Output
from dmc.specs import split_spec
from dmc.tasks.base import NOTHING, Names, Place, VisionTask
from dmc.tasks.detector_consolidation import DetectorConsolidation
from dmc.training.detection import Detection as DetectionLoss
from dmc.training.detection import detector_for
from dmc.training.held_out import HeldOut, shown_in
from dmc.training.loop import Objective
from dmc.training.schedule import DETECTION, Schedule


class Detection(VisionTask[Detector]):
    singular = "detector"
    paper_arch, paper_weights, paper_form = "retinanet_resnet50_fpn", "imagenet", {"held_out": 0}
    paper_schedules = (DETECTION, DETECTION)
    own_settings = ("anchors", "box_weight")
    metric, measurement = "mAP", Precisions

    def is_architecture(self, arch: str) -> bool:
        return is_detector(arch)

    def is_labeled(self, data: Place) -> bool:
        """A VOC folder or a COCO file."""
        if isinstance(data, Source):
            return isinstance(data, DetectionImages)
        path = Path(split_spec(str(data), ("split", "images", "image", "label", "config"))[0])
        return (path / "Annotations").is_dir() or path.suffix == ".json"

    def open_labeled(self, data: Place, val: Place | None, keep: Names) -> tuple[Source, HeldOut[Detector]]:
        """`auto` tests on nothing, since most scenes show several classes."""
        source = open_annotated(data)
        if keep is not None:
            source = source.keep(keep)
        if val is None or val in (*NOTHING, "auto"):
            return source, HeldOut(None, "mAP", _precision)
        held_out = open_annotated(val)
        return source, HeldOut(held_out.keep(shown_in(held_out, source, keep), empty=True), "mAP", _precision)

    def network_for(self, images: Source, arch: str | None, size: int | None, weights: str | None) -> NetworkChoice:
        """A RetinaNet as large as the machine can train, at the images' own size."""
        weights = "imagenet" if weights == AUTO else weights
        if arch is not None:
            return NetworkChoice(arch, size, weights, "as asked")
        side, on_cpu = shorter_side(images), pick_device().type == "cpu"
        arch = "retinanet_resnet18_fpn" if on_cpu else "retinanet_resnet50_fpn"
        size = size or min(320 if on_cpu else 640, max(64, side // 32 * 32))
        return NetworkChoice(arch, size, weights, f"images of about {side} pixels")

    def untrained(
        self, source: Source, network: NetworkChoice, like: Preprocessing | None, output: Output | None, seed: int
    ) -> Detector:
        if output not in (None, "sigmoid"):
            raise DmcError("output is a setting of classifiers: a detector decides each class for itself")
        return detector_for(source, network.arch, like, network.size, network.weights, seed)

    def supervised(self, model: Detector, classes: Sequence[str]) -> Objective:
        return DetectionLoss(model, classes)

    def supervised_schedules(self, images: int, pretrained: bool) -> tuple[Schedule, Schedule]:
        """The paper's Adam, with as many passes as make 12,000 images."""
        return DETECTION, DETECTION.changed({"epochs": clamped(12_000 / images, 8, 100), "shape": "one-cycle"})

    def distillation_schedules(self, images: int, pretrained: bool) -> tuple[Schedule, Schedule]:
        return self.supervised_schedules(images, pretrained)

    def plan(self, teachers: Sequence[Detector], aux: Source, **settings: Any) -> DetectorConsolidation:
        return DetectorConsolidation(teachers, aux, **settings)

    def side_by_side(self, models: Sequence[Detector]) -> DetectorTeachers:
        return DetectorTeachers(models)

    def measure(
        self, model: Detector | DetectorTeachers, test: Source, so_far: Sequence[str], asked: Sequence[str]
    ) -> Precisions:
        """Images without objects stay in: false alarms count."""
        found = evaluation.evaluate(model, test, keep=[name for name in asked if name in model.classes.names])
        per_class = {name: precision.eleven_points for name, precision in found.per_class.items()}
        known = all(name in per_class for name in so_far)
        overall = {"all": found.of(so_far)} if known else {}
        return Precisions(per_class, overall | {"area": found.mean_area, "COCO AP50": found.coco_50})


def _precision(model: Detector, images: Source) -> str:
    found = evaluation.evaluate(model, images)
    return f"{found.mean:.1%} on {found.images:,} images"
