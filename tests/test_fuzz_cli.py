"""Whatever is typed ends with status 0, or with one line and status 2: some hundred of `benchmarks/fuzz.py`'s tries."""

from __future__ import annotations

import random
import signal

import pytest
from benchmarks import fuzz

from dmc.schedule import Schedule
from dmc.training.stopping import STOPPING


def test_no_command_line_and_no_setting_is_unexpected() -> None:
    handlers = [signal.getsignal(number) for number in STOPPING]
    try:
        assert list(fuzz.faults(200, seed=1)) == []
    finally:
        for number, handler in zip(STOPPING, handlers, strict=True):
            signal.signal(number, handler)


def test_the_tries_reach_far_and_a_fault_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every verb is typed, and what a bug would raise where a training begins is told."""
    draw = random.Random(0)
    assert {fuzz.command_line(draw)[0] for _ in range(300)} >= set(fuzz.verbs())

    def buggy(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("dmc.api.task_for", buggy)
    monkeypatch.setattr(fuzz, "command_line", lambda _: ["train", "data", "-o", "out"])
    monkeypatch.setattr(fuzz, "settings", lambda _: (Schedule, {"epochs": 1}))
    ((tried, fault), *_) = fuzz.faults(1)
    assert tried == ["train", "data", "-o", "out"]
    assert fault.startswith("dmc: unexpected KeyError: 'a bug'")
