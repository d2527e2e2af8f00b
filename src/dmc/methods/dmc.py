"""DMC: train a specialist for the new classes, then consolidate it with the old model on auxiliary images.

The paper's own method (section 3.1, Eq. 2 to 4).
"""

from __future__ import annotations

from dmc.consolidation import consolidate
from dmc.methods.base import Learned, Lesson, Method, specialist_for


class DMC(Method):
    name, title = "dmc", "DMC"
    uses_aux = True

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        assert lesson.aux is not None
        old = before.specialists[0]
        teachers = [old, specialist_for(old, lesson)]
        run = lesson.folder / "consolidated"
        merged = consolidate(teachers, lesson.aux, run, schedule=lesson.consolidation, seed=lesson.seed, resume=True)
        return Learned([merged])
