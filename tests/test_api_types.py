"""The types of the public API, as a user's type checker sees them. mypy checks this file; only the last test runs."""

from __future__ import annotations

import inspect
import re
from typing import Any, assert_type

import pytest

import dmc
from dmc import api, keywords
from dmc.evaluation.classification import Evaluation
from dmc.evaluation.detection import DetectedObject, DetectionEvaluation
from dmc.models.model import Model
from dmc.tasks.base import Result


def models_keep_their_kind(detector: dmc.Detector, specialist: dmc.Specialist) -> None:
    assert_type(dmc.consolidate([detector, detector], "images"), dmc.Detector)
    assert_type(dmc.consolidate([specialist, specialist], "images", "out", loss="kd", epochs=3), dmc.Specialist)
    assert_type(dmc.consolidate(["a", "b"], "images"), Model)
    assert_type(dmc.learn(detector, "VOC2007", "images", specialist_epochs=3), dmc.Detector)
    assert_type(dmc.load("a"), Model)
    assert_type(dmc.load("a", kind=dmc.Detector), dmc.Detector)
    assert_type(specialist.keep(["a"]), dmc.Specialist)


def results_are_those_of_the_kind(detector: dmc.Detector, specialist: dmc.Specialist) -> None:
    assert_type(dmc.evaluate(specialist, "test"), Evaluation)
    assert_type(dmc.evaluate(detector, "test"), DetectionEvaluation)
    assert_type(dmc.evaluate("a", "test"), Result)
    assert_type(dmc.predict(specialist, "a.jpg", top=3), list[dict[str, float] | None])
    assert_type(dmc.predict(detector, "a.jpg", min_score=0.5), list[list[DetectedObject] | None])


def misspelt_and_mistyped_settings_are_errors(specialist: dmc.Specialist) -> None:
    dmc.consolidate([specialist, specialist], "images", epoch=3)  # type: ignore[call-overload]
    dmc.consolidate([specialist, specialist], "images", loss="l3")  # type: ignore[call-overload]
    dmc.train("cats", "a", epochs="3")  # type: ignore[arg-type]
    dmc.train("cats", "a", anchors=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["load", "train", "consolidate", "check", "learn", "evaluate", "predict"])
def test_every_argument_stands_in_the_docstring(name: str) -> None:
    function: Any = getattr(api, name)
    text = inspect.getdoc(function) or ""
    listed = set(re.findall(r"^    \*{0,2}(\w+): ", text.partition("Args:\n")[2], flags=re.M))
    assert listed == set(inspect.signature(function).parameters)


@pytest.mark.parametrize(("name", "taken"), [("train", "TrainKeywords"), ("consolidate", "ConsolidateKeywords")])
def test_the_settings_that_a_docstring_names_exist(name: str, taken: str) -> None:
    text = re.search(r"\*\*settings: (.*)", inspect.getdoc(getattr(api, name)) or "", flags=re.S)
    assert text is not None
    known = {*inspect.get_annotations(getattr(keywords, taken)), *keywords.CheckKeywords.__annotations__}
    known |= {*keywords.LengthKeywords.__annotations__, *keywords.TrainKeywords.__annotations__}
    words = set(re.findall(r"`([a-z_]+)`", text[1]))
    assert words <= known
