"""RWalk: EWC++'s Fisher plus a path integral measured in the Riemannian distance that the Fisher defines.

Chaudhry et al., "Riemannian Walk for Incremental Learning" (ECCV 2018), section 4: over every 50 steps the score grows
by (fall of the loss) / (1/2 F step^2 + epsilon), where positive. Scores of successive lessons are averaged. Fisher
and score are both scaled to [0, 1] and added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from dmc.methods.base import Learned, Lesson
from dmc.methods.ewc_plus_plus import FisherTracker, diagonal
from dmc.methods.importance import ImportanceMethod, Tracker, Weights, grown, normalised
from dmc.methods.si import XI, PathTracker

FISHER = "walk.fisher"  # a Fisher of its own, beside EWC++'s


class WalkTracker(PathTracker):
    """SI's path, cut into intervals that are each divided by their Riemannian length; for that it tracks the Fisher."""

    prefix = "walk"

    def __init__(self, module: nn.Module, notes: Mapping[str, Tensor]) -> None:
        super().__init__(module, notes)
        self.fisher = FisherTracker(module, notes, FISHER)
        self.tensors |= self.fisher.tensors

    def parts(self) -> Sequence[str]:
        return ("omega", "start", "score")

    def gradients_ready(self) -> None:
        super().gradients_ready()
        self.fisher.gradients_ready()

    def weights_stepped(self) -> None:
        super().weights_stepped()
        if not self.fisher.at_interval:
            return
        omega, start, score = self.get("omega"), self.get("start"), self.get("score")
        fisher = self.fisher.get("running")
        for name, parameter in self.module.named_parameters():
            score[name] += gain(omega[name], fisher[name], parameter.detach() - start[name])
            omega[name].zero_()
            start[name].copy_(parameter.detach())


def gain(omega: Tensor, fisher: Tensor, distance: Tensor) -> Tensor:
    """Give what an interval adds to the score: how far the loss fell, divided by the path's Riemannian length."""
    return (omega / (0.5 * fisher * distance.square() + XI)).relu()


class RWalk(ImportanceMethod):
    name, title = "rwalk", "RWalk"
    strength = 1.0

    def trackers(self, module: nn.Module, notes: Mapping[str, Tensor]) -> list[Tracker]:
        return [WalkTracker(module, notes)]

    def importance(self, learned: Learned, lesson: Lesson) -> Weights:
        notes, scores = learned.notes, {}
        fisher = diagonal(notes, FISHER)
        for name, parameter in learned.specialists[0].module.named_parameters():
            moved = parameter.detach() - notes[f"walk.start.{name}"]  # since the last whole interval
            now = notes[f"walk.score.{name}"] + gain(notes[f"walk.omega.{name}"], fisher[name], moved)
            before = notes.get(f"walk.average.{name}")
            scores[name] = now if before is None else (now + grown(before, now)) / 2
            notes |= {f"walk.average.{name}": scores[name], f"{FISHER}.running.{name}": fisher[name]}
        scaled_fisher, scaled_scores = normalised(fisher), normalised(scores)
        return {name: scaled_fisher[name] + scaled_scores[name] for name in fisher}
