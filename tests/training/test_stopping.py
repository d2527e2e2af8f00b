"""Interrupting a training: a whole step, a checkpoint, and a word on how to go on."""

from __future__ import annotations

import os
import pkgutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import torch

import dmc
from dmc.training.run_folder import Position
from dmc.training.stopping import STOPPING, Stopped, StopSignals
from tests.conftest import Answer, tiny, write_images

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
@pytest.mark.slow
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


@pytest.fixture
def handlers() -> Iterator[None]:
    """Put the handlers back that the command line replaces."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def signalled(monkeypatch: pytest.MonkeyPatch, place: str, number: signal.Signals) -> None:
    """Let a signal arrive when a function is called first; a second one would end the process."""
    real, calls = pkgutil.resolve_name(place), count()

    def arriving(*given: object, **named: object) -> object:
        if next(calls) == 0:
            os.kill(os.getpid(), number)
        return real(*given, **named)

    monkeypatch.setattr(place, arriving)


TRAIN = "train {data} -o {out} --arch cifar_resnet8 --size 16 --epochs 1 --batch-size 8"
MERGE = "consolidate {a} {b} --aux {aux} -o {out} --epochs 1 --batch-size 8"
LEARN = "learn {a} {data} --aux {aux} -o {out} --epochs 1 --specialist-epochs 1 --batch-size 8"
PHASES = [
    (TRAIN, "dmc.data.decode.open_image", False),  # choosing a network
    (TRAIN, "dmc.data.loader.held_as_tensor", False),
    (TRAIN + " --memory 0", "dmc.data.loader.StreamLoader._cut", True),  # after the first step of the stream
    (TRAIN, "dmc.training.held_out.HeldOut.result", True),
    (TRAIN, "dmc.models.model.Model._card", True),  # in the middle of the final save
    (MERGE, "dmc.models.load.load", False),
    (MERGE + " --scale balanced", "dmc.distill.teachers.Teachers.measure_scales", False),
    (MERGE, "dmc.tasks.classifier_consolidation.ClassifierConsolidation.adjust", True),
    (MERGE, "dmc.tasks.classifier_consolidation.ClassifierConsolidation.compare", True),
    (LEARN, "dmc.tasks.classifier_consolidation.ClassifierConsolidation.prepare", False),
    ("evaluate {a} {data} --rename green=a --rename red=b", "dmc.evaluation.classification.answers", False),
    ("predict {a} {aux}", "dmc.evaluation.classification.classified", False),
    ("check {a} {b} --aux {aux}", "dmc.estimate.estimated", False),
    ("bench digits -o {out} --profile smoke --methods dmc --orders 1", "dmc.training.run_folder.Run.finish", True),
    ("demo -o {out}", "dmc.training.loop.augmented", False),
]


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(("command", "place", "learned"), PHASES)
def test_a_stop_outside_the_training_is_a_clean_one(
    command: str,
    place: str,
    learned: bool,
    tmp_path: Path,
    labeled_folder: Path,
    aux_folder: Path,
    dmc: Callable[..., Answer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is left but what was learned, with which the same command goes on."""
    number = STOPPING[len(place) % 2]
    tiny("ab", 1).save(tmp_path / "a")
    tiny("cd", 2).save(tmp_path / "b")
    out = tmp_path / "out"
    places = {"a": tmp_path / "a", "b": tmp_path / "b", "data": labeled_folder, "aux": aux_folder, "out": out}
    typed = command.format(**places).split()
    with monkeypatch.context() as patch:
        signalled(patch, place, number)
        said = dmc(*typed)
    assert said.code == 128 + number, said
    line = said.err.splitlines()[-1]
    word = "stopped" if number == signal.SIGTERM else "interrupted"
    assert line.startswith((f"dmc: {word}", "dmc: training stopped in epoch 1 of 1"))
    assert "Traceback" not in said.err
    verb = typed[0]
    assert ("goes on" in line) == (verb not in ("evaluate", "predict", "check"))
    assert ("with --resume" in line) == (verb in ("train", "consolidate", "learn"))
    kept = {path.name for path in out.rglob("*") if path.is_file()}
    assert ("checkpoint.pt" in kept) == (learned or verb == "learn")
    assert "config.json" not in kept or verb == "learn"
    assert not {name for name in kept if name.endswith(".part")}
    if not learned and verb in ("train", "consolidate"):
        assert not out.exists()
    if verb in ("train", "consolidate", "learn"):
        assert dmc(*typed, "--resume").code == 0


@pytest.mark.usefixtures("handlers")
def test_a_second_signal_ends_at_once(
    tmp_path: Path, labeled_folder: Path, dmc: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is noted for the end of the step, the second does not wait for it, and a third would kill."""
    add = Position.add

    def signalling(self: Position, *given: object) -> None:
        add(self, *given)  # type: ignore[arg-type]
        if self.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("the second signal was not heard")

    monkeypatch.setattr(Position, "add", signalling)
    small = ("--arch", "cifar_resnet8", "--size", 16, "--epochs", 2, "--batch-size", 8, "--val", "none")
    said = dmc("train", labeled_folder, "-o", tmp_path / "out", *small)
    assert (said.code, said.err.splitlines()[-1].split(";")[0]) == (130, "dmc: interrupted")
    assert [signal.getsignal(number) for number in STOPPING] == [signal.SIG_DFL, signal.SIG_DFL]
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("handlers")
def test_processes_of_a_launcher_hear_only_the_first_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C reaches them all, and the launcher then signals each of them again."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with StopSignals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked == signal.SIGINT
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("asked", ["option", "variable"])
def test_the_same_command_comes_back(
    asked: str, tmp_path: Path, labeled_folder: Path, dmc: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` begins a run, continues it, leaves a finished one alone, and refuses other settings."""
    small = ("--arch", "cifar_resnet8", "--size", 16, "--epochs", 1, "--batch-size", 8, "--val", "none")
    plain = (labeled_folder, "-o", tmp_path / "out", *small)
    if asked == "variable":
        monkeypatch.setenv("DMC_RESUME", "auto")
    command = ("train", *(("--resume", "auto") if asked == "option" else ()), *plain)
    with monkeypatch.context() as patch:
        signalled(patch, "dmc.training.run_folder.Run.finish", signal.SIGTERM)
        assert dmc(*command).code == 143
    trained = (tmp_path / "out" / "checkpoint.pt").stat().st_mtime_ns
    said = dmc(*command)
    assert said.code == 0
    assert "2 classes" in said.out
    assert (tmp_path / "out" / "checkpoint.pt").stat().st_mtime_ns == trained  # no step was left to do
    said = dmc(*command)
    assert said.code == 0
    assert f"{tmp_path / 'out'} is finished: nothing is trained again" in said.err
    said = dmc(*command, "--seed", 1)
    assert said.code == 2
    assert f"{tmp_path / 'out'} was started with other settings" in said.err.splitlines()[-1]
    assert dmc("train", "--resume", *plain).code == 0  # a flag, before what is no word for it
    assert "already holds run.json" in dmc("train", "--resume=no", *plain).err


def test_auto_is_a_word_of_the_library_too(tmp_path: Path, aux_folder: Path) -> None:
    teachers = [tiny("ab", 1), tiny("cd", 2)]
    first, second = (
        dmc.consolidate(teachers, aux_folder, tmp_path / "out", schedule=SCHEDULE, resume="auto") for _ in range(2)
    )
    assert first.fingerprint == second.fingerprint


def test_a_stop_while_the_command_line_loads_has_no_traceback(tmp_path: Path) -> None:
    """A signal that comes with the first import of a package ends the process as if it had no handler."""
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from dmc.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
