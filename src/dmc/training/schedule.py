"""How long, how fast, in what batches. The defaults are the paper's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from dmc.data.batch import Batch
from dmc.errors import DmcError

BatchType = TypeVar("BatchType", bound=Batch)


class Schedule(BaseModel):
    """The learning rate is a function of the step alone, so resuming needs no state."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(default=50, ge=1)
    lr: float = Field(default=0.1, gt=0, lt=1e6)
    shape: Literal["steps", "one-cycle"] = "steps"
    drops: tuple[float, ...] = (0.7, 0.9)  # of all epochs; the rate falls tenfold at each
    algorithm: Literal["sgd", "adam"] = "sgd"
    batch_size: int = Field(default=128, ge=1)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=1e-4, ge=0)
    clip: float | None = Field(default=None, gt=0)  # the longest gradient, over all weights; None: any
    pad: int | None = Field(default=None, ge=0)  # None: an eighth of the image, which is the paper's 4 at 32x32
    flip: bool = True

    def changed(self, changes: Mapping[str, Any]) -> Schedule:
        """With some settings changed, and checked like all others."""
        try:
            return Schedule.model_validate(self.model_dump() | dict(changes))
        except ValidationError as error:
            wrong = error.errors()[0]
            raise DmcError(f"{'.'.join(map(str, wrong['loc']))} {wrong['input']!r}: {wrong['msg']}") from None

    def lr_at(self, step: int, steps_per_epoch: int) -> float:
        """The learning rate of a step."""
        if self.shape == "one-cycle":  # up over the first fifth, then down along a cosine
            progress = (step + 0.5) / (self.epochs * steps_per_epoch)
            if progress < 0.2:
                return self.lr * progress / 0.2
            return self.lr * 0.5 * (1 + math.cos(math.pi * (progress - 0.2) / 0.8))
        passed = sum(step >= drop * self.epochs * steps_per_epoch for drop in self.drops)
        return self.lr * 0.1**passed

    def augmented(self, batch: BatchType) -> BatchType:
        return batch.augmented(self.pad, self.flip)

    def optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        trainable = [p for p in module.parameters() if p.requires_grad]
        if self.algorithm == "adam":
            return torch.optim.Adam(trainable, lr=self.lr, weight_decay=self.weight_decay, foreach=True)
        return torch.optim.SGD(
            trainable, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, foreach=True
        )

    def limit(self, module: nn.Module) -> None:
        """Shorten a gradient that is too long."""
        if self.clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), self.clip, foreach=True)


SPECIALIST = Schedule(epochs=200)
CONSOLIDATION = Schedule(epochs=50)
# The paper does not mention clipping, but focal loss has gradients of 50 times the usual length, after one of which
# Adam at the paper's rate is left with dead heads; 0.1 is what public RetinaNets of its time use.
DETECTION = Schedule(epochs=100, lr=1e-3, drops=(), algorithm="adam", batch_size=12, weight_decay=0, clip=0.1)
