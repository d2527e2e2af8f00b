"""Small real things that many tests use: image folders, untrained networks, a way to call the command line."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

import dmc as library
from dmc.config import ClassifierConsolidateConfig
from dmc.consolidation import Joining
from dmc.data.auxiliary import Images
from dmc.data.preprocess import Preprocessing
from dmc.data.sources import Source
from dmc.models.detector import Detector
from dmc.models.model import Model
from dmc.models.specialist import Specialist
from dmc.schedule import Schedule
from dmc.tasks.classifier_consolidation import ClassifierConsolidation

pytest_plugins = ["tests.browser", "tests.detectors"]  # their fixtures

ASIDE = re.compile(r"dmc: (training on .*|.* epochs? of \d+ images, about .*|.*; it is skipped)")
SMALL = Preprocessing(size=16)


class Answer(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True, scope="session")
def interruptible() -> None:
    """Heed Ctrl-C, which a shell lets its background jobs ignore, and they their children: tests send it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def hurried() -> Iterator[None]:
    """Time a step once before each training, do not wait for the disk, and write no reports: none matters here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dmc.cost.REPEATS", 1)
        patch.setattr("dmc.report.writing.report_at_end", lambda *_: None)
        patch.setattr("os.fsync", lambda _: None)
        yield


@pytest.fixture
def dmc(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """Call `dmc("evaluate", model, data)` as a user would type it; give exit status, output and errors."""
    from dmc.cli import main

    monkeypatch.setattr(logging.getLogger("dmc"), "handlers", [])  # the command line adds one, which goes with the test
    monkeypatch.setenv("DMC_TRACEBACK", "1")  # an unexpected error should fail its test

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["dmc", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return call


def write_images(folder: Path, count: int, seed: int = 0, size: int = 20, colour: int | None = None) -> Path:
    """Write PNG files of noise; `colour` 0, 1 or 2 makes it reddish, greenish or bluish."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(seed)
    for i in range(count):
        pixels = draw.integers(0, 120, (size, size, 3), dtype=np.uint8)
        if colour is not None:
            pixels[:, :, colour] += 130
        Image.fromarray(pixels).save(folder / f"{i:03}.png")
    return folder


@pytest.fixture
def aux_folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "aux", 24)


@pytest.fixture
def labeled_folder(tmp_path: Path) -> Path:
    for colour, name in enumerate(("red", "green")):
        write_images(tmp_path / "labeled" / name, 16, seed=colour, colour=colour)
    return tmp_path / "labeled"


def tiny(names: str | list[str], seed: int = 0) -> Specialist:
    """Make an untrained 16-pixel network; a string gives one class for each letter."""
    specialist = Specialist.untrained("cifar_resnet8", names, SMALL, seed=seed)
    specialist.name = f"tiny-{seed}"
    return specialist


def load_specialist(*source: Any, **settings: Any) -> Specialist:
    return library.load(*source, **settings, kind=Specialist)


def load_detector(*source: Any) -> Detector:
    return library.load(*source, kind=Detector)


def as_specialist(model: Model) -> Specialist:
    """Narrow the type of a model that is known to be a classifier."""
    assert isinstance(model, Specialist)
    return model


def bad(said: Answer, *words: str) -> None:
    """Expect status 2, nothing on stdout, and these words in one line on stderr.

    Besides, there may be lines that tell what begins, and what is skipped.
    """
    assert said.code == 2
    assert said.out == ""
    lines = [line for line in said.err.splitlines() if not ASIDE.match(line)]
    assert len(lines) == 1, said.err
    assert lines[0].startswith("dmc: ")
    for word in words:
        assert word in said.err


def classifiers(
    teachers: Sequence[Specialist], aux: Images, schedule: Schedule, new: Source | None = None, **settings: Any
) -> ClassifierConsolidation:
    """Set up a merge of classifiers, with its settings as keyword arguments; `new` images join the auxiliary ones."""
    joining = None if new is None else Joining(new)
    return ClassifierConsolidation(teachers, aux, ClassifierConsolidateConfig.of(settings), schedule, joining)


def require_unlike(model: Model, other: Model) -> None:
    """Fail if any layer of a network comes from another one: of two random networks, weights agree by chance only."""
    of_other = dict(other.module.named_parameters())
    for name, ours in model.module.named_parameters():
        theirs = of_other[name].detach()
        if ours.ndim > 1 and ours.requires_grad:  # norms and biases of random networks are all ones and zeros
            rows = min(len(ours), len(theirs))
            a, b = ours.detach()[:rows].flatten(), theirs[:rows].flatten()
            assert abs(float(torch.nn.functional.cosine_similarity(a, b, dim=0))) < 0.5, name


@pytest.fixture
def two_models(tmp_path: Path) -> tuple[Path, Path]:
    return tiny("ab", 1).save(tmp_path / "a"), tiny("cde", 2).save(tmp_path / "b")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Give the folder of the real images to measure on; `.ci/run` sets DMC_DATA when it has them."""
    if "DMC_DATA" not in os.environ:
        pytest.skip("DMC_DATA is not set")
    return Path(os.environ["DMC_DATA"])
