"""Interrupting a training: a whole step, a checkpoint, and a word on how to go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import dmc
from dmc.training.run_folder import Position
from dmc.training.stopping import Stopped
from tests.conftest import tiny, write_images

SCHEDULE = dmc.Schedule(epochs=3, batch_size=8, lr=1e-3)


def started(tmp_path: Path, out: str) -> subprocess.Popen[str]:
    """Start a process that consolidates for minutes, and wait for its first checkpoint."""
    for name, seed in (("ab", 1), ("cd", 2)):
        tiny(name, seed).save(tmp_path / name)
    images = write_images(tmp_path / "aux", 24)
    teachers = [str(tmp_path / "ab"), str(tmp_path / "cd")]
    command = ["consolidate", *teachers, "--aux", str(images), "-o", str(tmp_path / out), "--epochs", "4000"]
    run = subprocess.Popen(
        [sys.executable, "-m", "dmc", *command, "--checkpoint-every", "0.2"], stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 60
    while not (tmp_path / out / "checkpoint.pt").exists():
        assert run.poll() is None, run.stderr and run.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.05)
    return run


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_says_what_was_kept_and_how_to_go_on(tmp_path: Path, number: signal.Signals, code: int) -> None:
    run = started(tmp_path, "merged")
    os.kill(run.pid, number)
    _, said = run.communicate(timeout=30)
    assert run.returncode == code
    last = said.strip().splitlines()[-1]
    assert last.startswith("dmc: consolidating stopped in epoch ")
    assert last.endswith(f"what was learned is kept in {tmp_path / 'merged'}; the same command with --resume goes on")
    assert "Traceback" not in said
    assert not (tmp_path / "merged" / ".lock").exists()


def test_a_stop_loses_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint is made after the very step in which the signal came, though none was due."""
    steps = 0
    add = Position.add

    def counting(self: Position, *arguments: object) -> None:
        nonlocal steps
        add(self, *arguments)  # type: ignore[arg-type]
        steps += 1
        if steps == 5:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Position, "add", counting)
    teachers = [tiny("ab", 1), tiny("cd", 2)]
    images = write_images(tmp_path / "aux", 24)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Stopped, match="consolidating stopped in epoch 2 of 3"):
        dmc.consolidate(teachers, images, tmp_path / "out", schedule=SCHEDULE)
    assert signal.getsignal(signal.SIGINT) is before
    state = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)
    assert state["position"]["step"] == 5
    monkeypatch.undo()
    whole = dmc.consolidate(teachers, images, schedule=SCHEDULE)
    resumed = dmc.consolidate(teachers, images, tmp_path / "out", schedule=SCHEDULE, resume=True)
    assert resumed.fingerprint == whole.fingerprint
