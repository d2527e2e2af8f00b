"""EWC++: a running average of the Fisher diagonal, kept while training.

Chaudhry et al., "Riemannian Walk for Incremental Learning" (ECCV 2018), section 4: F <- a F_now + (1 - a) F with
a = 0.9, where F_now is the mean of squared gradients over the last 50 steps; the diagonal is scaled to [0, 1].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from dmc.methods.base import Learned, Lesson
from dmc.methods.importance import ImportanceMethod, Tracker, Weights, normalised, under

DECAY = 0.9  # the weight a of the newest interval
INTERVAL = 50  # steps


class FisherTracker(Tracker):
    """The running average of the Fisher diagonal, and the sum of squared gradients since its last update."""

    def __init__(self, module: nn.Module, notes: Mapping[str, Tensor], prefix: str = "fisher") -> None:
        self.prefix = prefix
        super().__init__(module, {key: note for key, note in notes.items() if key.startswith(f"{prefix}.running.")})
        self.tensors[f"{prefix}.steps"] = torch.zeros(1)

    @property
    def at_interval(self) -> bool:
        """Whether the running average was updated in this step."""
        return int(self.tensors[f"{self.prefix}.steps"]) % INTERVAL == 0

    def parts(self) -> Sequence[str]:
        return ("running", "recent")

    def gradients_ready(self) -> None:
        running, recent = self.get("running"), self.get("recent")
        self.tensors[f"{self.prefix}.steps"] += 1
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None:
                recent[name] += parameter.grad.square()
        if self.at_interval:
            for name in running:
                running[name].mul_(1 - DECAY).add_(recent[name], alpha=DECAY / INTERVAL)
                recent[name].zero_()

    def weights_stepped(self) -> None:
        pass


def diagonal(notes: Mapping[str, Tensor], prefix: str = "fisher") -> Weights:
    """Give the running average, with the steps since its last update weighed by their share of an interval."""
    running, recent = under(f"{prefix}.running.", notes), under(f"{prefix}.recent.", notes)
    pending = int(notes[f"{prefix}.steps"]) % INTERVAL
    if not pending:
        return running
    weight = DECAY * pending / INTERVAL
    return {name: (1 - weight) * running[name] + weight * recent[name] / pending for name in running}


class EWCPlusPlus(ImportanceMethod):
    name, title = "ewc++", "EWC++"
    strength = 10.0

    def trackers(self, module: nn.Module, notes: Mapping[str, Tensor]) -> list[Tracker]:
        return [FisherTracker(module, notes)]

    def importance(self, learned: Learned, lesson: Lesson) -> Weights:
        fisher = diagonal(learned.notes)
        learned.notes |= {f"fisher.running.{name}": value for name, value in fisher.items()}
        return normalised(fisher)
