"""What the file of an exported detector computes: the objects in one image, after non-maximum suppression."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dmc.data.fitting import MULTIPLE
from dmc.models.detector import CANDIDATES, MAX_DETECTIONS, MIN_SCORE, NMS, Detector
from dmc.models.exported import Described, Exportable

LEAST_FRAME = 160  # pixels: the coarsest level, at stride 128, has several places, which a tracer takes for many
MARGIN = 0.01  # above the lowest score of a find


class DetectorGraph(nn.Module):
    """Boxes in pixels of the frame, scores and labels of the objects in a batch of one image, best first."""

    def __init__(self, model: Detector, pixels: bool) -> None:
        super().__init__()
        self.network, self.model, self.pixels = model.module, model, pixels

    def forward(self, images_13HW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        from torchvision import ops

        seen = self.model.preprocessing.normalised(images_13HW) if self.pixels else images_13HW
        answers = self.model.answered(seen)
        scores_AK = self.model.scores(answers)[0]
        size = (images_13HW.shape[-2], images_13HW.shape[-1])
        # Impossible candidates are added, so that there are always enough of them: a tracer wants constant numbers.
        scores_M, best = F.pad(scores_AK.flatten(), (0, CANDIDATES)).topk(CANDIDATES)
        best = best.clamp_max(scores_AK.numel() - 1)
        places, labels_M = best // scores_AK.shape[1], best % scores_AK.shape[1]
        decoded_M4 = self.model.network.decoded(answers.boxes_NAB[0][places], answers.anchors_A4[places])
        boxes_M4 = ops.clip_boxes_to_image(decoded_M4, size)
        sides_M2 = boxes_M4[:, 2:] - boxes_M4[:, :2]
        likely_M = (scores_M > MIN_SCORE) & (sides_M2 >= 1e-3).all(dim=1)
        # Classes are laid side by side, as by torchvision's `batched_nms`, so that boxes of different ones do not
        # overlap. What is unlikely comes last and suppresses nothing: it is left out afterwards.
        apart_M1 = labels_M.to(boxes_M4)[:, None] * ((boxes_M4 * likely_M[:, None]).max() + 1)
        kept = ops.nms(boxes_M4 + apart_M1, scores_M, NMS)
        kept = kept[likely_M[kept]][:MAX_DETECTIONS]
        return boxes_M4[kept], scores_M[kept], labels_M[kept]


def exportable(model: Detector, pixels: bool) -> Exportable:
    """Make a detector ready to be traced."""
    shown, stretches = model.preprocessing, model.one_stage.fit == "stretch"
    height = shown.size if stretches else max(LEAST_FRAME, -(-shown.size // MULTIPLE) * MULTIPLE)
    blank_13HW = torch.zeros((1, 3, height, height if stretches else height + MULTIPLE), dtype=torch.uint8)

    def original(images_13HW: Tensor) -> list[Tensor]:
        frame = (images_13HW.shape[-2], images_13HW.shape[-1])
        return [torch.from_numpy(part) for part in model.detections(images_13HW, [frame])[0]]

    return Exportable(
        DetectorGraph(model, pixels),
        blank_13HW if pixels else shown.normalised(blank_13HW).contiguous(),
        {} if stretches else {2: "height", 3: "width"},
        ("boxes", "scores", "labels"),
        Described.of(model, pixels, "boxes"),
        feed=(lambda images_13HW: images_13HW) if pixels else shown.normalised,
        original=original,
        difference=difference,
    )


def difference(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Give the largest difference between finds that belong together."""
    return max(strayed(one, other), strayed(other, one))


def strayed(some: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """Give how far the finds are from the nearest ones of the same class among others.

    Those that are hardly likely enough to be found do not count: rounding decides whether they are.
    """
    boxes_M4, scores_M, labels_M = (part[some[1] > MIN_SCORE + MARGIN] for part in some)
    boxes_N4, scores_N, labels_N = others
    if not len(scores_M):
        return 0.0
    if not len(scores_N):
        return math.inf
    by_box_MN = (boxes_M4[:, None] - boxes_N4).abs().amax(dim=2) / boxes_M4.max().clamp_min(1)
    by_score_MN = (scores_M[:, None] - scores_N).abs()
    apart_MN = by_box_MN.maximum(by_score_MN).masked_fill(labels_M[:, None] != labels_N, math.inf)
    return float(apart_MN.amin(dim=1).max())
