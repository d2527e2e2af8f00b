"""Fine-tuning: train the old model on the images of the new classes, and do nothing to keep the old ones.

The paper's baseline that forgets (section 4.2.2). The head grows; the loss is over all classes.
"""

from __future__ import annotations

from dmc.methods.base import Learned, Lesson, Method, fitted, widened


class Finetuning(Method):
    name, title = "finetuning", "Finetuning"

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        _, wide = widened(before, lesson)
        return Learned([fitted(wide, lesson, "finetuned")])
