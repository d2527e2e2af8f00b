"""A training's schedule: its length, rate, optimizer, batches, augmentation and arithmetic."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import field_validator

from dmc.settings import LARGE, MANY, Config, keyword, option

Precision = Literal["auto", "fp32", "bf16", "fp16"]


class Schedule(Config):
    """Length, learning rate, optimizer, batches and augmentation of a training; the defaults are the paper's.

    The learning rate is a function of the step alone, so resuming needs no state.
    """

    epochs: int = option(
        50,
        "Passes over the images",
        usual="by the number of images; paper 50 (train 200, detectors 100)",
        ge=1,
        lt=MANY,
    )
    lr: float = option(
        0.1, "Peak learning rate", usual="0.1, less if pretrained; detectors 0.001, pretrained 0.0003", gt=0, lt=1e6
    )
    shape: Literal["steps", "one-cycle"] = option(
        "steps",
        "steps: divide the rate by 10 at 7/10 and at 9/10 (paper); one-cycle: warm-up, then cosine",
        usual="one-cycle",
        flag="lr-shape",
    )
    drops: tuple[float, ...] = keyword(
        (0.7, 0.9), "Fractions of all epochs after which steps divides the rate; detectors: none"
    )
    algorithm: Literal["sgd", "adam"] = keyword("sgd", "The optimizer; detectors: adam")
    batch_size: int = option(
        128, "Images in a step", usual="32; 128 for many images or paper; detectors 12", ge=1, lt=MANY
    )
    momentum: float = keyword(0.9, "Momentum of SGD", ge=0, lt=1)
    weight_decay: float = option(1e-4, "Weight decay", usual="0.0001; detectors 0", ge=0, lt=LARGE)
    clip: float | None = keyword(
        None, "Largest norm of the gradient over all weights; None: not clipped; detectors: 0.1", gt=0
    )
    # None is the paper's 4 at 32x32.
    pad: int | None = keyword(None, "Pixels to pad before cropping; None: an eighth of the image", ge=0, lt=8192)
    flip: bool = option(True, "Flip half of the images left to right", usual="flip")
    precision: Precision = option(
        "fp32",
        "Arithmetic: fp32, bf16, or fp16 for older GPUs; auto: bf16 where the device is faster in it, else fp32",
        usual="auto; paper fp32",
    )
    compile: bool = option(
        False, "Compile the network first: a minute at the start for faster steps", usual="no-compile"
    )

    @field_validator("drops")
    @classmethod
    def _within_the_training(cls, drops: tuple[float, ...]) -> tuple[float, ...]:
        if not all(0 < drop < 1 for drop in drops):
            raise ValueError("should be fractions of all epochs, between 0 and 1")
        return drops

    @property
    def length(self) -> str:
        """The number of passes, in words."""
        return f"{self.epochs} epoch{'' if self.epochs == 1 else 's'}"

    def lr_at(self, step: int, steps_per_epoch: int) -> float:
        """Give the learning rate of a step."""
        if self.shape == "one-cycle":  # up over the first fifth, then down along a cosine
            progress = (step + 0.5) / (self.epochs * steps_per_epoch)
            if progress < 0.2:
                return self.lr * progress / 0.2
            return self.lr * 0.5 * (1 + math.cos(math.pi * (progress - 0.2) / 0.8))
        passed = sum(step >= drop * self.epochs * steps_per_epoch for drop in self.drops)
        return self.lr * 0.1**passed


SPECIALIST = Schedule(epochs=200)
CONSOLIDATION = Schedule(epochs=50)
# The paper does not mention clipping, but focal loss has gradients of 50 times the usual norm, and one of them leaves
# Adam at the paper's rate with dead heads; 0.1 is what public RetinaNets of its time use.
DETECTION = Schedule(epochs=100, lr=1e-3, drops=(), algorithm="adam", batch_size=12, weight_decay=0, clip=0.1)
