"""Detectors with the same anchors used as one, anchor by anchor (section 3.2); and the paper's *inference twice*."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dmc.config import Centring
from dmc.data.fitting import Size
from dmc.distill.detector_teachers import ANCHORS, DetectorTeachers, Selected
from dmc.distill.targets import build_targets
from dmc.errors import DmcError
from dmc.metrics.average_precision import Detections
from dmc.models.detector import MIN_SCORE, Detector, postprocess
from dmc.models.one_stage import Answers, OneStage, gathered


class AnchorTeachers(DetectorTeachers):
    """Detectors with the same anchors. All look at the same pixels."""

    def __init__(
        self, detectors: Sequence[Detector], centring: Centring | None = None, anchors: int | None = None
    ) -> None:
        super().__init__(detectors, centring, anchors or ANCHORS)
        self.shapes_checked: set[torch.Size] = set()

    def each(self, images_N3HW: Tensor, sizes: Sequence[Size] | None = None) -> list[Answers]:
        """Give every teacher's own answers, and refuse teachers whose anchors differ."""
        with torch.no_grad():
            answers = [self.asked(detector, images_N3HW) for detector in self.inference_models]
        self.watch([answer.logits_NAK.sum() + answer.boxes_NAB.sum() for answer in answers])
        if images_N3HW.shape[2:] not in self.shapes_checked:  # anchors depend on nothing else
            require_same_anchors([*zip(self.specialists, answers, strict=True)])
            self.shapes_checked.add(images_N3HW.shape[2:])
        return answers

    def asked(self, detector: Detector, images_N3HW: Tensor) -> Answers:
        """Give a teacher's own answers; refuse any other than logits and a box for each image and anchor."""
        with self.blaming(detector):
            found = detector.answers(images_N3HW)
        anchors = (len(images_N3HW), len(found.anchors_A4))
        if found.logits_NAK.shape != (*anchors, len(detector.names)) or found.boxes_NAB.shape[:2] != anchors:
            given = "x".join(map(str, found.logits_NAK.shape))
            raise DmcError(
                f"{detector.name} gives {given} logits to {anchors[0]} images with {anchors[1]} anchors each, and has "
                f"{len(detector.names)} classes"
            )
        return found

    def select(self, images_N3HW: Tensor, count: int, sizes: Sequence[Size] | None = None) -> Selected:
        """Select the `count` anchors of each image with the highest class probability of any teacher (Eq. 5).

        `sizes` are height and width of each image without its padding; None: they are not padded.
        """
        answers = self.each(images_N3HW)
        with torch.no_grad():
            best_INA = torch.stack(
                [d.scores(a).amax(dim=2) for d, a in zip(self.inference_models, answers, strict=True)]
            )
            objectness_NA, owner_NA = best_INA.max(dim=0)
            places_NS = objectness_NA.topk(min(count, objectness_NA.shape[1]), dim=1).indices
            logits = [gathered(a.logits_NAK, places_NS).flatten(0, 1) for a in answers]
            target_MT = build_targets(logits, self.union, self.centring)
            boxes_NSB = owned([gathered(a.boxes_NAB, places_NS) for a in answers], owner_NA.gather(1, places_NS))
        return Selected(places_NS, target_MT.view(*places_NS.shape, -1), boxes_NSB)

    def detections(self, images_N3HW: Tensor, sizes: Sequence[Size], min_score: float = MIN_SCORE) -> list[Detections]:
        """Detect by inference twice: at each anchor, take the most probable class of any teacher, and its box."""
        answers = self.each(images_N3HW)
        self.require_finite()
        with torch.no_grad():
            scores_INAT = torch.zeros((len(answers), *answers[0].logits_NAK.shape[:2], len(self.union.names)))
            scores_INAT = scores_INAT.to(images_N3HW.device)
            for i, (detector, answer) in enumerate(zip(self.inference_models, answers, strict=True)):
                scores_INAT[i][..., list(self.union.columns[i])] = detector.scores(answer)
            scores_NAT = scores_INAT.amax(dim=0)
            owner_NA = scores_INAT.amax(dim=3).argmax(dim=0)
            best_NA = scores_NAT.argmax(dim=2, keepdim=True)
            only_NAT = torch.zeros_like(scores_NAT).scatter(2, best_NA, scores_NAT.gather(2, best_NA))
            together = answers[0]._replace(boxes_NAB=owned([a.boxes_NAB for a in answers], owner_NA))
            return postprocess(together, only_NAT, self.inference_models[0].network.decoded, sizes, min_score)


def require_same_anchors(answers: Sequence[tuple[Detector, Answers]]) -> None:
    """Refuse detectors whose anchors differ, since distillation goes anchor by anchor."""
    (first, ours), *rest = answers
    for other, theirs in rest:
        if not laid_alike(ours, theirs):
            raise unlike(first, other)


def unlike(first: Detector, other: Detector) -> DmcError:
    """Say that two detectors have different anchors."""
    named = [f"{d.name} ({d.arch or 'a network of its own'})" for d in (first, other)]
    return DmcError(
        f"{' and '.join(named)} lay their anchors differently; "
        "anchor by anchor, only detectors of one family with the same anchors can be distilled"
    )


def same_anchors(detectors: Sequence[Detector]) -> bool:
    """Tell whether detectors can be distilled anchor by anchor."""
    first, *rest = detectors
    if not all(isinstance(d.module, OneStage) and d.network.fit == first.network.fit for d in detectors):
        return False
    blank = first.transform.blank()
    with torch.no_grad():
        ours = first.answers(blank)
        return all(laid_alike(ours, other.answers(blank)) for other in rest)


def laid_alike(ours: Answers, theirs: Answers) -> bool:
    """Tell whether two detectors have the same anchors, and code their boxes in as many numbers."""
    alike = ours.anchors_A4.shape == theirs.anchors_A4.shape and ours.boxes_NAB.shape == theirs.boxes_NAB.shape
    return alike and torch.allclose(ours.anchors_A4.cpu(), theirs.anchors_A4.cpu())


def owned(boxes: Sequence[Tensor], owner_NA: Tensor) -> Tensor:
    """Take, at each anchor, the box of the teacher with this index."""
    boxes_INAB = torch.stack(list(boxes))
    return boxes_INAB.gather(0, owner_NA[None, :, :, None].expand_as(boxes_INAB[:1]))[0]
