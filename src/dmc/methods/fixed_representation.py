"""Fixed Representation: after the first group, train only the weight vectors of new classes.

Section 4.2.2 of the paper: the network is frozen except for the classification layer, and there the vectors of
classes that have been learned are frozen as well. The loss is among the new classes only: with frozen vectors of old
classes and without their images, cross entropy over all classes would push the new outputs up without end, and the
method would forget, while the paper (Fig. 4d) shows that it prefers the first group.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dmc.data.batch import Batch
from dmc.device import pick_device
from dmc.methods.base import Learned, Lesson, Method, fitted, widened
from dmc.models.specialist import Specialist
from dmc.training.classification import Supervised


class NewRowsOnly(Supervised):
    """Cross entropy that trains only the new rows of the head; all else stays, batch statistics too."""

    name = "NewRowsOnly"

    def __init__(self, wide: Specialist, old: Specialist, data_classes: tuple[str, ...]) -> None:
        super().__init__(wide, data_classes)
        before = dict(old.module.named_parameters())
        self.frozen_rows: dict[str, Tensor] = {}
        for name, parameter in wide.module.named_parameters():
            grown = parameter.shape != before[name].shape
            parameter.requires_grad_(grown)
            if grown:
                self.frozen_rows[name] = before[name].detach().clone().to(pick_device())  # where the others are trained

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        network.eval()  # batch norm keeps the statistics of the first group
        return {"loss": self.among_data_classes(self.logits(network, batch), batch.labels_N)}

    def weights_stepped(self) -> None:
        parameters = dict(self.specialist.module.named_parameters())
        with torch.no_grad():  # weight decay and momentum move rows even without a gradient
            for name, rows in self.frozen_rows.items():
                parameters[name][: len(rows)] = rows


class FixedRepresentation(Method):
    name, title = "fixed-representation", "Fixed Representation"
    kinds = (Specialist,)
    least_classes = 2

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        old, wide = widened(before, lesson)
        learned = fitted(wide, lesson, "head", NewRowsOnly(wide, old, lesson.data.classes))
        learned.module.requires_grad_(True)
        return Learned([learned])
