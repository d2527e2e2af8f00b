"""The one place where regression targets are built (Eq. 4, and the appendix for shared classes)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dmc.classes import ClassUnion
from dmc.config import Centring
from dmc.device import index


def centred(logits_NK: Tensor) -> Tensor:
    """Subtract from each image's logits their mean over this teacher's classes (Eq. 4 for one teacher)."""
    return logits_NK - logits_NK.mean(dim=1, keepdim=True)


def build_targets(
    teacher_logits: Sequence[Tensor],
    union: ClassUnion,
    centring: Centring = "per-teacher",
    scales: Sequence[float] | None = None,
) -> Tensor:
    """Build the target over the union of classes from each teacher's logits.

    The logit of a class that one teacher knows is copied; that of a class that several know is the mean of their
    normalised logits. `scales` divides each teacher's normalised logits by a number of its own; None, as in the paper,
    divides by nothing.
    """
    scales = scales or [1.0] * len(teacher_logits)
    images = teacher_logits[0].shape[0]
    sum_NT = teacher_logits[0].new_zeros((images, len(union.names)))
    for logits_NK, columns, scale in zip(teacher_logits, union.columns, scales, strict=True):
        normalised_NK = centred(logits_NK) if centring == "per-teacher" else logits_NK
        sum_NT.index_add_(1, index(tuple(columns), sum_NT.device), normalised_NK / scale)
    return sum_NT / index(tuple(union.teachers_per_class), sum_NT.device)
