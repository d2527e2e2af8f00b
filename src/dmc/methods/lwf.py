"""LwF: fine-tune on the new classes and keep the old outputs close to the old model's on the same images.

Li and Hoiem, "Learning without Forgetting" (2017): cross entropy among the new classes, and for each earlier group the
cross entropy with the old model's answers at T = 2, among the classes of that group, weight 1 (Eq. 2 to 4). In that
paper each task has a head, which is first trained alone; here the heads lie side by side and are trained with all else,
and at test time all classes compete.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dmc.data.batch import Batch
from dmc.device import pick_device
from dmc.distill.losses import kd
from dmc.methods.base import Learned, Lesson, Method, fitted, widened
from dmc.models.specialist import Specialist
from dmc.training.classification import Supervised

TEMPERATURE = 2.0


class WithoutForgetting(Supervised):
    """Cross entropy among the new classes, plus distillation for each earlier group; `heads` are the groups' sizes."""

    name = "WithoutForgetting"

    def __init__(
        self, wide: Specialist, old: Specialist, data_classes: tuple[str, ...], heads: Sequence[int], strength: float
    ) -> None:
        super().__init__(wide, data_classes)
        self.old, self.heads, self.strength = old.to(pick_device()), list(heads), strength

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        logits_NT = self.logits(network, batch)
        with torch.no_grad():
            old_NS = self.old.logits(batch.images_N3HW)
        classification = self.among_data_classes(logits_NT, batch.labels_N)
        ours, theirs = (torch.split(x, self.heads, dim=1) for x in (logits_NT[:, : old_NS.shape[1]], old_NS))
        # `kd` has a factor T^2, which LwF's loss does not have.
        terms = [kd(a, b, TEMPERATURE) / TEMPERATURE**2 for a, b in zip(ours, theirs, strict=True)]
        distillation = torch.stack(terms).sum()
        loss = classification + self.strength * distillation
        return {"loss": loss, "classification": classification, "distillation": distillation}


class LwF(Method):
    name, title = "lwf", "LwF"
    kinds = (Specialist,)
    strength = 1.0
    least_classes = 2

    def begin(self, first: Learned, lesson: Lesson) -> Learned:
        return Learned(first.specialists, {"heads": torch.tensor([len(first.specialists[0].names)])})

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        heads, (old, wide) = before.notes["heads"], widened(before, lesson)
        objective = WithoutForgetting(wide, old, lesson.data.classes, heads.tolist(), lesson.strength)
        learned = fitted(wide, lesson, "lwf", objective, strength=lesson.strength)
        added = torch.tensor([len(wide.names) - len(old.names)])
        return Learned([learned], {"heads": torch.cat([heads, added])})
