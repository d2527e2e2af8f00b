"""The whole story, offline, for each kind of model: data that ships with a dependency, models, a table, a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dmc.demos import classification, detection

__all__ = ["DEMOS", "Demo"]


class Demo(NamedTuple):
    """A story to run: what it leaves in a folder, and how its rows are shown."""

    folder: str  # where nothing else is said
    run: Callable[[int, Path], Sequence[Any]]
    as_table: Callable[[Sequence[Any]], str]
    as_dict: Callable[[Sequence[Any]], dict[str, Any]]


DEMOS = {
    "classify": Demo("dmc-demo", classification.run_demo, classification.as_table, classification.as_dict),
    "detect": Demo("dmc-demo-detect", detection.run_demo, detection.as_table, detection.as_dict),
}
