"""LwF: fine-tune on the new classes and keep the old outputs close to the old model's on the same images.

Li and Hoiem, "Learning without Forgetting" (2017), Algorithm: cross entropy among the new classes, knowledge
distillation with T = 2 among the old ones, weight 1. There each task has a head; here the heads lie side by side, and
at test time all classes compete. (The paper's LwF numbers are those of iCaRL's LwF.MC, which has sigmoids for both.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from dmc.data.batch import Batch
from dmc.device import pick_device
from dmc.distill.losses import kd
from dmc.methods.base import Learned, Lesson, Method, new_classes
from dmc.specialist import Specialist
from dmc.training.supervised import Supervised, fit_labeled

TEMPERATURE = 2.0


class WithoutForgetting(Supervised):
    def __init__(self, wide: Specialist, old: Specialist, data_classes: tuple[str, ...], strength: float) -> None:
        super().__init__(wide, data_classes)
        self.old, self.strength = old.to(pick_device()), strength

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        logits_NT = self.specialist.logits(batch.images_N3HW)
        with torch.no_grad():
            old_NS = self.old.logits(batch.images_N3HW)
        classification = self.among_data_classes(logits_NT, batch.labels_N)
        distillation = kd(logits_NT[:, : old_NS.shape[1]], old_NS, TEMPERATURE)
        loss = classification + self.strength * distillation
        return {"loss": loss, "classification": classification, "distillation": distillation}


class LwF(Method):
    name, title = "lwf", "LwF"
    strength = 1.0

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        old = before.specialists[0]
        wide = old.widened(new_classes(old.names, lesson.data))
        task = WithoutForgetting(wide, old, lesson.data.classes, lesson.strength)
        settings = {"strength": lesson.strength}
        run = lesson.folder / "lwf"
        learned = fit_labeled(
            wide, lesson.data, run, lesson.profile.specialist, lesson.seed, resume=True, task=task, settings=settings
        )
        return Learned([learned])
