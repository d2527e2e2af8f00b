"""Class-incremental metrics, all computed from what was measured after each group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from dmc.errors import DmcError, reason_of
from dmc.files import regular_size, replacing

Matrix = npt.NDArray[np.int64]
Groups = Sequence[Sequence[str]]  # the class names of each group


class Measured(ABC):
    """A model's scores on the classes so far, as fractions. A class on which it was not tested has NaN."""

    file: ClassVar[str]  # its name in a group's folder; a group that has it is finished

    @property
    @abstractmethod
    def per_class(self) -> Mapping[str, float]:
        """The score of each class."""

    @abstractmethod
    def of(self, names: Sequence[str]) -> float:
        """Give the score of some classes together."""

    @property
    def details(self) -> Mapping[str, float]:
        """What else was measured over all classes, by name."""
        return {}

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write `file` into a group's folder."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, names: Sequence[str]) -> Self:
        """Read what was saved; `names` are the classes in order of arrival."""


@dataclass(frozen=True)
class Confusion(Measured):
    """A confusion matrix: `matrix[a, b]` counts test images of class a that the model calls b.

    Classes are in order of arrival. Scores are top-1 accuracies; every class so far competes.
    """

    names: Sequence[str]
    matrix: Matrix
    file = "confusion.npy"

    @property
    def per_class(self) -> dict[str, float]:
        return {name: self.of([name]) for name in self.names}

    def of(self, names: Sequence[str]) -> float:
        rows = [self.names.index(name) for name in names]
        right, total = np.diag(self.matrix)[rows], self.matrix.sum(axis=1)[rows]
        return float(right.sum() / total.sum()) if total.all() else float("nan")

    def save(self, folder: Path) -> None:
        with replacing(folder / self.file) as path, path.open("wb") as file:
            np.save(file, self.matrix)

    @classmethod
    def load(cls, folder: Path, names: Sequence[str]) -> Self:
        path = folder / cls.file
        try:
            regular_size(path)
            matrix: Matrix = np.array(np.load(path, mmap_mode="r"))  # mapped: a header that promises more is refused
        except Exception as error:  # a damaged file makes the reader raise anything
            raise DmcError(f"{path} is damaged, so remove it and run again: {reason_of(error)}") from None
        if matrix.shape != (len(names),) * 2 or matrix.dtype.kind not in "iu" or matrix.min(initial=0) < 0:
            raise DmcError(f"{path} is damaged, so remove it and run again: it is no table of {len(names)} classes")
        return cls(names, matrix)


@dataclass(frozen=True)
class StreamScores:
    """The scores of one cell: accuracies of classifiers, mean average precisions of detectors, as fractions.

    - `accuracy[i]`: over all classes so far, after group i.
    - `per_group[i][j]`: the same, of group j's classes alone; every class seen so far competes.
    - `average_incremental`: the mean of `accuracy` without the first group.
    - `forgetting`: the mean over old groups of (its best accuracy before the last group - its accuracy at the end).
    - `old_new_gap`: mean accuracy of the old groups minus that of the last.
    - `per_class`, `details`: the final model's scores of each class, and what else was measured.
    """

    classes: list[int]  # how many there are after each group
    accuracy: list[float]
    per_group: list[list[float]]
    per_class: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, float] = field(default_factory=dict)

    def until(self, i: int) -> StreamScores:
        """Give the scores as they were after group i."""
        return StreamScores(self.classes[: i + 1], self.accuracy[: i + 1], self.per_group[: i + 1])

    @property
    def final(self) -> float:
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
        """Give the mean over groups after the first of (joint model's accuracy on the newest group - this model's)."""
        later = range(1, len(self.per_group))
        return float(np.mean([joint.per_group[i][i] - self.per_group[i][i] for i in later])) if later else 0.0


def in_order_of_arrival(groups: Groups) -> tuple[str, ...]:
    """Name the classes of all groups once each, by first arrival; overlapping groups share some."""
    return tuple(dict.fromkeys(name for group in groups for name in group))


def scores(after: Sequence[Measured], groups: Groups) -> StreamScores:
    """Compute the scores of a cell from what was measured after each group."""
    so_far = [in_order_of_arrival(groups[: i + 1]) for i in range(len(after))]
    return StreamScores(
        [len(names) for names in so_far],
        [measured.of(names) for measured, names in zip(after, so_far, strict=True)],
        [[measured.of(group) for group in groups[: i + 1]] for i, measured in enumerate(after)],
        after[-1].per_class,
        after[-1].details,
    )
