"""Merge detectors (section 3.2)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import isnan
from typing import Any

import torch
from torch import Tensor

from dmc.beginning import as_first
from dmc.classes import ClassUnion
from dmc.config import DetectorConsolidateConfig, Matching
from dmc.consolidation import Consolidation, Joining
from dmc.data.auxiliary import Images
from dmc.data.batch import Batch
from dmc.data.detection_batch import DetectionBatch, ShorterSide
from dmc.data.loader import ImageLoader
from dmc.device import pick_device
from dmc.distill.anchor_teachers import AnchorTeachers, same_anchors, unlike
from dmc.distill.balance import HALF
from dmc.distill.box_teachers import BoxTeachers
from dmc.distill.detector_agreement import SURE, DetectorAgreement, sample
from dmc.distill.detector_objective import DetectionDistillation
from dmc.distill.detector_teachers import DetectorTeachers
from dmc.distill.scene_labels import SceneLabels
from dmc.distill.survey import Survey
from dmc.errors import DmcError
from dmc.models.detector import Detector
from dmc.schedule import DETECTION, Schedule
from dmc.training.findings import Findings, Measure
from dmc.training.objective import Objective

log = logging.getLogger("dmc")


class DetectorConsolidation(Consolidation[Detector]):
    """A consolidation of detectors."""

    teachers: DetectorTeachers
    config: DetectorConsolidateConfig
    takes_labels = True

    def __init__(
        self,
        teachers: Sequence[Detector],
        aux: Images,
        config: DetectorConsolidateConfig = DetectorConsolidateConfig(),  # noqa: B008 (frozen)
        schedule: Schedule = DETECTION,
        joining: Joining | None = None,
    ) -> None:
        if len(teachers) < 2:
            raise DmcError("consolidation needs at least two teachers")
        if config.loss == "kd":
            raise DmcError("loss 'kd' compares softmax distributions; detectors have log-odds: use 'l2' or 'l1'")
        arch = Detector.architectures.known(config.arch or teachers[0].require_arch())
        config = config.changed({"arch": arch, "weights": Detector.architectures.weights(arch, config.weights)})
        for teacher in teachers:
            teacher.module.eval()  # before any of them is asked
        self.student = new_student(teachers, arch, config)
        matching = self._matching(teachers, config.matching)
        if matching == "anchors":
            self.teachers = AnchorTeachers(teachers, config.centring, config.anchors)
        else:
            self.teachers = BoxTeachers(teachers, self.student, config.centring, config.anchors)
        chosen = {"centring": self.teachers.centring, "matching": matching, "anchors": self.teachers.anchors}
        super().__init__(aux, config.changed(chosen), schedule, joining)
        for teacher in teachers:
            if len(teacher.classes) == 1 and self.teachers.centring == "per-teacher":
                log.warning(
                    f"{teacher.name} has one class ({teacher.names[0]!r}): its normalised logit is always 0 (Eq. 4), "
                    "so it teaches nothing about that class"
                )
        self._require_lasting_answers()

    def _require_lasting_answers(self) -> None:
        """Refuse a cache of answers about images that are never padded alike."""
        if self.config.cache is not None and not self.held and not self.transform.square:
            raise DmcError(
                f"{self.aux.name} does not fit in memory, and streamed images of different shapes are padded anew in "
                "every pass, so no answer holds twice: allow more memory, or go without a cache"
            )

    def _matching(self, teachers: Sequence[Detector], asked: Matching) -> Matching:
        """Let anchors be taught one by one where all models have the same, and boxes otherwise; warn of misfits."""
        if asked == "auto":
            asked = "anchors" if same_anchors([*teachers, self.student]) else "boxes"
        if asked == "anchors":
            self._require_same_anchors(teachers)
        else:
            self._name_misfits(teachers)
        return asked

    def _require_same_anchors(self, teachers: Sequence[Detector]) -> None:
        """Refuse models whose anchors differ; warn of teachers that were made for images of another size."""
        for other in (*teachers[1:], self.student):
            if not same_anchors([teachers[0], other]):
                raise unlike(teachers[0], other)
        for teacher in teachers:
            if teacher.preprocessing.size != self.transform.size:
                log.warning(
                    f"{teacher.name} was made for images of {teacher.preprocessing.size} pixels and sees "
                    f"{self.transform.size}: anchor by anchor, all must see the same pixels; `size` sets how many"
                )

    def _name_misfits(self, teachers: Sequence[Detector]) -> None:
        """Warn of teachers that will see the student's images in another form than they were made for."""
        arch, size = self.student.require_arch(), self.transform.size
        bound = Detector.architectures.find(arch).only_size(arch)
        larger = "a student of another family (`arch`) may see more" if bound else "`size` sets how many"
        for teacher in teachers:
            # A letterbox is as wide as the longer side of an image, most of which have sides of 4 to 3.
            wanted = teacher.preprocessing.size * (3 / 4 if teacher.network.fit == "letterbox" else 1)
            if wanted > size:
                log.warning(
                    f"{teacher.name} was made for images of {teacher.preprocessing.size} pixels and will see the "
                    f"student's, of {size}, made larger: small objects escape it; {larger}"
                )
        squeezed = [one.name for one in teachers if one.network.fit != "stretch"] if self.transform.square else []
        if squeezed:
            log.warning(
                f"{', '.join(squeezed)} will see images that are squeezed into squares, as the student ({arch}) does: "
                "a student of another family (`arch`) would keep their proportions"
            )

    @property
    def transform(self) -> ShorterSide:
        return self.student.transform

    @property
    def different_views(self) -> int:
        return 2 if self.schedule.flip else 1  # detectors are not trained on shifted crops

    def seen_in(self, batch: Batch) -> Tensor:
        selected = self.teachers.select(batch.images_N3HW, self.teachers.anchors, DetectionBatch.of(batch).sizes)
        self.teachers.require_finite()
        return selected.logits_NST.amax(dim=1)

    def objective(self) -> Objective:
        asked = self.config
        labels = SceneLabels(self.teachers, self.joining.classes) if self.joining and self.with_labels else None
        return DetectionDistillation(self.student, self.teachers, asked.loss, asked.box_weight, labels)

    def compare(self, unseen: ImageLoader) -> Findings:
        found = DetectorAgreement.of(self.student, self.teachers, unseen)
        of_each = [
            f"{objects / found.images:.1f} finds in an image; "
            + (f"against these the student has {precision:.1%} average precision" if objects else "nothing to compare")
            for precision, objects in zip(found.precision, found.objects, strict=True)
        ]
        overall = (
            f"{found.false_alarms / found.images:.2f} false alarms in an image, "
            f"where the teachers find {sum(found.objects) / found.images:.2f} objects"
        )
        known = [None if isnan(precision) else precision for precision in found.precision]
        rates = [objects / found.images for objects in found.objects]
        measures = [
            Measure(label="student's average precision against its finds", of_each=tuple(known)),
            Measure(label="objects that it is sure of", of_each=tuple(rates), unit=" in an image"),
        ]
        return Findings(found.images, of_each, overall, self._warnings(found), measures, found.answers)

    def _warnings(self, found: DetectorAgreement) -> list[str]:
        advice = "train longer, or on more images, or on images in which the teachers find more"
        pairs = zip(self.teachers.specialists, found.precision, strict=True)
        weak = [
            f"against what {teacher.name} finds, the student has {precision:.0%} average precision only: {advice}"
            for teacher, precision in pairs
            if precision < HALF
        ]
        if found.false_alarms > sum(found.objects):
            weak.append(f"the student has more false alarms than the teachers find objects: {advice}")
        return weak + [
            f"{teacher.name} is sure of nothing in {found.images} auxiliary images: they teach little about its classes"
            for teacher, objects in zip(self.teachers.specialists, found.objects, strict=True)
            if not objects
        ]

    def prepare(self, loader: ImageLoader, unseen: ImageLoader) -> None:
        """Look at what the teachers find in the images that the student will be compared on."""
        survey = Survey(self.teachers)
        for batch in sample(unseen):
            survey.look(batch.to(pick_device()))
        survey.require_possible()
        survey.warn()

    def require_plausible(self, batch: Batch, trained: int) -> None:
        survey = Survey(self.teachers)
        survey.look(batch.to(pick_device()))
        survey.require_possible(trained)

    def measure_teachers(self, batches: Iterable[Batch]) -> dict[str, Any]:
        images, objects = 0, [0] * len(self.teachers.specialists)
        shown = [0] * len(objects)  # images with objects
        survey, logits = Survey(self.teachers), []
        for batch in map(DetectionBatch.of, batches):
            survey.look(batch)
            images += len(batch)
            selected = self.teachers.select(batch.images_N3HW, self.teachers.anchors, batch.sizes)
            logits.append(selected.logits_NST.flatten(0, 1))
            for i, finds in enumerate(self.teachers.finds(batch.images_N3HW, batch.sizes)):
                counts = [int((found.scores_M > SURE).sum()) for found in finds]
                objects[i], shown[i] = objects[i] + sum(counts), shown[i] + sum(map(bool, counts))
        survey.require_possible()
        survey.warn()
        target_MT, columns = torch.cat(logits), self.teachers.union.columns
        spreads = [round(float(target_MT[:, list(own)].std()), 2) for own in columns]
        return {"images": images, "logit_spreads": spreads, "objects": objects, "images_with_objects": shown}


def new_student(teachers: Sequence[Detector], arch: str, config: DetectorConsolidateConfig) -> Detector:
    """Make the student: for all classes, and images of the largest teacher's size unless another one is asked for."""
    alike = next((d.preprocessing for d in teachers if d.arch == arch), Detector.architectures.preprocessing(arch))
    usual = Detector.architectures.find(arch).only_size(arch) or max(d.transform.size for d in teachers)
    preprocessing = replace(alike, size=config.size or usual)
    names = ClassUnion.of([teacher.names for teacher in teachers]).names
    if config.from_teacher:
        return as_first(teachers[0], names, arch, preprocessing, config.seed)
    return Detector.untrained(arch, names, preprocessing, config.seed, config.weights)
