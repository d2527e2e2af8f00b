"""How often a student answers as its teachers do, measured without labels: what a user of the merged model will see."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dmc.classes import ClassUnion


@dataclass(frozen=True)
class Answers:
    """The logits of student and teachers on the same images."""

    student_NT: Tensor
    target_NT: Tensor  # of the teachers side by side, as the student was taught
    teachers: list[Tensor]  # each teacher's own logits


@dataclass(frozen=True)
class Agreement:
    """How often a student agrees with its teachers, as shares of the images. A list has a number for each teacher."""

    images: int
    same: float  # where the student's top class is that of the teachers side by side
    within: list[float]  # where, among a teacher's own classes, the student's top class is the teacher's
    teachers_win: list[float]  # where the top class of the teachers side by side is one of this teacher's
    student_wins: list[float]  # where the student's top class is one of this teacher's
    fair: list[float]  # which a teacher's classes would win if every class won equally often
    answers: dict[str, tuple[int, int]]  # how often each class is the top one, of the teachers side by side, student

    @classmethod
    def of(cls, answers: Answers, union: ClassUnion) -> Agreement:
        """Count how often student and teachers agree."""
        student_N, target_N = answers.student_NT.argmax(dim=1), answers.target_NT.argmax(dim=1)
        within = [
            float((answers.student_NT[:, list(columns)].argmax(dim=1) == logits_NK.argmax(dim=1)).double().mean())
            for columns, logits_NK in zip(union.columns, answers.teachers, strict=True)
        ]
        of_teachers, of_student = (found_N.bincount(minlength=len(union.names)) for found_N in (target_N, student_N))
        return cls(
            len(student_N),
            float((student_N == target_N).double().mean()),
            within,
            wins(target_N, union),
            wins(student_N, union),
            [len(columns) / len(union.names) for columns in union.columns],
            {name: (int(of_teachers[i]), int(of_student[i])) for i, name in enumerate(union.names)},
        )


def wins(answers_N: Tensor, union: ClassUnion) -> list[float]:
    """Give, for each teacher, how often the top class is one of its own; a shared class counts for all that know it."""
    return [float(torch.isin(answers_N, answers_N.new_tensor(columns)).double().mean()) for columns in union.columns]
