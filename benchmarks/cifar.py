"""Small specialists of CIFAR-100's classes, and students of them: what several benchmarks compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import dmc
from dmc.bench.streams import open_stream
from dmc.choices import NetworkChoice
from dmc.config import RESUMED
from dmc.models.specialist import Specialist
from dmc.recipes.profile import load_profile
from dmc.schedule import Schedule
from dmc.tasks.classification import Classification

ARCH = "cifar_resnet14"
SHORT = Schedule(epochs=12, shape="one-cycle", batch_size=32)


def specialists(data: Path, order: int, size: int, count: int, out: Path) -> Iterator[Specialist]:
    """Train a model for each of the first groups of `size` classes in a class order, or read it back, one by one."""
    profile = load_profile("lite", "icifar100", {"classes": size * count})
    stream = open_stream("icifar100", size, order, profile, data, False)
    network = NetworkChoice(ARCH, None, None, "small")
    for i, group in enumerate(stream.groups, start=1):
        yield Classification().trained(
            stream.train.keep(group), network, SHORT, seed=order, out=out / f"specialist-{i}", how=RESUMED
        )


def student(teachers: Sequence[Specialist], aux: Sequence[str], out: Path, epochs: int, **settings: Any) -> Specialist:
    """Merge teachers in the paper's form with a short schedule, or read the student back."""
    short: dict[str, Any] = {"profile": "paper", "epochs": epochs, "shape": "one-cycle", "batch_size": 32}
    kept: dict[str, Any] = {"cache": str(out.parent / "answers"), "resume": True, "report": False}
    merged: Specialist = dmc.consolidate(teachers, list(aux), out, **{**short, **kept, **settings})
    return merged


def accuracies(model: Any, data: Path, groups: Sequence[Sequence[str]]) -> list[float]:
    """In %, on the test images of all these classes: of all, and of each group, all of them competing."""
    names = [name for group in groups for name in group]
    of_class = dmc.evaluate(model, str(data / "cifar100" / "test.parquet"), keep=names).per_class
    return [round(100 * fmean(of_class[name] for name in group), 1) for group in (names, *groups)]
