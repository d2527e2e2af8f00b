"""iCaRL: exemplars chosen by herding, distillation with sigmoid outputs, nearest mean of exemplars at test time.

Rebuffi et al., "iCaRL: Incremental Classifier and Representation Learning" (CVPR 2017), Algorithms 1 to 5, K = 2000.
The first group's model has sigmoid outputs, too, trained with binary cross entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dmc.classes import Classes
from dmc.data.batch import Batch
from dmc.data.decode import CenterCrop
from dmc.data.subsets import JoinedImages
from dmc.device import index, pick_device
from dmc.methods import exemplars
from dmc.methods.base import Learned, Lesson, Method, fitted, model_with_sigmoids, widened
from dmc.models.specialist import Specialist
from dmc.training.classification import Supervised


class SigmoidDistillation(Supervised):
    """Algorithm 3: binary cross entropy with the label for new classes and the old network's output for old ones."""

    name = "SigmoidDistillation"

    def __init__(self, wide: Specialist, old: Specialist, data_classes: Sequence[str]) -> None:
        super().__init__(wide, data_classes)
        self.old = old.to(pick_device())

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        logits_NT = self.logits(network, batch)
        wanted_N = index(self.column_of_label, logits_NT.device)[batch.labels_N]
        target_NT = F.one_hot(wanted_N, logits_NT.shape[1]).to(logits_NT)
        with torch.no_grad():
            target_NT[:, : len(self.old.names)] = self.old.logits(batch.images_N3HW).sigmoid()
        summed = F.binary_cross_entropy_with_logits(logits_NT, target_NT, reduction="sum")
        return {"loss": summed / len(batch)}


class NearestMean:
    """Algorithm 1: answers with the class whose mean of exemplars is nearest in feature space."""

    def __init__(self, model: Specialist, kept: dict[str, Tensor]) -> None:
        self.model, self.name, self.classes = model, model.name, Classes.of(kept)
        means = [exemplars.unit_features(model, images).mean(dim=0) for images in kept.values()]
        self.means_TD = F.normalize(torch.stack(means))

    @property
    def transform(self) -> CenterCrop:
        return self.model.transform

    def to(self, device: torch.device) -> NearestMean:
        self.model.to(device)
        return self

    def logits(self, images_N3HW: Tensor) -> Tensor:
        """Give minus the distance to each class's mean, so that the nearest class scores highest."""
        return -torch.cdist(exemplars.unit_features(self.model, images_N3HW), self.means_TD)


class ICaRL(Method):
    name, title = "icarl", "iCaRL"
    kinds = (Specialist,)
    memory = exemplars.BUDGET

    def begin(self, first: Learned, lesson: Lesson) -> Learned:
        return self._with_exemplars(model_with_sigmoids(lesson), {}, lesson)

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        (old, wide), kept = widened(before, lesson), exemplars.of(before.notes)
        data = JoinedImages(lesson.data, exemplars.as_source(kept))
        learned = fitted(wide, replace(lesson, data=data), "icarl", SigmoidDistillation(wide, old, data.classes))
        return self._with_exemplars(learned, kept, lesson)

    def _with_exemplars(self, model: Specialist, kept: dict[str, Tensor], lesson: Lesson) -> Learned:
        """Keep K / t images for each of t classes (Algorithms 4 and 5); herding has put the best first."""
        per_class = self.memory // len(model.names)
        for name, images in exemplars.by_class(lesson.data, model).items():
            kept[name] = exemplars.herded(images, per_class, model)
        return Learned([model], exemplars.as_notes(kept, per_class))

    def predictor(self, learned: Learned) -> NearestMean:
        return NearestMean(learned.specialists[0], exemplars.of(learned.notes))
