"""Class-incremental metrics of a stream, all computed from the confusion matrices after each group.

`confusion[i][a, b]` counts test images of class a (in order of arrival) that the model after group i calls b.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StreamScores:
    """What is reported of a stream. Accuracies are fractions.

    - `accuracy[i]`: top-1 over all classes so far, after group i.
    - `per_group[i][j]`: the same, for images of group j's classes alone; every class seen so far competes.
    - `average_incremental`: the mean of `accuracy` without the first group.
    - `forgetting`: the mean over old groups of (best accuracy it ever had before the last group - accuracy now).
    - `old_new_gap`: mean accuracy of the old groups minus that of the last.
    """

    classes: list[int]  # how many there are after each group
    accuracy: list[float]
    per_group: list[list[float]]

    def until(self, i: int) -> StreamScores:
        """Give the scores as they were after group i."""
        return StreamScores(self.classes[: i + 1], self.accuracy[: i + 1], self.per_group[: i + 1])

    @property
    def final(self) -> float:
        """The accuracy over all classes after the last group."""
        return self.accuracy[-1]

    @property
    def average_incremental(self) -> float:
        return float(np.mean(self.accuracy[1:])) if len(self.accuracy) > 1 else self.accuracy[0]

    @property
    def forgetting(self) -> float:
        last = len(self.per_group) - 1
        drops = [max(self.per_group[i][j] for i in range(j, last)) - self.per_group[last][j] for j in range(last)]
        return float(np.mean(drops)) if drops else 0.0

    @property
    def old(self) -> float:
        """The mean accuracy of all groups but the last, at the end."""
        return float(np.mean(self.per_group[-1][:-1] or self.per_group[-1]))

    @property
    def new(self) -> float:
        """The accuracy of the last group, at the end."""
        return self.per_group[-1][-1]

    @property
    def old_new_gap(self) -> float:
        return self.old - self.new

    def intransigence(self, joint: StreamScores) -> float:
        """Give the mean over later groups of (the joint model's accuracy on the newest group - this model's on it)."""
        later = range(1, len(self.per_group))
        return float(np.mean([joint.per_group[i][i] - self.per_group[i][i] for i in later])) if later else 0.0


def scores(confusions: Sequence[Matrix], members: Sequence[Sequence[int]]) -> StreamScores:
    """Compute a stream's scores; `members[j]` are the rows of group j's classes."""
    accuracy, per_group = [], []
    for i, matrix in enumerate(confusions):
        right, total = np.diag(matrix), matrix.sum(axis=1)
        accuracy.append(float(right.sum() / total.sum()))
        rows = [list(members[j]) for j in range(i + 1)]
        per_group.append([float(right[r].sum() / total[r].sum()) for r in rows])
    return StreamScores([len(matrix) for matrix in confusions], accuracy, per_group)
