"""DMC: train a specialist for the new classes, then consolidate it with the old model on auxiliary images.

The paper's own method (section 3.1, Eq. 2 to 4, for detectors 3.2, Eq. 6 to 8). Classes of the lesson that the old
model knows as well are taught by both: their target is the mean of the two (appendix, "... models with common
classes").
"""

from __future__ import annotations

from dmc.config import RESUMED
from dmc.methods.base import Learned, Lesson, Method, specialist_for


class DMC(Method):
    name, title = "dmc", "DMC"
    uses_aux = True
    least_classes = 2

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        assert lesson.aux is not None
        teachers = [before.specialists[0], specialist_for(lesson)]
        profile = lesson.profile
        config, schedule = profile.distillation(lesson.seed, lesson.shared.parent / "answers"), profile.consolidation
        merge = profile.task.consolidation(teachers, lesson.aux, config, schedule)
        return Learned([merge.run(lesson.folder / "consolidated", RESUMED)])
