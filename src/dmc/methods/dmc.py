"""DMC: train a specialist for the new classes, then consolidate it with the old model on auxiliary images.

The paper's own method (section 3.1, Eq. 2 to 4, for detectors 3.2, Eq. 5 to 8). Classes of the lesson that the old
model knows as well are taught by both: their target is the mean of the two (appendix, "... models with common
classes").
"""

from __future__ import annotations

from typing import Any

from dmc.config import RESUMED
from dmc.consolidation import Consolidation, Joining
from dmc.methods.base import Learned, Lesson, Method, specialist_for
from dmc.recipes.profile import Profile


class DMC(Method):
    name, title = "dmc", "DMC"
    uses_aux = True
    least_classes = 2

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        merge = self.consolidation([before.specialists[0], specialist_for(lesson)], lesson, lesson.profile)
        return Learned([merge.run(lesson.folder / "consolidated", RESUMED)])

    def consolidation(
        self, teachers: list[Any], lesson: Lesson, profile: Profile, joining: Joining | None = None, **changes: Any
    ) -> Consolidation[Any]:
        """Prepare the consolidation with the profile's settings; `changes` are those of settings that it has not."""
        assert lesson.aux is not None
        config = profile.distillation(lesson.seed, lesson.shared.parent / "answers").changed(changes)
        return profile.task.consolidation(teachers, lesson.aux, config, profile.consolidation, joining)
