"""Inference twice: keep every specialist and concatenate their normalised logits (Eq. 4).

For classifiers this is the ceiling that DMC distils from; it needs one model for each group.
"""

from __future__ import annotations

from dmc.methods.base import Learned, Lesson, Method, specialist_for


class InferenceTwice(Method):
    name, title = "inference-twice", "Inference twice"
    least_classes = 2

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        return Learned([*before.specialists, specialist_for(before.specialists[0], lesson)])
