"""DMC++: DMC with what was found to help beyond the paper, at about the same cost (results/best-recipe.md).

The specialist and the student both begin as the old model. The new images join the auxiliary ones, without labels. The
teachers answer once about each of a few views of an image. At the end, outputs of old and new classes are balanced.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dmc.config import RESUMED
from dmc.methods.base import Learned, Lesson, fitted
from dmc.methods.dmc import DMC
from dmc.models.specialist import Specialist

VIEWS = 2  # the usual number of a cache


class DMCPlusPlus(DMC):
    name, title = "dmc++", "DMC++"
    kinds = (Specialist,)

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        old, profile = before.specialists[0], lesson.profile
        best = profile.changed({"scale": "auto", "balance": True, "views": profile.views or VIEWS})
        merge = self.consolidation([old, grown_specialist(old, lesson)], lesson, best, from_teacher=True)
        merge.join(lesson.data)
        return Learned([merge.run(lesson.folder / "consolidated", RESUMED)])


def grown_specialist(old: Any, lesson: Lesson) -> Any:
    """Train the model of the new classes from the old model's weights on, at half of the learning rate."""
    profile = lesson.profile
    gentle = profile.specialist.changed({"lr": profile.specialist.lr / 2})
    new = profile.task.untrained(lesson.data, profile.new_network, profile.preprocessing, None, lesson.seed)
    new.begin_as(old)
    gently = replace(lesson, profile=profile.changed({"specialist": gentle}))
    return fitted(new, gently, "specialist", begins_as=old.fingerprint)
