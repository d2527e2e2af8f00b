"""RWalk: EWC++'s Fisher plus a path integral measured in the Riemannian distance that the Fisher defines.

Chaudhry et al., "Riemannian Walk for Incremental Learning" (ECCV 2018), section 4: over every 50 steps the score grows
by (fall of the loss) / (1/2 F step^2 + epsilon), where positive; scores of successive lessons are averaged; Fisher
and score are both scaled to [0, 1] and added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from dmc.methods.base import Learned, Lesson
from dmc.methods.ewc_plus_plus import INTERVAL, FisherTracker
from dmc.methods.importance import ImportanceMethod, Tracker, Weights, grown, normalised
from dmc.methods.si import XI, PathTracker


class WalkTracker(PathTracker):
    """Like SI's path, but cut into intervals, each divided by its Riemannian length."""

    prefix = "walk"

    def __init__(self, module: nn.Module, notes: Mapping[str, Tensor], fisher: FisherTracker) -> None:
        super().__init__(module, notes)
        self.fisher = fisher

    def parts(self) -> Sequence[str]:
        return ("omega", "start", "score")

    def weights_stepped(self) -> None:
        super().weights_stepped()
        if int(self.fisher.tensors["fisher.steps"]) % INTERVAL:
            return
        omega, start, score, fisher = (
            self.get("omega"),
            self.get("start"),
            self.get("score"),
            self.fisher.get("running"),
        )
        for name, parameter in self.module.named_parameters():
            length = 0.5 * fisher[name] * (parameter.detach() - start[name]).square() + XI
            score[name] += (omega[name] / length).relu()
            omega[name].zero_()
            start[name].copy_(parameter.detach())


class RWalk(ImportanceMethod):
    name, title = "rwalk", "RWalk"
    strength = 1.0

    def trackers(self, module: nn.Module, notes: Mapping[str, Tensor]) -> list[Tracker]:
        fisher = FisherTracker(module, notes)
        return [fisher, WalkTracker(module, notes, fisher)]

    def importance(self, learned: Learned, lesson: Lesson) -> Weights:
        module = learned.specialists[0].module
        fisher = normalised(FisherTracker(module, learned.notes).diagonal())
        scores = {}
        for name, _ in module.named_parameters():
            now = learned.notes[f"walk.score.{name}"]
            before = learned.notes.get(f"walk.average.{name}")
            scores[name] = now if before is None else (now + grown(before, now)) / 2
            learned.notes[f"walk.average.{name}"] = scores[name]
        score = normalised(scores)
        return {name: fisher[name] + score[name] for name in fisher}
