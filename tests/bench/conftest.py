"""Fixtures: a comparison that takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from dmc.bench.runner import Bench
from dmc.recipes.profile import load_profile


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench("digits", 2, load_profile("smoke", "digits"), tmp_path / "bench")
