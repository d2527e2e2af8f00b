"""DMC+: DMC, then a short fine-tuning on exemplars (the paper's appendix, "... experiments of adding exemplars").

With budget K: the first group leaves floor(K/g) images of each class. In session i, floor(K/(g i)) images of each new
class join, the consolidated model is fine-tuned on all exemplars for 15 epochs at 1e-3, and floor(K/(g (i+1))) of each
class stay. g i is the number of old classes, which also serves a last group that is smaller.
"""

from __future__ import annotations

from torch import Tensor

from dmc.config import RESUMED
from dmc.methods import exemplars
from dmc.methods.base import Learned, Lesson
from dmc.methods.dmc import DMC
from dmc.models.specialist import Specialist
from dmc.schedule import Schedule
from dmc.training.classification import Supervised
from dmc.training.labeled import fit_labeled

EPOCHS, RATE = 15, 1e-3


class DMCPlus(DMC):
    name, title = "dmc+", "DMC+"
    kinds = (Specialist,)
    memory = exemplars.BUDGET

    def begin(self, first: Learned, lesson: Lesson) -> Learned:
        model = first.specialists[0]
        return Learned([model], self._chosen(model, lesson, self.memory // len(model.names)))

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        merged = super().learn(before, lesson).specialists[0]
        old_classes = len(before.specialists[0].names)
        kept = before.notes | self._chosen(merged, lesson, self.memory // old_classes)
        data = exemplars.as_source(exemplars.of(kept))
        tuned = fit_labeled(
            merged,
            data,
            Supervised(merged, data.classes),
            self._short(lesson.profile.specialist),
            seed=lesson.seed,
            out=lesson.folder / "tuned",
            how=RESUMED,
        )
        return Learned([tuned], exemplars.as_notes(exemplars.of(kept), self.memory // len(tuned.names)))

    @staticmethod
    def _short(schedule: Schedule) -> Schedule:
        """Give the appendix's schedule, 15 epochs at a constant 1e-3, or fewer where the profile has fewer."""
        changes = {"epochs": min(EPOCHS, schedule.epochs), "lr": RATE, "shape": "steps", "drops": ()}
        return schedule.changed(changes)

    @staticmethod
    def _chosen(model: Specialist, lesson: Lesson, per_class: int) -> dict[str, Tensor]:
        """Choose exemplars at random, or by herding, which the appendix tried without a notable gain."""
        images = exemplars.by_class(lesson.data, model)
        if lesson.profile.selection == "herding":
            chosen = {name: exemplars.herded(of_class, per_class, model) for name, of_class in images.items()}
        else:
            chosen = {
                name: exemplars.at_random(of_class, per_class, lesson.seed, name) for name, of_class in images.items()
            }
        return exemplars.as_notes(chosen, per_class)
