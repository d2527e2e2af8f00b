"""Lessons that keep their specialists: the next one merges all of them at once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dmc
from dmc.errors import DmcError
from tests.conftest import tiny, write_images

NOISE = np.random.default_rng(0).integers(0, 256, (60, 16, 16, 3), dtype=np.uint8)
QUICK = dmc.Schedule(epochs=1, batch_size=16, lr=1e-3)
SETTINGS: dict[str, Any] = {"schedule": QUICK, "specialist_schedule": QUICK, "report": False, "val": None}


def data(folder: Path, names: str) -> Path:
    for i, name in enumerate(names):
        write_images(folder / name, 8, seed=i)
    return folder


def teachers(folder: Path) -> list[list[str]]:
    run = json.loads((folder / "run.json").read_text())
    return [teacher["classes"] for teacher in run["teachers"]]


def test_the_third_lesson_merges_three_specialists(tmp_path: Path) -> None:
    first, second, third = tmp_path / "1", tmp_path / "2", tmp_path / "3"
    tiny("ab", 1).save(first)
    dmc.learn(first, data(tmp_path / "cd", "cd"), NOISE, second, keep_specialists=True, **SETTINGS)
    assert teachers(second) == [["a", "b"], ["c", "d"]]
    model = dmc.load(second)
    taught = dmc.learn(model, data(tmp_path / "ef", "ef"), NOISE, third, keep_specialists=True, **SETTINGS)
    assert taught.names == tuple("abcdef")
    assert teachers(third) == [["a", "b"], ["c", "d"], ["e", "f"]]
    kept = [dmc.load(third / "specialists" / str(i)) for i in (1, 2, 3)]
    assert [one.fingerprint for one in kept[:2]] == [
        dmc.load(place).fingerprint for place in (first, second / "specialist")
    ]
    assert kept[2].fingerprint == dmc.load(third / "specialist").fingerprint

    again = dmc.learn(model, tmp_path / "ef", NOISE, third, keep_specialists=True, resume=True, **SETTINGS)
    assert again.fingerprint == taught.fingerprint
    fourth = tmp_path / "4"
    dmc.learn(model, tmp_path / "ef", NOISE, fourth, **SETTINGS)  # as in the paper: the merged model teaches
    assert teachers(fourth) == [["a", "b", "c", "d"], ["e", "f"]]
    assert not (fourth / "specialists").exists()


def test_a_kill_before_the_specialists_are_kept_is_made_good_by_resuming(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    tiny("ab", 1).save(first)
    asked: dict[str, Any] = {"keep_specialists": True, **SETTINGS}
    dmc.learn(first, data(tmp_path / "cd", "cd"), NOISE, second, **asked)
    (second / "specialists" / "2" / "config.json").unlink()
    shutil.rmtree(second / "specialists" / "1")
    dmc.learn(first, tmp_path / "cd", NOISE, second, resume=True, **asked)
    assert dmc.load(second / "specialists" / "1").names == ("a", "b")
    assert dmc.load(second / "specialists" / "2").names == ("c", "d")


def test_a_specialist_that_is_missing_is_named(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    tiny("ab", 1).save(first)
    dmc.learn(first, data(tmp_path / "cd", "cd"), NOISE, second, keep_specialists=True, **SETTINGS)
    shutil.rmtree(second / "specialists" / "1")
    with pytest.raises(DmcError, match=r"does not hold all that .*2 was merged from: no model there knows a; b"):
        dmc.learn(second, data(tmp_path / "ef", "ef"), NOISE, tmp_path / "3", keep_specialists=True, **SETTINGS)
    assert not (tmp_path / "3").exists()


def test_specialists_are_kept_in_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DmcError, match="`keep_specialists` writes models into the folder of the result: name one"):
        dmc.learn(tiny("ab"), data(tmp_path / "cd", "cd"), NOISE, keep_specialists=True)


def test_a_model_that_cannot_be_saved_is_no_specialist_to_keep(tmp_path: Path) -> None:
    old = dmc.Specialist(tiny("ab").module, "ab", tiny("a").preprocessing, name="mine")
    with pytest.raises(DmcError, match="mine cannot be saved beside the result: go without `keep_specialists`"):
        dmc.learn(old, data(tmp_path / "cd", "cd"), NOISE, tmp_path / "x", keep_specialists=True)
    assert not (tmp_path / "x").exists()


def test_classes_that_were_left_out_do_not_come_back_with_their_specialist(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    tiny("ab", 1).save(first)
    dmc.learn(first, data(tmp_path / "cd", "cde"), NOISE, second, keep_specialists=True, **SETTINGS)
    some = dmc.load(second).keep("cd")
    taught = dmc.learn(some, data(tmp_path / "fg", "fg"), NOISE, tmp_path / "3", keep_specialists=True, **SETTINGS)
    assert taught.names == tuple("cdfg")
    assert teachers(tmp_path / "3") == [["c", "d"], ["f", "g"]]


def test_a_student_of_kept_specialists_begins_as_none_of_them(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    tiny("ab", 1).save(first)
    dmc.learn(first, data(tmp_path / "cd", "cd"), NOISE, second, keep_specialists=True, **SETTINGS)
    asked: dict[str, Any] = {"keep_specialists": True, **SETTINGS}
    with pytest.raises(
        DmcError, match="and begins as none of them: choose `from_teacher=False`, or go without `keep_spec"
    ):
        dmc.learn(second, data(tmp_path / "ef", "ef"), NOISE, tmp_path / "3", from_teacher=True, **asked)
    assert not (tmp_path / "3").exists()


def test_a_cache_that_is_no_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DmcError, match="cache"):
        dmc.learn(tiny("ab"), data(tmp_path / "cd", "cd"), NOISE, tmp_path / "x", cache=True)  # type: ignore[call-overload]


def test_a_cache_among_labeled_images_is_refused(tmp_path: Path) -> None:
    new = data(tmp_path / "cd", "cd")
    with pytest.raises(DmcError, match=r"answers lies in .*cd, which holds images"):
        dmc.learn(tiny("ab"), new, NOISE, tmp_path / "x", cache=str(new / "answers"))
    assert not (tmp_path / "x").exists()
