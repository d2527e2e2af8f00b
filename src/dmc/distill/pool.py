"""How well unlabeled images will teach, told from what the teachers answer about them. Not in the paper.

A student learns a class from images in which its teacher sees that class, however wrongly. Images that all look alike
to a teacher (handwritten digits, noise) get one answer, and the student learns little else. So a pool is as good as
the variety of the answers that its least curious teacher gives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dmc.classes import ClassUnion

SURE = 0.5  # an image suggests a class to which a teacher gives a higher probability
ENOUGH = 10  # images that suggest a class; with fewer, the student will hardly know it
PART = 0.25  # of an even share of the images, which is enough where classes are many and the images looked at few
GOOD, WEAK = 0.85, 0.6  # varieties from which on images will do, and below which they will not


@dataclass(frozen=True)
class Pool:
    """What teachers see in some auxiliary images."""

    images: int
    varieties: list[float]  # of each teacher's answers: 1 if all of its classes are answered equally often, 0 if one is
    suggested: dict[str, int]  # how many images suggest each class

    @classmethod
    def of(cls, probabilities: Sequence[Tensor], union: ClassUnion, competing: bool = True) -> Pool:
        """Count what teachers answer; of those who share a class, the one who sees it more often counts.

        Where classes do not compete (sigmoid outputs), an image that suggests none of them is no answer.
        """
        suggested = dict.fromkeys(union.names, 0)
        varieties = []
        for p_NK, columns in zip(probabilities, union.columns, strict=True):
            for column, count in zip(columns, (p_NK > SURE).sum(dim=0).tolist(), strict=True):
                suggested[union.names[column]] = max(suggested[union.names[column]], count)
            varieties.append(variety(p_NK if competing else p_NK[p_NK.amax(dim=1) > SURE]))
        return cls(len(probabilities[0]), varieties, suggested)

    @property
    def score(self) -> float:
        """The variety of the answers of the teacher with the least."""
        return min(self.varieties)

    @property
    def rare(self) -> list[str]:
        """The classes that too few images suggest, the rarest first; none where the images are too few to tell."""
        enough = min(ENOUGH, PART * self.images / len(self.suggested))
        rare = [name for name, count in self.suggested.items() if count < enough and enough >= 1]
        return sorted(rare, key=lambda name: self.suggested[name])


def variety(p_NK: Tensor) -> float:
    """Give the entropy of a teacher's answers over the images, relative to its maximum; 0 without any answer."""
    count, classes = p_NK.shape
    most = math.log(min(count, classes)) if count else 0.0
    shares_K = p_NK.argmax(dim=1).bincount(minlength=classes).double() / max(count, 1)
    return float(torch.special.entr(shares_K).sum() / most) if most else float(count > 0 and classes == 1)


def verdict(score: float) -> str:
    """Say in words how well images with this score will teach."""
    if score >= GOOD:
        return "these images will do"
    return "expect a student somewhat weaker than its teachers" if score >= WEAK else "expect a weak student"
