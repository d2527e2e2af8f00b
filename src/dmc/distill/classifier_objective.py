"""Double distillation of classifiers as a training objective (Eq. 2 and 3)."""

from __future__ import annotations

from torch import Tensor, nn

from dmc.config import LossName
from dmc.data.batch import Batch
from dmc.distill.losses import loss_named
from dmc.distill.teachers import Teachers
from dmc.models.specialist import Specialist
from dmc.training.objective import Objective


class Distillation(Objective):
    """Double distillation: the student's logits against the teachers' (Eq. 2 and 3)."""

    name = "Distillation"

    def __init__(self, student: Specialist, teachers: Teachers, loss: LossName, temperature: float | None) -> None:
        self.student, self.teachers = student, teachers
        self.distance = loss_named(loss, temperature)

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        target_NT = self.teachers.targets(batch)
        student_NT = self.student.with_module(network).logits(batch.images_N3HW)
        return {"loss": self.distance(student_NT, target_NT)}

    def require_sound(self) -> None:
        self.teachers.require_finite()
