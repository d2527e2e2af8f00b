"""Trackers: they are told what metrics.jsonl is told, each step once, and never take a run down."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dmc.config import RunConfig
from dmc.data.loader import ImageLoader
from dmc.errors import DmcError
from dmc.training.loop import fit
from dmc.training.run_folder import Run
from dmc.training.tracking import EVENTS, Tracking
from tests.conftest import Answer, bad
from tests.test_cli import Dmc
from tests.training.test_damaged_runs import SCHEDULE, Breaking, KilledError, images

__all__ = ["images"]


def trained(folder: Path, images: ImageLoader, track: str | None, before: int | None = None) -> None:
    """Train, or go on; a checkpoint is written at the end only, and by a stop."""
    task = Breaking(before)
    how = RunConfig.of({"resume": True, "checkpoint_every": 0, "track": track})
    with Run(folder, {}, how) as run:
        fit(task.module, task, images, SCHEDULE, run, seed=0, what="test")


def logged(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def events(folder: Path, name: str) -> list[tuple[int, Any]]:
    found = EventAccumulator(str(folder)).Reload()
    return [(event.step, event.value) for event in found.Scalars(name)]


def test_tensorboard_shows_what_metrics_jsonl_holds(tmp_path: Path, images: ImageLoader) -> None:
    trained(tmp_path / "run", images, "tensorboard")
    lines = logged(tmp_path / "run")
    assert len(lines) == SCHEDULE.epochs
    for name in ("loss", "lr", "epoch"):
        assert events(tmp_path / "run", name) == [(line["step"], pytest.approx(line[name])) for line in lines]


def test_a_resumed_run_tells_no_step_twice(tmp_path: Path, images: ImageLoader) -> None:
    """Three steps are an epoch; the run is killed in the third epoch."""
    with pytest.raises(KilledError):
        trained(tmp_path / "run", images, "tensorboard", before=7)
    assert [step for step, _ in events(tmp_path / "run", "loss")] == [3, 6]
    trained(tmp_path / "run", images, "tensorboard")
    trained(tmp_path / "straight", images, None)
    wanted = [(line["step"], pytest.approx(line["loss"])) for line in logged(tmp_path / "straight")]
    assert events(tmp_path / "run", "loss") == wanted
    assert len(list((tmp_path / "run").glob(EVENTS))) == 1
    assert (tmp_path / "run" / "run.json").read_text() == (tmp_path / "straight" / "run.json").read_text()


class Service(GeneralTracker):  # type: ignore[misc]
    """A tracker that counts what it is told, and may fail."""

    name, requires_logging_directory = "wandb", False
    told: ClassVar[list[int]] = []
    fails_at: ClassVar[int] = 0

    def __init__(self, project: str) -> None:
        super().__init__()
        self.project = project

    @property
    def tracker(self) -> str:
        return self.project

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        assert step is not None
        if step == self.fails_at:
            raise ConnectionError("no route to the service\nand a long story")
        self.told.append(step)

    def finish(self) -> None:
        self.told.append(-1)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> type[Service]:
    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, "wandb", Service)
    monkeypatch.setitem(sys.modules, "wandb", sys)  # something that is there
    monkeypatch.setattr("dmc.extras.find_spec", lambda _: object())
    monkeypatch.setattr(Service, "told", [])
    return Service


def test_any_tracker_of_accelerate_is_told_by_its_name(
    tmp_path: Path, images: ImageLoader, service: type[Service]
) -> None:
    trained(tmp_path / "run", images, "wandb")
    assert service.told == [3, 6, 9, 12, -1]


def test_a_tracker_that_fails_is_given_up_and_the_run_goes_on(
    tmp_path: Path, images: ImageLoader, service: type[Service], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(service, "fails_at", 6)
    trained(tmp_path / "run", images, "wandb")
    assert service.told == [3]
    assert [line["step"] for line in logged(tmp_path / "run")] == [3, 6, 9, 12]
    said = [record.getMessage() for record in caplog.records if "given up" in record.getMessage()]
    assert said == ["wandb is given up, the run goes on: ConnectionError: no route to the service"]


def test_a_run_that_learned_nothing_leaves_no_events(tmp_path: Path, images: ImageLoader) -> None:
    with pytest.raises(KilledError):
        trained(tmp_path / "run", images, "tensorboard", before=0)
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_tracked_is_refused_before_anything_is_loaded(
    dmc: Dmc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ("train", tmp_path / "nothing", "-o", tmp_path / "out", "--track")
    monkeypatch.setattr("dmc.extras.find_spec", lambda _: None)
    bad(dmc(*train, "wandb"), "not installed: wandb; pip install wandb")
    bad(dmc(*train, "tensorboard"), "not installed: tensorboard; pip install 'deep-model-consolidation[track]'")
    said: Answer = dmc(*train, "tensorbored")
    bad(said, "tensorbored")
    monkeypatch.undo()
    with pytest.raises(DmcError, match=r"^tensorboard's events lie in the run's folder: name one \(`out`\)$"):
        Run(None, {}, RunConfig(track="tensorboard"))


def test_an_old_accelerate_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Tracking("trackio-2", tmp_path)
    assert "this version of accelerate does not know it" in caplog.text
