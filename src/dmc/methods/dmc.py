"""DMC: train a specialist for the new classes, then consolidate it with the old model on auxiliary images.

The paper's own method (section 3.1, Eq. 2 to 4). Classes of the lesson that the old model knows as well are taught by
both: their target is the mean of the two (appendix, "... models with common classes").
"""

from __future__ import annotations

from dmc.config import ClassifierConsolidateConfig
from dmc.methods.base import Learned, Lesson, Method, specialist_for
from dmc.tasks.classifier_consolidation import consolidate


class DMC(Method):
    name, title = "dmc", "DMC"
    uses_aux = True
    least_classes = 2

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        assert lesson.aux is not None
        old = before.specialists[0]
        teachers = [old, specialist_for(old, lesson)]
        merged = consolidate(
            teachers,
            lesson.aux,
            lesson.folder / "consolidated",
            loss=lesson.profile.loss,
            temperature=lesson.profile.temperature,
            scale=lesson.profile.scale,
            balance=lesson.profile.balance,
            held_out=ClassifierConsolidateConfig().held_out if lesson.profile.balance else 0,
            weights=lesson.profile.weights,
            schedule=lesson.profile.consolidation,
            seed=lesson.seed,
            resume=True,
        )
        return Learned([merged])
