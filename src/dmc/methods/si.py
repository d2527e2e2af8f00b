"""SI: importance is how much a weight's path through training lowered the loss.

Zenke et al., "Continual Learning Through Synaptic Intelligence" (ICML 2017): omega adds up -gradient * step (Eq. 3);
at the end of a lesson the importance grows by omega / (distance^2 + xi) (Eq. 5), where positive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from dmc.methods.base import Learned, Lesson
from dmc.methods.importance import ImportanceMethod, Tracker, Weights, added_up

XI = 1e-3  # keeps Eq. 5 finite where a weight did not move


class PathTracker(Tracker):
    """Adds up `omega` over a lesson, and keeps the weights that the lesson started from."""

    prefix = "path"

    def __init__(self, module: nn.Module, notes: Mapping[str, Tensor]) -> None:
        super().__init__(module, {})  # every lesson has a path of its own
        for name, value in self.get("start").items():
            value.copy_(module.get_parameter(name).detach())

    def parts(self) -> Sequence[str]:
        return ("omega", "start")

    def gradients_ready(self) -> None:
        self.before = {name: p.detach().clone() for name, p in self.module.named_parameters()}
        self.gradient = {name: p.grad.clone() for name, p in self.module.named_parameters() if p.grad is not None}

    def weights_stepped(self) -> None:
        omega = self.get("omega")
        for name, gradient in self.gradient.items():
            omega[name] -= gradient * (self.module.get_parameter(name).detach() - self.before[name])


class SI(ImportanceMethod):
    name, title = "si", "SI"
    strength = 0.05

    def trackers(self, module: nn.Module, notes: Mapping[str, Tensor]) -> list[Tracker]:
        return [PathTracker(module, notes)]

    def importance(self, learned: Learned, lesson: Lesson) -> Weights:
        result = {}
        for name, parameter in learned.specialists[0].module.named_parameters():
            omega, start = learned.notes[f"path.omega.{name}"], learned.notes[f"path.start.{name}"]
            result[name] = (omega / ((parameter.detach() - start).square() + XI)).relu()
        return added_up(result, learned.notes)
