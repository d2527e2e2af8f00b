"""Fine-tuning: go on training the old model on the new classes' images, with no care for the old ones.

The paper's baseline that forgets (section 4.2.2). The head grows; cross entropy runs over all classes.
"""

from __future__ import annotations

from dmc.data.sources import Source
from dmc.methods.base import Learned, Lesson, Method, fitted, new_classes, widened
from dmc.specialist import Specialist
from dmc.training.schedule import SPECIALIST, Schedule
from dmc.training.supervised import fit_labeled


def finetune(old: Specialist, data: Source, schedule: Schedule = SPECIALIST, seed: int = 0) -> Specialist:
    return fit_labeled(old.widened(new_classes(old.names, data)), data, schedule=schedule, seed=seed)


class Finetuning(Method):
    name, title = "finetuning", "Finetuning"

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        _, wide = widened(before, lesson)
        return Learned([fitted(wide, lesson, "finetuned")])
