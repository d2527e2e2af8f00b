"""Losses of small runs stay what they were: golden numbers, with room for another CPU's rounding.

`tests/assets/losses.json` was made by benchmarks/behaviour.py with the code of e02d464, before the house was rebuilt.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from benchmarks.behaviour import commands, write_data

from tests.conftest import Answer

GOLDEN: dict[str, list[float]] = json.loads((Path(__file__).parent / "assets" / "losses.json").read_text())
RUNS = {  # in the order in which they build on each other; the folders that each leaves
    "train ab": ["a"],
    "train cd": ["b"],
    "train, paper": ["p"],
    "consolidate": ["m"],
    "consolidate, paper": ["mp"],
    "consolidate, streamed": ["ms"],
    "learn": ["n", "n/specialist"],
    "train retinanet x": ["retinanetx"],
    "train retinanet y": ["retinanety"],
    "consolidate retinanet": ["retinanet"],
    "train fcos x": ["fcosx"],
    "train ssd x": ["ssdx"],
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)  # of a CPU for which `auto` is fp32, as it was then
    return tmp_path


def test_losses_are_what_they_were(dmc: Callable[..., Answer], here: Path) -> None:
    for name, folders in RUNS.items():
        said = dmc(*commands()[name])
        assert said.code == 0, said.err
        for folder in folders:
            lines = (here / folder / "metrics.jsonl").read_text().splitlines()
            assert [json.loads(line)["loss"] for line in lines] == pytest.approx(GOLDEN[folder], rel=1e-3), name


def test_losses_of_the_benchmark_are_what_they_were(dmc: Callable[..., Answer], here: Path) -> None:
    """The first model, specialists, DMC and LwF."""
    said = dmc(*commands()["bench"], "--methods", "dmc,lwf")
    assert said.code == 0, said.err
    runs = [name for name in GOLDEN if name.startswith("bench/")]
    assert len(runs) == 7
    for name in runs:
        lines = (here / name / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["loss"] for line in lines] == pytest.approx(GOLDEN[name], rel=1e-3), name
