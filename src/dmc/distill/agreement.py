"""How far a student answers as its teachers do: what a user of the merged model will see, measured without labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dmc.classes import ClassUnion


@dataclass(frozen=True)
class Answers:
    """What student and teachers say about the same images."""

    student_NT: Tensor
    target_NT: Tensor  # the teachers side by side, as the student was taught
    teachers: list[Tensor]  # each teacher's own logits


@dataclass(frozen=True)
class Agreement:
    """All are shares of the images. Of lists, one number for each teacher."""

    images: int
    same: float  # the student's answer over all classes is that of the teachers side by side
    within: list[float]  # its answer among a teacher's own classes is that teacher's
    teachers_win: list[float]  # a teacher's classes win, side by side with the others'
    student_wins: list[float]  # they win in the student
    fair: list[float]  # they would win if every class won alike

    @classmethod
    def of(cls, answers: Answers, union: ClassUnion) -> Agreement:
        student_N, target_N = answers.student_NT.argmax(dim=1), answers.target_NT.argmax(dim=1)
        within = [
            float((answers.student_NT[:, list(columns)].argmax(dim=1) == logits_NK.argmax(dim=1)).double().mean())
            for columns, logits_NK in zip(union.columns, answers.teachers, strict=True)
        ]
        return cls(
            len(student_N),
            float((student_N == target_N).double().mean()),
            within,
            wins(target_N, union),
            wins(student_N, union),
            [len(columns) / len(union.names) for columns in union.columns],
        )


def wins(answers_N: Tensor, union: ClassUnion) -> list[float]:
    """How often the answer is a class that a teacher knows; a shared class counts for all who know it."""
    return [float(torch.isin(answers_N, answers_N.new_tensor(columns)).double().mean()) for columns in union.columns]
