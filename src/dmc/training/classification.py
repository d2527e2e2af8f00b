"""Train a classifier on labeled images."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from dmc.data.batch import Batch
from dmc.device import index
from dmc.models.specialist import Specialist
from dmc.training.objective import Objective


class Supervised(Objective):
    """Cross entropy for softmax outputs, binary cross entropy for sigmoid ones."""

    name = "Supervised"

    def __init__(self, specialist: Specialist, data_classes: Sequence[str]) -> None:
        self.specialist = specialist
        self.column_of_label = tuple(specialist.classes.require(name) for name in data_classes)

    def logits(self, network: nn.Module, batch: Batch) -> Tensor:
        """Give the network's logits of a batch, for the specialist's classes."""
        return self.specialist.with_module(network).logits(batch.images_N3HW)

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"loss": self.classification(self.logits(network, batch), batch.labels_N)}

    def among_data_classes(self, logits_NK: Tensor, labels_N: Tensor) -> Tensor:
        """Compute the cross entropy in which only the classes of the data compete, as if in a head of their own."""
        return F.cross_entropy(logits_NK[:, index(self.column_of_label, logits_NK.device)], labels_N)

    def classification(self, logits_NK: Tensor, labels_N: Tensor) -> Tensor:
        """Compute the loss in which all of the specialist's classes compete; labels are those of the data."""
        wanted_N = index(self.column_of_label, logits_NK.device)[labels_N]
        if self.specialist.output == "softmax":
            return F.cross_entropy(logits_NK, wanted_N)
        wanted_NK = F.one_hot(wanted_N, logits_NK.shape[1]).to(logits_NK)
        return F.binary_cross_entropy_with_logits(logits_NK, wanted_NK)
