"""Distances between the student's answers and the target: Eq. 3, its rivals of the paper's loss table, and Eq. 6."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from dmc.config import KD_TEMPERATURE, LossName


def l2(student_NT: Tensor, target_NT: Tensor) -> Tensor:
    """Give the mean over classes of squared differences (Eq. 3), averaged over images (Eq. 2)."""
    return F.mse_loss(student_NT, target_NT)


def l1(student_NT: Tensor, target_NT: Tensor) -> Tensor:
    """Give the mean over classes of absolute differences, averaged over images."""
    return F.l1_loss(student_NT, target_NT)


def kd(student_NT: Tensor, target_NT: Tensor, temperature: float) -> Tensor:
    """Give the KL divergence of softened distributions, times T^2 to keep the gradients' size (Hinton et al. 2015)."""
    student = F.log_softmax(student_NT / temperature, dim=1)
    target = F.log_softmax(target_NT / temperature, dim=1)
    return F.kl_div(student, target, reduction="batchmean", log_target=True) * temperature**2


def box_distance(offsets_MB: Tensor, wanted_MB: Tensor) -> Tensor:
    """Give the smooth L1 distance of each box from its target, summed over the numbers that code it (Eq. 6)."""
    return F.smooth_l1_loss(offsets_MB, wanted_MB, reduction="none").sum(dim=-1)


def loss_named(name: LossName, temperature: float | None = None) -> Callable[[Tensor, Tensor], Tensor]:
    """Give the loss of this name; only `kd` uses the temperature."""
    if name == "kd":
        return lambda student_NT, target_NT: kd(student_NT, target_NT, temperature or KD_TEMPERATURE)
    return {"l2": l2, "l1": l1}[name]
