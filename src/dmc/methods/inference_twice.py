"""Inference twice: keep every specialist and ask all of them.

The normalised logits of classifiers are concatenated (Eq. 4): DMC distils from them, so they are its ceiling. At each
anchor of detectors, the most probable class of any of them counts (section 4.3). It needs one model for each group.
"""

from __future__ import annotations

from dmc.methods.base import Learned, Lesson, Method, specialist_for


class InferenceTwice(Method):
    name, title = "inference-twice", "Inference twice"
    least_classes = 2

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        return Learned([*before.specialists, specialist_for(lesson)])
