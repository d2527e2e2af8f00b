"""VOC's average precision against cases worked out by hand, and against a second, slower implementation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dmc.data.annotations import Objects
from dmc.metrics.average_precision import Detections, average_precision, best_precision, overlaps, precision_recall

Boxes = list[tuple[float, float, float, float]]


def truth(boxes: Boxes, difficult: list[bool] | None = None, labels: list[int] | None = None) -> Objects:
    return Objects(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(labels or [0] * len(boxes), np.int64),
        np.array(difficult or [False] * len(boxes), bool),
        100,
        100,
    )


def found(boxes: Boxes, scores: list[float], labels: list[int] | None = None) -> Detections:
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(scores, np.float32),
        np.array(labels or [0] * len(boxes), np.int64),
    )


A, B, FAR = (0.0, 0.0, 10.0, 10.0), (20.0, 20.0, 30.0, 30.0), (60.0, 60.0, 70.0, 70.0)


def test_a_case_by_hand() -> None:
    """Detections are right, wrong, right, and find two of four objects: recalls 1/4, 1/4, 2/4, precisions 1, 1/2, 2/3.

    11 points: recalls 0, 0.1, 0.2 see 1; 0.3, 0.4, 0.5 see 2/3; the rest 0. Area: 1/4 * 1 + 1/4 * 2/3.
    """
    known = [truth([A, B, (40, 40, 50, 50), (80, 80, 90, 90)])]
    result = average_precision([found([A, FAR, B], [0.9, 0.8, 0.7])], known, 0)
    assert result.eleven_points == pytest.approx((3 * 1 + 3 * 2 / 3) / 11)
    assert result.area == pytest.approx(1 / 4 + 1 / 4 * 2 / 3)
    assert result.objects == 4
    curve = precision_recall([found([A, FAR, B], [0.9, 0.8, 0.7])], known, 0)
    assert curve.recall.tolist() == [1 / 4, 1 / 4, 2 / 4]
    assert curve.precision.tolist() == pytest.approx([1, 1 / 2, 2 / 3])
    assert [best_precision(curve, recall) for recall in (0, 0.25, 0.3, 0.5)] == pytest.approx([1, 1, 2 / 3, 2 / 3])
    assert best_precision(curve, 0.51) is None


def test_the_second_sighting_of_an_object_is_wrong() -> None:
    """The best score comes first, whatever the order in the list; a false alarm after full recall costs nothing."""
    assert average_precision([found([A, A], [0.3, 0.9])], [truth([A])], 0).area == 1.0
    two = average_precision([found([A, A, B], [0.9, 0.8, 0.7])], [truth([A, B])], 0)
    assert two.area == pytest.approx(1 / 2 + 1 / 2 * 2 / 3)


def test_difficult_objects_count_neither_way() -> None:
    known = [truth([A, B], [False, True])]
    assert average_precision([found([B, B, A], [0.9, 0.8, 0.7])], known, 0) == (1.0, 1.0, 1)
    assert average_precision([found([A], [0.9])], known, 0) == (1.0, 1.0, 1)  # nobody has to find them


def test_half_an_overlap_is_enough_and_less_is_not() -> None:
    """In ten rows, VOC's pixels 1 to 10 and 1 to 5 have 50 of 100 pixels in common, by the +1 convention."""
    whole, half = (0.0, 0.0, 10.0, 10.0), (0.0, 0.0, 5.0, 10.0)
    assert overlaps(np.array([whole], np.float32), np.array([half], np.float32))[0, 0] == 0.5
    assert average_precision([found([half], [0.9])], [truth([whole])], 0).area == 1.0
    assert average_precision([found([(0, 0, 4.99, 10)], [0.9])], [truth([whole])], 0).area == 0.0


def test_other_images_and_classes_do_not_mix() -> None:
    known = [truth([A]), truth([B], labels=[1])]
    answers = [found([A, B], [0.9, 0.8], [1, 0]), found([B], [0.7], [1])]
    assert average_precision(answers, known, 0).area == 0.0
    assert average_precision(answers, known, 1) == (0.5, 0.5, 1)
    assert math.isnan(average_precision(answers, known, 2).area)


def test_empty_images_and_no_answers() -> None:
    assert average_precision([found([], []), found([], [])], [truth([A]), truth([])], 0) == (0.0, 0.0, 1)
    quiet = average_precision([found([A], [0.5]), found([FAR], [0.9])], [truth([A]), truth([])], 0)
    assert quiet.area == 0.5  # the false alarm in an image without objects comes first


def slow_average_precision(answers: list[Detections], known: list[Objects]) -> tuple[float, float]:
    """Follow the definitions in plain Python, score by score, without sorting hits or cumulative sums."""

    def overlap(a: np.ndarray, b: np.ndarray) -> float:
        width = min(float(a[2]), float(b[2])) - max(float(a[0]), float(b[0]))
        height = min(float(a[3]), float(b[3])) - max(float(a[1]), float(b[1]))
        if width <= 0 or height <= 0:
            return 0.0
        areas = sum((float(c[2]) - float(c[0])) * (float(c[3]) - float(c[1])) for c in (a, b))
        return width * height / (areas - width * height)

    everything = [(float(s), i, m) for i, f in enumerate(answers) for m, s in enumerate(f.scores_M)]
    everything.sort(key=lambda item: -item[0])
    objects = sum(int((~k.difficult_M).sum()) for k in known)
    used: set[tuple[int, int]] = set()
    curve: list[tuple[float, float]] = []
    right = wrong = 0
    for _, i, m in everything:
        choices = [(overlap(answers[i].boxes_M4[m], box), -g) for g, box in enumerate(known[i].boxes_M4)]
        best, g = max(choices, default=(0.0, 0))
        if best >= 0.5 and known[i].difficult_M[-g]:
            continue
        if best >= 0.5 and (i, -g) not in used:
            used.add((i, -g))
            right += 1
        else:
            wrong += 1
        curve.append((right / objects, right / (right + wrong)))
    points = [max((p for r, p in curve if r >= t / 10 - 1e-12), default=0.0) for t in range(11)]
    area = sum(max(p for r, p in curve if r >= k / objects - 1e-12) for k in range(1, right + 1)) / objects
    return sum(points) / 11, area


@st.composite
def scenes(draw: st.DrawFn) -> tuple[list[Detections], list[Objects]]:
    """Draw boxes on a coarse grid, so that overlaps of every kind, also exactly one half, occur; no two scores tie."""
    corner = st.integers(0, 5)
    box = st.tuples(corner, corner, st.integers(1, 4), st.integers(1, 4)).map(
        lambda b: (float(b[0]), float(b[1]), float(b[0] + b[2]), float(b[1] + b[3]))
    )
    answers, known = [], []
    scores = iter(draw(st.permutations(range(40))))
    for _ in range(draw(st.integers(1, 4))):
        there = draw(st.lists(st.tuples(box, st.booleans()), max_size=4))
        seen = draw(st.lists(box, max_size=6))
        known.append(truth([b for b, _ in there], [d for _, d in there]))
        answers.append(found(seen, [next(scores) / 40 for _ in seen]))
    return answers, known


@given(scenes())
@settings(max_examples=300, deadline=None)
def test_against_an_implementation_written_differently(case: tuple[list[Detections], list[Objects]]) -> None:
    answers, known = case
    if not any((~k.difficult_M).any() for k in known):
        return
    result = average_precision(answers, known, 0)
    assert (result.eleven_points, result.area) == pytest.approx(slow_average_precision(answers, known))
