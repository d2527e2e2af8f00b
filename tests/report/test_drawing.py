"""Drawn boxes, and where their names are placed."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from PIL import Image

from dmc.evaluation.detection import DetectedObject
from dmc.report.drawing import Box, boxed, label_places

IMAGE = (200, 100)


def overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def test_a_label_alone_stands_above_its_box_or_else_inside() -> None:
    assert label_places([(50, 40, 90, 80)], [(30, 10)], IMAGE) == [(50, 30, 80, 40)]
    assert label_places([(50, 4, 90, 80)], [(30, 10)], IMAGE) == [(50, 0, 80, 10)]
    assert label_places([(180, 40, 199, 80)], [(30, 10)], IMAGE) == [(170, 30, 200, 40)]


@pytest.mark.parametrize(
    "box", [(50.0, 30.0, 130.0, 80.0), (0.0, 0.0, 200.0, 100.0), (-9.0, -9.0, 80.0, 60.0), (120.0, 50.0, 220.0, 130.0)]
)
def test_labels_of_boxes_that_lie_on_each_other_do_not(box: Box) -> None:
    """The best has the first place; four names have room at four corners, whatever is cut by the image's edge."""
    places = label_places([box] * 4, [(30, 10)] * 4, IMAGE)
    assert places[0] == label_places([box], [(30, 10)], IMAGE)[0]
    assert not any(overlap(one, other) for one, other in combinations(places, 2))
    for left, top, right, bottom in places:
        assert 0 <= left < right <= 200
        assert 0 <= top < bottom <= 100


def test_without_a_free_place_the_least_is_covered() -> None:
    """Labels as high as half of the image: the third covers the narrow one rather than the wide one."""
    places = label_places([(0, 0, 40, 100)] * 3, [(40, 50), (10, 50), (40, 50)], (40, 100))
    assert places == [(0, 0, 40, 50), (0, 50, 10, 100), (0, 50, 40, 100)]


def test_both_names_can_be_seen_in_the_picture() -> None:
    found = [DetectedObject("cat", 0.9, (30, 40, 120, 90)), DetectedObject("dog", 0.8, (31, 41, 120, 90))]
    pixels = np.asarray(boxed(Image.new("RGB", IMAGE), found, ["cat", "dog"], text_size=12))
    red, green = ((pixels == colour).all(axis=2).sum() for colour in ((230, 25, 75), (60, 180, 75)))
    assert min(red, green) > 500  # more than the strokes of a box
