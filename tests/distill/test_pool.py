"""Whether images will teach: numbers worked out by hand, and what `dmc check` says about a narrow pool."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from dmc.classes import ClassUnion
from dmc.distill.pool import Pool, variety, verdict
from tests.conftest import Answer, tiny

HALVES = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])


def test_variety_is_relative_entropy() -> None:
    assert variety(HALVES) == pytest.approx(1)
    assert variety(torch.tensor([[0.9, 0.1]] * 5)) == 0
    # Three of four images and one: -(3/4 log 3/4 + 1/4 log 1/4) = 0.5623, over log 2 = 0.6931
    assert variety(torch.tensor([[0.9, 0.1]] * 3 + [[0.2, 0.8]])) == pytest.approx(0.8113, abs=1e-4)
    # Two of four images each, of four classes: log 2 / log 4
    assert variety(torch.eye(4)[[0, 0, 3, 3]]) == pytest.approx(0.5)


def test_the_least_curious_teacher_decides() -> None:
    union = ClassUnion.of([("a", "b"), ("c", "d", "e")])
    bored = torch.tensor([[0.5, 0.4, 0.1]] * 40)  # never above one half
    found = Pool.of([HALVES.repeat(10, 1), bored], union)
    assert (found.images, found.varieties, found.score) == (40, [pytest.approx(1), 0], 0)
    assert found.suggested == {"a": 20, "b": 20, "c": 0, "d": 0, "e": 0}
    assert found.rare == ["c", "d", "e"]  # less than a quarter of 40 / 5 images


def test_ten_images_are_enough_where_classes_are_few() -> None:
    p_NK = torch.eye(2)[[0] * 9 + [1] * 191]
    assert Pool.of([p_NK], ClassUnion.of([("a", "b")])).rare == ["a"]
    p_NK = torch.eye(2)[[0] * 10 + [1] * 190]
    assert Pool.of([p_NK], ClassUnion.of([("a", "b")])).rare == []


def test_of_teachers_who_share_a_class_the_one_who_sees_it_counts() -> None:
    union = ClassUnion.of([("a", "b"), ("b", "c")])
    found = Pool.of([torch.eye(2)[[0, 0, 0, 1]], torch.eye(2)[[0, 0, 0, 1]]], union)
    assert found.suggested == {"a": 3, "b": 3, "c": 1}


def test_few_images_of_many_classes_are_judged_by_what_they_can_show() -> None:
    """Four images with four different answers could not be more various, whatever the number of classes."""
    p_NK = torch.eye(100)[[3, 14, 15, 92]]
    found = Pool.of([p_NK], ClassUnion.of([tuple(map(str, range(100)))]))
    assert found.score == pytest.approx(1)
    assert found.rare == []


def test_without_competition_only_sure_answers_count() -> None:
    union = ClassUnion.of([("a", "b"), ("c",)])
    unsure = torch.tensor([[0.4, 0.1], [0.2, 0.3]] * 20)
    silent, speaking = torch.full((40, 1), 0.02), torch.full((40, 1), 0.9)
    assert Pool.of([unsure, silent], union).varieties == [pytest.approx(1), 1]  # as if one of them had to be true
    assert Pool.of([unsure, silent], union, competing=False).varieties == [0, 0]
    assert Pool.of([HALVES, speaking[:4]], union, competing=False).varieties == [pytest.approx(1), 1]


def test_verdicts() -> None:
    assert [verdict(score).split()[0] for score in (0.95, 0.7, 0.2)] == ["these", "expect", "expect"]
    assert "weak student" in verdict(0.2)


def test_check_names_what_the_images_never_suggest(dmc: Callable[..., Answer], tmp_path: Path) -> None:
    """Images that are all the same are one answer to every teacher."""
    models = [
        str(tiny(names, seed).save(tmp_path / names) or tmp_path / names) for names, seed in (("ab", 1), ("cd", 2))
    ]
    (tmp_path / "aux").mkdir()
    for i in range(24):
        Image.new("RGB", (16, 16), "#7f3010").save(tmp_path / "aux" / f"{i}.png")
    code, out, _ = dmc("check", *models, "--aux", tmp_path / "aux")
    assert code == 0
    assert "expect a weak student: variety of the teachers' answers 0.00 / 0.00 (0 to 1)" in out
    assert "2 of 4 classes are suggested by few of 24 images" in out
    assert "never suggested:" in out
