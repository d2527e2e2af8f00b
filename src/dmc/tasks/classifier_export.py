"""What the file of an exported classifier computes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dmc.models.exported import Answers, Described, Exportable
from dmc.models.specialist import Specialist

SEVERAL = 2  # images in the example: a tracer takes one image for a constant


class ClassifierGraph(nn.Module):
    """Logits of normalised images, or probabilities of uint8 images of any square size; of the kept classes alone."""

    def __init__(self, model: Specialist, pixels: bool) -> None:
        super().__init__()
        self.network, self.model, self.pixels = model.module, model, pixels

    def forward(self, images_NCHW: Tensor) -> Tensor:
        if not self.pixels:
            return self.model.answered(images_NCHW)
        shown = self.model.preprocessing
        resized_NCHW = shown.resized(shown.coloured(images_NCHW))
        return self.model.activated(self.model.answered(shown.normalised(resized_NCHW)))


def exportable(model: Specialist, pixels: bool) -> Exportable:
    """Make a classifier ready to be traced."""
    shown = model.preprocessing
    answers: Answers = "probabilities" if pixels else "logits"
    example_N3HW = torch.zeros((SEVERAL, 3, shown.size, shown.size), dtype=torch.uint8)
    return Exportable(
        ClassifierGraph(model, pixels),
        example_N3HW if pixels else shown(example_N3HW).contiguous(),
        {0: "batch", 2: "side", 3: "side"} if pixels else {0: "batch"},
        (answers,),
        Described.of(model, pixels, answers),
        feed=(lambda images_N3HW: images_N3HW) if pixels else shown,
        original=lambda images_N3HW: [model.probabilities(images_N3HW) if pixels else model.logits(images_N3HW)],
        difference=largest_difference,
    )


def largest_difference(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Give the largest difference between two answers, as a share of the largest number if that is more than 1."""
    pairs = list(zip(one, other, strict=True))
    if any(a.shape != b.shape for a, b in pairs):
        return torch.inf
    return max(float((a - b).abs().max() / a.abs().max().clamp_min(1)) for a, b in pairs)
