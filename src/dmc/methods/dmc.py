"""DMC: train a specialist for the new classes, then consolidate it with the old model on auxiliary images.

The paper's own method (section 3.1, Eq. 2 to 4).
"""

from __future__ import annotations

from dmc.consolidation import consolidate
from dmc.methods.base import Learned, Lesson, Method
from dmc.specialist import Specialist
from dmc.training.supervised import train


def new_specialist(like: Specialist, lesson: Lesson) -> Specialist:
    """A specialist for the lesson's classes alone, from random weights."""
    return train(
        lesson.data,
        lesson.folder / "specialist",
        arch=str(like.arch),
        preprocessing=like.preprocessing,
        schedule=lesson.specialist,
        seed=lesson.seed,
        resume=True,
    )


class DMC(Method):
    name, title = "dmc", "DMC"
    uses_aux = True

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        assert lesson.aux is not None
        old = before.specialists[0]
        teachers = [old, new_specialist(old, lesson)]
        run = lesson.folder / "consolidated"
        merged = consolidate(teachers, lesson.aux, run, schedule=lesson.consolidation, seed=lesson.seed, resume=True)
        return Learned([merged])
