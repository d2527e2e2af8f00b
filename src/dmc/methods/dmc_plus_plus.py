"""DMC++: DMC with recipe `best`, what was found to help beyond the paper, at about the same cost.

The student begins as the old model, or as the mean of both teachers if these grew from the same weights; the new images
join the auxiliary ones, without labels; the teachers answer once about each of a few views of an image. For classifiers
(results/best-recipe.md), the specialist begins as the old model, too, and at the end outputs of old and new classes are
balanced. Detectors (results/best-detectors.md) are taught at more anchors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dmc.beginning import gently
from dmc.config import RESUMED
from dmc.consolidation import Joining
from dmc.methods.base import Learned, Lesson, fitted, specialist_for
from dmc.methods.dmc import DMC

VIEWS = 2  # the usual number of a cache


class DMCPlusPlus(DMC):
    name, title = "dmc++", "DMC++"

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        old, profile, kind = before.specialists[0], lesson.profile, lesson.profile.task.consolidate_config
        best = profile.changed({"scale": "auto", "balance": True, "views": profile.views or VIEWS})
        new = grown_specialist(old, lesson) if kind.best_lesson.get("from_old") else specialist_for(lesson)
        form = {name: value for name, value in kind.best_form.items() if getattr(profile, name, None) is None}
        joining = Joining(lesson.data) if kind.best_lesson.get("use_new") else None
        merge = self.consolidation([old, new], lesson, best, joining, **form)
        return Learned([merge.run(lesson.folder / "consolidated", RESUMED)])


def grown_specialist(old: Any, lesson: Lesson) -> Any:
    """Train the model of the new classes from the old model's weights on, at half of the learning rate."""
    profile = lesson.profile
    new = profile.task.untrained(lesson.data, profile.new_network, profile.preprocessing, None, lesson.seed)
    new.begin_as(old)
    gentle = replace(lesson, profile=profile.changed({"specialist": gently(profile.specialist)}))
    return fitted(new, gentle, "specialist", begins_as=old.fingerprint)
