"""The one place where regression targets are built (Eq. 4, and the appendix for shared classes)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dmc.classes import ClassUnion
from dmc.config import Centring
from dmc.device import index


def centred(logits_NK: Tensor) -> Tensor:
    """Eq. 4 for one teacher: each image's logits minus their mean over this teacher's classes."""
    return logits_NK - logits_NK.mean(dim=1, keepdim=True)


def build_targets(
    teacher_logits: Sequence[Tensor],
    union: ClassUnion,
    centring: Centring = "per-teacher",
    scales: Sequence[float] | None = None,
) -> Tensor:
    """N teachers' logits to the target over the union of their classes.

    A class of one teacher is copied, a class of several is the mean of their normalised logits. `scales`
    divides each teacher's normalised logits by a number of its own; the paper has none.
    """
    scales = scales or [1.0] * len(teacher_logits)
    images = teacher_logits[0].shape[0]
    sum_NT = teacher_logits[0].new_zeros((images, len(union.names)))
    for logits_NK, columns, scale in zip(teacher_logits, union.columns, scales, strict=True):
        normalised_NK = centred(logits_NK) if centring == "per-teacher" else logits_NK
        sum_NT.index_add_(1, index(tuple(columns), sum_NT.device), normalised_NK / scale)
    return sum_NT / index(tuple(union.teachers_per_class), sum_NT.device)
