"""What EWC, EWC++, SI, MAS, RWalk and REWC share: a quadratic penalty on weights that matter to the old classes.

    loss = cross entropy among the new classes + strength * sum of importance * (weight - old weight)^2

The form is that of the code from which the paper's numbers for four of them come; docs/benchmark.md says where it
differs. There is no factor 1/2. In training, where there are no images of old classes, only the outputs of the lesson's
own classes compete; at test time all do. The penalty's gradient is added by hand, so that trackers, which add things up
while training, see the gradients of cross entropy alone. Strength * importance is limited to 9/10 of (1 + momentum) /
learning rate, beyond which SGD diverges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from dmc.data.batch import Batch
from dmc.data.loader import open_loader
from dmc.data.sources import Source
from dmc.device import pick_device
from dmc.errors import DmcError
from dmc.methods.base import Learned, Lesson, Method, fitted, widened
from dmc.models.specialist import Specialist
from dmc.schedule import Schedule
from dmc.training.classification import Supervised

Weights = dict[str, Tensor]  # by name of the parameter
GRADIENTS_AT_ONCE = 2**28  # numbers, which take 1 GiB


class Tracker(ABC):
    """Adds something up over the steps of one lesson. Its tensors, named `PREFIX.PART.WEIGHT`, survive a kill."""

    prefix: str

    def __init__(self, module: nn.Module, notes: Mapping[str, Tensor]) -> None:
        """Start from the notes of the lesson before, grown to the module's new size with zeros."""
        self.module = module
        self.tensors: Weights = {}
        for part in self.parts():
            for name, parameter in module.named_parameters():
                key = f"{self.prefix}.{part}.{name}"
                self.tensors[key] = grown(notes[key], parameter) if key in notes else torch.zeros_like(parameter)

    @abstractmethod
    def parts(self) -> Sequence[str]:
        """Name the quantities to keep; each has a tensor for each weight."""

    def get(self, part: str) -> Weights:
        """Give one of the quantities, by name of the weight."""
        return under(f"{self.prefix}.{part}.", self.tensors)

    @abstractmethod
    def gradients_ready(self) -> None:
        """Look at the gradients before the optimizer's step."""

    @abstractmethod
    def weights_stepped(self) -> None:
        """Look at the weights after the optimizer's step."""


class Penalty:
    """A stiffness for each weight: strength * importance, up to a limit."""

    def __init__(self, importance: Weights, strength: float, limit: float) -> None:
        self.stiffness = {name: (strength * value).clamp(max=limit) for name, value in importance.items()}

    def gradient(self, name: str, distance: Tensor) -> Tensor:
        """Give the penalty's gradient where a weight tensor has moved by `distance` from its old value."""
        return 2 * self.stiffness[name] * distance


class Regularised(Supervised):
    """Cross entropy among the lesson's classes with the penalty, watched by trackers."""

    name = "Regularised"

    def __init__(
        self,
        specialist: Specialist,
        data_classes: Sequence[str],
        trackers: Sequence[Tracker] = (),
        anchor: Weights | None = None,
        penalty: Penalty | None = None,
    ) -> None:
        super().__init__(specialist, data_classes)
        self.trackers, self.anchor, self.penalty = trackers, anchor or {}, penalty

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"loss": self.among_data_classes(self.logits(network, batch), batch.labels_N)}

    def gradients_ready(self) -> None:
        for tracker in self.trackers:
            tracker.gradients_ready()
        for name, parameter in self.specialist.module.named_parameters():
            if self.penalty and parameter.grad is not None:
                anchor = self.anchor[name]
                distance = old_rows(parameter.detach(), anchor) - anchor
                old_rows(parameter.grad, anchor).add_(self.penalty.gradient(name, distance))

    def weights_stepped(self) -> None:
        for tracker in self.trackers:
            tracker.weights_stepped()

    def notes(self) -> dict[str, Tensor]:
        return {key: tensor for tracker in self.trackers for key, tensor in tracker.tensors.items()}


class ImportanceMethod(Method):
    """A method that measures how important each weight is; the penalty and the training are the same for all."""

    kinds = (Specialist,)
    least_classes = 2

    def trackers(self, module: nn.Module, notes: Mapping[str, Tensor]) -> list[Tracker]:
        """Make the trackers that watch a lesson; `notes` are those of the lesson before."""
        return []

    @abstractmethod
    def importance(self, learned: Learned, lesson: Lesson) -> Weights:
        """Measure how much each weight matters to all classes so far; called at the end of each lesson."""

    def penalty(self, notes: Mapping[str, Tensor], lesson: Lesson) -> Penalty:
        """Make the penalty from the notes of the lesson before."""
        return Penalty(under("importance.", notes), lesson.strength, stiffest(lesson.profile.specialist))

    def begin(self, first: Learned, lesson: Lesson) -> Learned:
        watched = [key for tracker in self.trackers(first.specialists[0].module, {}) for key in tracker.tensors]
        if not first.notes.keys() >= {*watched}:
            raise DmcError(f"the first model here was trained without {self.name}'s trackers: choose another folder")
        notes = {key: first.notes[key].to(pick_device()) for key in watched}
        return self.concluded(Learned([s.to(pick_device()) for s in first.specialists], notes), lesson)

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        device = pick_device()
        old, wide = (model.to(device) for model in widened(before, lesson))
        notes = {key: note.to(device) for key, note in before.notes.items()}
        objective = Regularised(
            wide,
            lesson.data.classes,
            self.trackers(wide.module, notes),
            {name: parameter.detach().clone() for name, parameter in old.module.named_parameters()},
            self.penalty(notes, lesson),
        )
        learned = fitted(wide, lesson, self.name, objective, strength=lesson.strength, method=self.name)
        return self.concluded(Learned([learned], notes | objective.notes()), lesson)

    def concluded(self, learned: Learned, lesson: Lesson) -> Learned:
        """Write down what the next lesson's penalty needs."""
        for name, value in self.importance(learned, lesson).items():
            learned.notes[f"importance.{name}"] = value
        return learned


def added_up(found: Weights, notes: Mapping[str, Tensor]) -> Weights:
    """Add importance to that of the lessons before, which is in the notes."""
    before = under("importance.", notes)
    return {name: value + grown(before[name], value) if before else value for name, value in found.items()}


def stiffest(schedule: Schedule) -> float:
    """Give the largest safe stiffness: SGD with momentum m on s x^2 converges while s < (1 + m) / learning rate."""
    return 0.9 * (1 + schedule.momentum) / schedule.lr


def under(prefix: str, notes: Mapping[str, Tensor]) -> Weights:
    """Give the notes whose names begin with a prefix, without it."""
    return {key.removeprefix(prefix): note for key, note in notes.items() if key.startswith(prefix)}


def grown(small: Tensor, like: Tensor) -> Tensor:
    """Grow a tensor to the shape of `like`: the old rows come first, the new ones are zeros."""
    large = torch.zeros_like(like)
    old_rows(large, small).copy_(small)
    return large


def old_rows(grown: Tensor, old: Tensor) -> Tensor:
    """View the part of a grown tensor that was there before: the old classes' rows of a head, else all of it."""
    return grown if grown.shape == old.shape else grown[: len(old)]


def normalised(weights: Weights) -> Weights:
    """Scale values to [0, 1], over all layers together."""
    low = min(float(w.min()) for w in weights.values())
    high = max(float(w.max()) for w in weights.values())
    return {name: (w - low) / (high - low + 1e-32) for name, w in weights.items()}


def mean_over_images(
    specialist: Specialist,
    data: Source,
    of_image: Callable[[Tensor], Tensor],
    measure: Callable[[str, Tensor], Tensor],
) -> Weights:
    """Give the mean over images of a measure of each image's own gradient.

    The gradient is that of the number that `of_image` makes of one image's logits; `measure` takes a weight's name and
    its gradients, one for each image.
    """
    parameters = {name: p.detach() for name, p in specialist.module.named_parameters()}
    buffers = dict(specialist.module.named_buffers())

    def scalar(weights: Weights, image_3HW: Tensor) -> Tensor:
        logits_1K = torch.func.functional_call(specialist.module, (weights, buffers), (image_3HW.unsqueeze(0),))
        return of_image(logits_1K[0])

    gradient = torch.func.vmap(torch.func.grad(scalar), in_dims=(None, 0), randomness="different")
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    count = 0
    specialist.module.eval()
    at_once = max(1, min(32, GRADIENTS_AT_ONCE // specialist.parameter_count))
    for batch in open_loader(data, specialist.transform).in_order(at_once):
        found = gradient(parameters, specialist.preprocessing(batch.images_N3HW.to(specialist.device)))
        for name, gradient_N in found.items():
            total[name] += measure(name, gradient_N).sum(dim=0)
        count += len(batch)
    return {name: value / count for name, value in total.items()}
