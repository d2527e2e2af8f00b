"""A comparison may keep its teachers' answers."""

from __future__ import annotations

import json
from pathlib import Path

from dmc.bench.runner import Bench
from dmc.methods import METHODS
from dmc.recipes.profile import load_profile


def test_a_profile_with_views_keeps_answers_beside_the_shared_models(tmp_path: Path) -> None:
    profile = load_profile("smoke", "digits", {"views": 2})
    bench = Bench("digits", 3, profile, tmp_path / "bench")
    assert bench.run_cell(METHODS["dmc"], 0) == ""
    answers = tmp_path / "bench" / "order-0" / "shared" / "answers"
    assert len([*answers.glob("*/answers.bin")]) == 2
    run = json.loads((tmp_path / "bench/order-0/dmc/group-1/consolidated/run.json").read_text())
    assert run["views"] == 2
    assert profile.identity["views"] == 2
    assert {part["precision"] for part in bench.made("dmc")} == {"fp32"}
    assert "views" not in load_profile("paper", "digits").identity
