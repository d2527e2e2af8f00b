"""Fine-tuning: go on training the old model on the new classes' images, with no care for the old ones.

The paper's baseline that forgets (section 4.2.2). The head grows; cross entropy runs over all classes.
"""

from __future__ import annotations

from dmc.data.sources import Source
from dmc.specialist import Specialist
from dmc.training.schedule import SPECIALIST, Schedule
from dmc.training.supervised import fit_labeled


def finetune(old: Specialist, data: Source, schedule: Schedule = SPECIALIST, seed: int = 0) -> Specialist:
    new_names = [name for name in data.classes if name not in old.names]
    return fit_labeled(old.widened(new_names), data, schedule=schedule, seed=seed)
