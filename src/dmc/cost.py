"""What a consolidation costs: operations, bytes and seconds, worked out from one measured step.

A pass that asks the teachers costs their forward passes and the student's step; one that reads their answers from a
cache costs the step alone. The first `views` passes fill the cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

REPEATS = 3  # of a timed step: a single one may be off by a half
ENOUGH_SECONDS = 1.0  # of timed steps: with more, one that takes long would delay every run


@dataclass(frozen=True)
class Cost:
    """The operations and seconds of one image: of the student's step, and of asking all teachers."""

    student_flops: float
    student_seconds: float
    asking_flops: float = 0.0
    asking_seconds: float = 0.0
    cache_bytes: int = 0  # of the answers to all images; 0 without a cache
    views: int | None = None  # that a cache keeps; None: every pass asks

    @property
    def flops_per_second(self) -> float:
        return (self.asking_flops + self.student_flops) / (self.asking_seconds + self.student_seconds)

    def asking_passes(self, epochs: int) -> int:
        """Give the number of passes that ask the teachers."""
        return epochs if self.views is None else min(self.views, epochs)

    def seconds(self, images: int, epochs: int) -> float:
        """Give the seconds of a run."""
        return images * (epochs * self.student_seconds + self.asking_passes(epochs) * self.asking_seconds)

    def epochs_in(self, seconds: float, images: int) -> int:
        """Give the number of passes over so many images that fit into some seconds."""
        budget, asking = seconds / images, self.asking_seconds + self.student_seconds
        if self.views is None or budget < self.views * asking:
            return int(budget / asking)
        return int((budget - self.views * self.asking_seconds) / self.student_seconds)

    def flops(self, images: int, epochs: int) -> float:
        """Give the operations of a run."""
        return images * (epochs * self.student_flops + self.asking_passes(epochs) * self.asking_flops)


def conv_backward_flops(
    grad_shape: list[int], x_shape: list[int], w_shape: list[int], *rest: Any, out_shape: object = None
) -> int:
    """Count a convolution's backward pass: as many operations as forward for each gradient that is asked for.

    torch's own formula counts the gradient of the weights as often as the convolution has groups. By it, a step of
    EfficientNet-lite0, whose convolutions are mostly depthwise, has 32.2 GFLOP instead of 2.3.
    """
    *_, transposed, _, _, (of_images, of_weights, _) = rest
    return int(conv_flop_count(x_shape, w_shape, grad_shape, transposed) * (of_images + of_weights))


CORRECTED = {torch.ops.aten.convolution_backward: conv_backward_flops}


def measured(work: Callable[[], object], images: int) -> tuple[float, float]:
    """Count the operations of some work on so many images and time it; give both for one image."""
    with FlopCounterMode(display=False, custom_mapping=CORRECTED) as counter:
        work()  # which warms up, too
    times: list[float] = []
    while not times or (len(times) < REPEATS and sum(times) < ENOUGH_SECONDS):
        started = time.monotonic()
        work()
        times.append(time.monotonic() - started)
    return counter.get_total_flops() / images, median(times) / images
