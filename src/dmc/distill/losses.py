"""Distances between the student's logits and the target: Eq. 3 and the rivals of the paper's loss table."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from dmc.config import LossName
from dmc.processes import together


def l2(student_NT: Tensor, target_NT: Tensor) -> Tensor:
    """Give the mean over classes of squared differences (Eq. 3), averaged over images (Eq. 2)."""
    return F.mse_loss(student_NT, target_NT)


def l1(student_NT: Tensor, target_NT: Tensor) -> Tensor:
    """Give the mean over classes of absolute differences, averaged over images."""
    return F.l1_loss(student_NT, target_NT)


def loss_of_each(name: LossName) -> Callable[[Tensor, Tensor], Tensor]:
    """Give the loss of this name for each row by itself, of which `l2` and `l1` are the mean."""
    distance = {"l2": F.mse_loss, "l1": F.l1_loss}[name]
    return lambda student_MT, target_MT: distance(student_MT, target_MT, reduction="none").mean(dim=1)


def weighted_mean(values_M: Tensor, weights_M: Tensor) -> Tensor:
    """Give the mean of values that count as much as their weights say, which are positive.

    The weights are relative to their mean over the whole batch, of which several processes have a share each.
    """
    total_and_count = together().added(torch.stack([weights_M, torch.ones_like(weights_M)]).sum(dim=1))
    return (values_M * weights_M).mean() * total_and_count[1] / total_and_count[0]


def kd(student_NT: Tensor, target_NT: Tensor, temperature: float) -> Tensor:
    """Give the KL divergence of softened distributions, times T^2 to keep the gradients' size (Hinton et al. 2015)."""
    student = F.log_softmax(student_NT / temperature, dim=1)
    target = F.log_softmax(target_NT / temperature, dim=1)
    return F.kl_div(student, target, reduction="batchmean", log_target=True) * temperature**2


def loss_named(name: LossName, temperature: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Give the loss of this name; only `kd` uses the temperature."""
    if name == "kd":
        return lambda student_NT, target_NT: kd(student_NT, target_NT, temperature)
    return {"l2": l2, "l1": l1}[name]
