"""MAS: a weight is important if the squared length of the outputs is sensitive to it.

Aljundi et al., "Memory Aware Synapses" (ECCV 2018), section 4: the mean over images of |gradient of ||f(x)||^2|. It
needs no labels, and adds up over lessons.
"""

from __future__ import annotations

from torch import Tensor

from dmc.methods.base import Learned, Lesson
from dmc.methods.importance import ImportanceMethod, Weights, added_up, mean_over_images


def squared_length(logits_K: Tensor) -> Tensor:
    return logits_K.square().sum()


class MAS(ImportanceMethod):
    name, title = "mas", "MAS"
    strength = 0.1

    def importance(self, learned: Learned, lesson: Lesson) -> Weights:
        found = mean_over_images(
            learned.specialists[0], lesson.data, squared_length, lambda _, gradient_N: gradient_N.abs()
        )
        return added_up(found, learned.notes)
