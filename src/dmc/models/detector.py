"""A detector with its class names and preprocessing; saved and loaded like a classifier."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Self

import torch
from torch import Tensor

from dmc.data.detection_batch import ShorterSide
from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError, first_line
from dmc.metrics.average_precision import Detections
from dmc.models.architecture_source import Architectures, Listed
from dmc.models.model import Model
from dmc.models.one_stage import Answers, OneStage

MIN_SCORE, CANDIDATES, MAX_DETECTIONS, NMS = 0.05, 1000, 300, 0.5
Decode = Callable[[Tensor, Tensor], Tensor]  # turns box offsets and their anchors into corners in pixels


def _family(beginning: str, home: str, *settings: str) -> Listed:
    """List a family by how its names begin. One with a colon further on is a user's FILE.py:FUNCTION."""
    return Listed(f"(torchvision:)?{beginning}(:.*|[^:]*)", home, "torchvision", settings)


class Detector(Model):
    """A detector, whose module gives logits and a box for each anchor of an image: see `dmc.models.one_stage`."""

    pipeline_tag, singular, outputs = "object-detection", "detector", ("sigmoid",)
    architectures = Architectures(
        "detector",
        _family("retinanet", "dmc.models.retinanet:RetinaNetFamily", "width", "depth", "scale", "norm"),
        _family("fcos", "dmc.models.fcos:FcosFamily", "width", "depth", "norm"),
        _family(r"ssd(\d|lite)", "dmc.models.ssd:SsdFamily"),
    )

    @classmethod
    def untrained(
        cls,
        arch: str,
        names: Iterable[str],
        preprocessing: Preprocessing | None = None,
        seed: int = 0,
        weights: str | None = "imagenet",
    ) -> Self:
        """Make a detector with random heads; its backbone's weights are `imagenet`, a file's, or random (None)."""
        arch = cls.architectures.known(arch)
        if weights is None:
            arch = cls.architectures.find(arch).begun_at_random(arch)
        return cls._begun(arch, names, preprocessing, "sigmoid", seed, weights)

    @classmethod
    def claims(cls, arch: str) -> bool:
        return cls.architectures.claims(arch)

    @property
    def network(self) -> OneStage:
        """The module, which has to be a one-stage detector."""
        if not isinstance(self.module, OneStage):
            raise DmcError(f"{self.name} is no one-stage detector that dmc knows")
        return self.module

    @property
    def transform(self) -> ShorterSide:
        return ShorterSide(self.preprocessing.size, self.preprocessing.interpolation, self.network.stretches)

    def blank(self) -> Tensor:
        return self.preprocessing.normalised(self.transform.blank().to(self.device))

    def _check_head(self) -> None:
        try:
            with torch.no_grad():
                answers = self.module(self.blank())
        except Exception as error:
            raise DmcError(f"{self.name} does not accept images: {first_line(error)}") from None
        if answers.logits_NAK.shape[2] != self.classes.width:
            raise DmcError(
                f"{self.name} has {self.classes.width} class names but answers {answers.logits_NAK.shape[2]}"
            )

    def answers(self, images_N3HW: Tensor) -> Answers:
        """Give logits and boxes for each anchor of uint8 RGB images, which have one shape."""
        return self.answered(self.preprocessing.normalised(images_N3HW.to(self.device)))

    def answered(self, seen_N3HW: Tensor) -> Answers:
        """Give logits and boxes for each anchor of images as the network sees them."""
        found: Answers = self.module(seen_N3HW)
        found = found._replace(logits_NAK=found.logits_NAK.float(), boxes_NAB=found.boxes_NAB.float())
        if self.classes.whole:
            return found
        return self.network.kept(found, self.classes.columns)

    def scores(self, answers: Answers) -> Tensor:
        """Give the probability of each class at each anchor."""
        return self.network.scores(answers.logits_NAK, answers.boxes_NAB)

    def detections(
        self, images_N3HW: Tensor, sizes: Sequence[tuple[int, int]], min_score: float = MIN_SCORE
    ) -> list[Detections]:
        """Find the objects in each image that score more than `min_score`, in the batch's pixels, best first.

        `sizes` are height and width of each image without its padding.
        """
        with torch.no_grad():
            answers = self.answers(images_N3HW)
            self.require_finite(answers.logits_NAK)
            return postprocess(answers, self.scores(answers), self.network.decoded, sizes, min_score)

    def _copy_outputs(self, narrow: Tensor, wide: Tensor, grown: Self) -> None:
        """Copy the outputs anchor by anchor: each anchor has an output for each class."""
        old, new = (len(model.names) + model.network.background for model in (self, grown))
        wide.view(-1, new, *wide.shape[1:])[:, :old] = narrow.view(-1, old, *wide.shape[1:])


def postprocess(
    answers: Answers, scores_NAK: Tensor, decode: Decode, sizes: Sequence[tuple[int, int]], min_score: float
) -> list[Detections]:
    """Find the objects in each image of a batch."""
    images = zip(scores_NAK, answers.boxes_NAB, sizes, strict=True)
    return [nms(scores, boxes, answers.anchors_A4, decode, size, min_score) for scores, boxes, size in images]


def nms(
    scores_AK: Tensor,
    boxes_AB: Tensor,
    anchors_A4: Tensor,
    decode: Decode,
    size: tuple[int, int],
    min_score: float = MIN_SCORE,
) -> Detections:
    """Give the best candidates of an image, without those that overlap a better one of the same class."""
    from torchvision import ops  # takes long to load, which only who has a detector should wait for

    flat = scores_AK.flatten()
    likely = (flat > min_score).nonzero().flatten()
    best = likely[flat[likely].topk(min(CANDIDATES, len(likely))).indices]
    places, labels_M = best // scores_AK.shape[1], best % scores_AK.shape[1]
    boxes_M4 = ops.clip_boxes_to_image(decode(boxes_AB[places], anchors_A4[places]), size)
    scores_M = flat[best]
    inside = ops.remove_small_boxes(boxes_M4, 1e-3)  # clipping leaves nothing of a box in the padding
    kept = inside[ops.batched_nms(boxes_M4[inside], scores_M[inside], labels_M[inside], NMS)][:MAX_DETECTIONS]
    return Detections(boxes_M4[kept].cpu().numpy(), scores_M[kept].cpu().numpy(), labels_M[kept].cpu().numpy())
