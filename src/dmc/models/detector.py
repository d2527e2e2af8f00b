"""A detector with its class names and preprocessing; saved and loaded like a classifier."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from dmc.data.detection_batch import LONGEST, ShorterSide
from dmc.data.fitting import Fitted, Size, fitted
from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError, first_line
from dmc.metrics.average_precision import Detections
from dmc.models.architecture_source import Architectures, Listed
from dmc.models.free_boxes import NOTHING
from dmc.models.model import Model
from dmc.models.one_stage import Answers, DetectorNetwork, OneStage, gathered, overlaps

MIN_SCORE, CANDIDATES, MAX_DETECTIONS, NMS = 0.05, 1000, 300, 0.5
CROWD, LEAST_CROWD = 3, 300  # boxes that are compared for each that is taken, and at least
LOOSE = 0.7  # the overlap at which two are nearly equal
Decode = Callable[[Tensor, Tensor], Tensor]  # turns box offsets and their anchors into corners in pixels


class Candidates(NamedTuple):
    """The most probable boxes of each image, of which several may be of one object."""

    boxes_NM4: Tensor  # corners, in pixels of the batch
    odds_NMK: Tensor  # log-odds of each class's score


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
        _family("fasterrcnn", "dmc.models.faster_rcnn:FasterRcnnFamily"),
        Listed("transformers:.*", "dmc.models.transformers_detectors:TransformersDetectors", "transformers"),
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
        source = cls.architectures.find(arch)
        if not source.can_learn:
            raise DmcError(f"{arch} can teach, but not learn: a student is a one-stage detector; choose one (`arch`)")
        only = source.only_size(arch)
        if preprocessing and only not in (None, preprocessing.size):
            raise DmcError(f"{arch} has its anchors where they are for images of {only} pixels: leave `size` out")
        if weights is None:
            arch = source.begun_at_random(arch)
        return cls.built(arch, names, preprocessing, "sigmoid", seed, weights)

    @classmethod
    def claims(cls, arch: str) -> bool:
        return not arch.startswith("transformers:") and cls.architectures.claims(arch)  # mostly a classifier

    @property
    def network(self) -> DetectorNetwork:
        """The module, which has to be a detector's."""
        if not isinstance(self.module, DetectorNetwork):
            raise DmcError(f"{self.name} is no detector that dmc knows")
        return self.module

    @property
    def one_stage(self) -> OneStage:
        """The module of a detector that can be trained."""
        if not isinstance(self.module, OneStage):
            raise DmcError(f"only one-stage detectors are trained and exported; {self.name} is none: it can teach")
        return self.module

    @property
    def student_arch(self) -> str | None:
        return self.arch if isinstance(self.module, OneStage) else None

    @property
    def transform(self) -> ShorterSide:
        size, interpolation, fit = self.preprocessing.size, self.preprocessing.interpolation, self.network.fit
        return ShorterSide(size, interpolation, fit == "stretch", 1.0 if fit == "letterbox" else LONGEST)

    def blank(self) -> Tensor:
        blank = self.transform.blank().to(self.device)
        return self._seen(self.fitted(blank, [(blank.shape[2], blank.shape[3])]).images_N3HW)

    def fitted(self, images_N3HW: Tensor, sizes: Sequence[Size], shown: int | None = None) -> Fitted:
        """Fit images to what the network was made for; they have `shown` pixels on the shorter side (None: its own)."""
        p = self.preprocessing
        return fitted(images_N3HW, sizes, self.network.fit, p.size, shown or p.size, p.interpolation)

    def check_head(self) -> None:
        try:
            with torch.no_grad():
                answers = self.module(self.blank())
        except DmcError:
            raise
        except Exception as error:
            raise DmcError(f"{self.name} does not accept images: {first_line(error)}") from None
        if answers.logits_NAK.shape[2] != self.classes.width:
            raise DmcError(
                f"{self.name} has {self.classes.width} class names but answers {answers.logits_NAK.shape[2]}"
            )

    def answers(self, images_N3HW: Tensor) -> Answers:
        """Give logits and boxes for each anchor of uint8 RGB images, which have one shape."""
        return self.answered(self._seen(images_N3HW.to(self.device)))

    def _seen(self, images_N3HW: Tensor) -> Tensor:
        """Normalise images, in grey if the network sees them so."""
        return self.preprocessing.normalised(self.preprocessing.coloured(images_N3HW))

    def answered(self, seen_N3HW: Tensor) -> Answers:
        """Give logits and boxes for each anchor of images as the network sees them."""
        found: Answers = self.module(seen_N3HW)
        found = found._replace(logits_NAK=found.logits_NAK.float(), boxes_NAB=found.boxes_NAB.float())
        if self.classes.whole and not getattr(self.module, "chooses_boxes", False):  # which may be wrapped in training
            return found
        return self.network.kept(found, self.classes.columns)

    def scores(self, answers: Answers) -> Tensor:
        """Give the probability of each class at each anchor."""
        return self.network.scores(answers.logits_NAK, answers.boxes_NAB)

    def detections(
        self, images_N3HW: Tensor, sizes: Sequence[Size], min_score: float = MIN_SCORE, shown: int | None = None
    ) -> list[Detections]:
        """Find the objects in each image that score more than `min_score`, in the batch's pixels, best first.

        `sizes` are height and width of each image without its padding, `shown` the pixels on the shorter side that
        images were resized to; None: what the detector was made for.
        """
        with torch.no_grad():
            seen = self.fitted(images_N3HW, sizes, shown)
            answers = self.answers(seen.images_N3HW)
            scores_NAK = self.scores(answers)
            self.require_finite(answers.logits_NAK, answers.boxes_NAB[scores_NAK.amax(dim=2) > min_score])
            found = postprocess(answers, scores_NAK, self.network.decoded, seen.sizes, min_score)
        if seen.scales_N4 is None:
            return found
        scales_N4 = seen.scales_N4.cpu().numpy()
        return [one._replace(boxes_M4=one.boxes_M4 * scale) for one, scale in zip(found, scales_N4, strict=True)]

    def candidates(self, images_N3HW: Tensor, sizes: Sequence[Size], count: int, shown: int | None) -> Candidates:
        """Give the `count` most probable boxes of each image with the log-odds of all classes, loosely suppressed.

        `sizes` and `shown` are those of `detections`.
        """
        with torch.no_grad():
            seen = self.fitted(images_N3HW, sizes, shown)
            answers = self.answers(seen.images_N3HW)
            scores_NAK = self.scores(answers)
            crowd = min(max(CROWD * count, LEAST_CROWD), scores_NAK.shape[1])
            peaks_NA, places_NA = scores_NAK.amax(dim=2).topk(crowd, dim=1)
            offsets_MB = gathered(answers.boxes_NAB, places_NA).flatten(0, 1)
            boxes_M4 = self.network.decoded(offsets_MB, answers.anchors_A4[places_NA.flatten()])
            boxes_NA4 = seen.back(boxes_M4.view(*places_NA.shape, 4))
            odds_NAK = gathered(scores_NAK, places_NA).logit(eps=1e-6)
            hidden_NA = hidden(boxes_NA4, odds_NAK.argmax(dim=2))
            odds_NAK = odds_NAK.masked_fill(hidden_NA[..., None], NOTHING)  # where boxes are few, these are taken, too
            alone_NA = peaks_NA.masked_fill(hidden_NA, 0)
            best_NM = alone_NA.topk(min(count, alone_NA.shape[1]), dim=1).indices
            return Candidates(gathered(boxes_NA4, best_NM), gathered(odds_NAK, best_NM))

    def rows_by_class(self, outputs: Tensor) -> Tensor:
        """View them anchor by anchor: each has an output for each class, after those for the background."""
        return outputs.view(-1, self.network.background + len(self.names), *outputs.shape[1:])


def hidden(boxes_NM4: Tensor, labels_NM: Tensor) -> Tensor:
    """Tell which boxes nearly equal a better one of the same class, in an image's boxes from the best to the worst.

    Unlike `nms`, it lets the device work on: a box may be hidden by one that is itself hidden.
    """
    better_MM = torch.ones(2 * boxes_NM4.shape[1:2], dtype=torch.bool, device=boxes_NM4.device).tril(-1)
    same_NMM = labels_NM[:, :, None] == labels_NM[:, None]
    return ((overlaps(boxes_NM4, boxes_NM4) > LOOSE) & same_NMM & better_MM).any(dim=2)


def postprocess(
    answers: Answers, scores_NAK: Tensor, decode: Decode, sizes: Sequence[Size], min_score: float
) -> list[Detections]:
    """Find the objects in each image of a batch."""
    images = zip(scores_NAK, answers.boxes_NAB, sizes, strict=True)
    return [nms(scores, boxes, answers.anchors_A4, decode, size, min_score) for scores, boxes, size in images]


def nms(
    scores_AK: Tensor,
    boxes_AB: Tensor,
    anchors_A4: Tensor,
    decode: Decode,
    size: Size,
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
