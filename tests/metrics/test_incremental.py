"""Metrics and class orders against numbers worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from dmc.bench.streams import class_order, grouped
from dmc.metrics.average_precision import Precisions
from dmc.metrics.incremental import Confusion, Matrix, StreamScores, scores

# Three groups (2, 1 and 1 classes), ten test images a class.
GROUPS = ["ab", "c", "d"]
AFTER_1 = np.array([[9, 1], [3, 7]])
AFTER_2 = np.array([[6, 0, 4], [2, 4, 4], [0, 0, 10]])
AFTER_3 = np.array([[5, 0, 0, 5], [1, 2, 0, 7], [1, 1, 4, 4], [0, 0, 2, 8]])
JOINT_3 = np.array([[9, 1, 0, 0], [1, 9, 0, 0], [0, 0, 9, 1], [0, 0, 1, 9]])


def summed(*after: Matrix) -> StreamScores:
    return scores([Confusion("abcd"[: len(matrix)], matrix) for matrix in after], GROUPS)


def test_scores_of_a_stream() -> None:
    found = summed(AFTER_1, AFTER_2, AFTER_3)
    assert found.accuracy == pytest.approx([16 / 20, 20 / 30, 19 / 40])
    assert found.per_group == [pytest.approx([0.8]), pytest.approx([0.5, 1.0]), pytest.approx([0.35, 0.4, 0.8])]
    assert found.final == pytest.approx(0.475)
    assert found.average_incremental == pytest.approx((20 / 30 + 19 / 40) / 2)  # the first group does not count
    assert found.forgetting == pytest.approx(((0.8 - 0.35) + (1.0 - 0.4)) / 2)
    assert found.old_new_gap == pytest.approx((0.35 + 0.4) / 2 - 0.8)
    assert found.per_class == pytest.approx({"a": 0.5, "b": 0.2, "c": 0.4, "d": 0.8})


def test_forgetting_is_about_what_was_known_before_the_last_group() -> None:
    """a and b come back at the end: 0.8 and then 0.5 were all they had before it, so they are forgotten by -0.15; c
    falls from 1 to 0.9. The newest group has nothing to forget, and is not counted as a group that forgot nothing."""
    last = np.array([[10, 0, 0, 0], [0, 9, 1, 0], [0, 1, 9, 0], [0, 0, 5, 5]])
    found = summed(AFTER_1, AFTER_2, last)
    assert found.per_group[-1] == pytest.approx([0.95, 0.9, 0.5])
    assert found.forgetting == pytest.approx((-0.15 + 0.1) / 2)
    assert found.until(1).forgetting == pytest.approx(0.8 - 0.5)
    assert found.until(0).forgetting == 0


def test_intransigence_compares_the_newest_group_with_joint_training() -> None:
    found = summed(AFTER_1, AFTER_2, AFTER_3)
    joint = summed(AFTER_1, JOINT_3[:3, :3], JOINT_3)
    assert joint.per_group[1][1] == 1.0  # 9 of the 9 that are left in the cut matrix
    assert found.intransigence(joint) == pytest.approx(((1.0 - 1.0) + (0.9 - 0.8)) / 2)


def test_classes_that_nobody_asked_about_have_no_score(tmp_path: Path) -> None:
    """Of three classes only a was tested; of detectors b as well, of which there are no objects."""
    counts = Confusion("abc", np.array([[3, 0, 1], [0, 0, 0], [0, 0, 0]]))
    found = Precisions({"a": 0.75, "b": math.nan}, {"COCO AP50": math.nan})
    for measured in (counts, found):
        measured.save(tmp_path)
        again = type(measured).load(tmp_path, "abc")
        assert again.of("a") == 0.75
        assert math.isnan(again.of("ac"))
    assert (found.of("ab"), math.isnan(again.details["COCO AP50"])) == (0.75, True)
    old = scores([counts, counts], ["a", "bc"])
    assert (old.old, math.isnan(old.new), math.isnan(old.final)) == (0.75, True, True)


def test_order_0_is_icarls() -> None:
    """The list that later work copies as "iCaRL's class order"."""
    found = class_order([str(i) for i in range(100)], 0)
    assert " ".join(found) == (
        "87 0 52 58 44 91 68 97 51 15 94 92 10 72 49 78 61 14 8 86 84 96 18 24 32 45 88 11 4 67 69 66 77 47 "
        "79 93 29 50 57 83 17 81 41 12 37 59 25 20 80 73 1 28 6 46 62 82 53 9 31 75 38 63 33 74 27 22 36 3 16 "
        "21 60 19 70 90 89 43 5 42 65 76 40 30 23 85 2 95 56 48 71 64 98 13 99 7 34 55 54 26 35 39"
    )
    assert class_order("abcdef", 1) != class_order("abcdef", 2)
    assert sorted(class_order("abcdef", 3)) == list("abcdef")


def test_the_last_group_has_what_is_left() -> None:
    assert grouped("abcde", 2) == (("a", "b"), ("c", "d"), ("e",))
