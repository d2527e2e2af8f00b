"""The optimizer that a schedule asks for."""

from __future__ import annotations

import torch
from torch import nn

from dmc.schedule import Schedule


def optimizer_for(schedule: Schedule, module: nn.Module) -> torch.optim.Optimizer:
    """Make SGD or Adam for the weights that are trained."""
    trainable = [p for p in module.parameters() if p.requires_grad]
    if schedule.algorithm == "adam":
        return torch.optim.Adam(trainable, lr=schedule.lr, weight_decay=schedule.weight_decay, foreach=True)
    return torch.optim.SGD(
        trainable, lr=schedule.lr, momentum=schedule.momentum, weight_decay=schedule.weight_decay, foreach=True
    )


def clip_gradients(schedule: Schedule, module: nn.Module) -> None:
    """Scale a gradient down to the norm `schedule.clip`, if that is not None and the gradient is longer."""
    if schedule.clip is not None:
        nn.utils.clip_grad_norm_(module.parameters(), schedule.clip, foreach=True)
