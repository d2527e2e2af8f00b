"""Cells in several processes, and on a Ray cluster: the same results, also when a process is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from dmc.bench.engines import TRIES, spread
from dmc.bench.local import Local
from dmc.bench.runner import Bench, Cell
from dmc.methods import METHODS, methods_named
from tests.bench.jobs import Note
from tests.bench.test_own_methods import MINE
from tests.conftest import Answer

BROKEN = MINE.replace('"mine", "My', '"broken", "My').replace("        old, wide", "        1 / 0\n        old, wide")


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use one thread, here and in new processes: on a CPU, results depend on their number."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def broken_method(tmp_path: Path) -> Iterator[Path]:
    """Write the file of a user's method that raises."""
    (tmp_path / "broken.py").write_text(BROKEN)
    yield tmp_path / "broken.py"
    METHODS.pop("broken", None)


def results(folder: Path) -> dict[str, bytes]:
    """Read all that is measured, and all weights."""
    files = [file for file in folder.rglob("*") if file.name in ("confusion.npy", "model.safetensors")]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.slow
def test_several_processes_give_the_same_bits_as_one(
    dmc: Callable[..., Answer], bench: Bench, broken_method: Path, tmp_path: Path
) -> None:
    command = ("bench", "digits", "--profile", "smoke", "--orders", 1, "-o", tmp_path / "b")
    said = dmc(*command, "--methods", f"finetuning,{broken_method}", "--jobs", 2, "--json")
    assert said.code == 2, said.err
    *lines, last = said.err.splitlines()
    told = tmp_path / "b" / "order-0" / "broken" / "failed.txt"
    assert lines.count(f"dmc: broken, order 0: ZeroDivisionError: division by zero ({told} has more)") == 1
    assert all(line.startswith(tuple(f"dmc: {name}, order " for name in METHODS)) for line in lines)
    assert last == "dmc: failed, and not in the table: broken, order 0 (ZeroDivisionError: division by zero)"
    assert told.read_text().startswith("ZeroDivisionError")
    in_turn = replace(bench, folder=tmp_path / "in turn")
    in_turn.run_all(methods_named("finetuning,broken"), [0], Local())
    found = results(tmp_path / "b")
    assert len(found) >= 1 + 3 + 3  # the first model, and the models and matrices of three groups
    assert found == results(tmp_path / "in turn")


def test_a_lost_process_costs_nothing_but_its_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dmc")
    jobs = [
        Note("twice", tmp_path, TRIES - 1, signal.SIGINT),
        Note("always", tmp_path, losses=99),
        Note("never", tmp_path),
    ]
    Local(2).run(jobs)
    assert (tmp_path / "always-failed").read_text() == "its process was lost 3 times"
    assert len(list(tmp_path.glob("always-try-*"))) == TRIES
    for name, tries in (("twice", TRIES), ("never", 1)):
        assert len(list(tmp_path.glob(f"{name}-try-*"))) == tries
        lost = [f"{name}: its process was lost; another one goes on with it"] * (tries - 1)
        said = [text for text in caplog.messages if text.startswith(name)]
        told = [line for i, _ in enumerate(range(tries)) for line in (f"{name}: step {i}", *lost[i : i + 1])]
        assert said == [*told, f"{name}: done"]  # each with its job's name, in order
        assert not (tmp_path / f"{name}-failed").exists()


def test_processes_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    Local(3).run([Note("a", tmp_path)])
    assert (tmp_path / "a-threads").read_text() == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")  # the user's wish
    Local(3).run([Note("a", tmp_path)])
    assert (tmp_path / "a-threads").read_text() == "5"


SLEEPERS = """
import sys
from pathlib import Path
from types import SimpleNamespace
from dmc.bench.local import Local
from tests.bench.jobs import Note
if __name__ == "__main__":
    sys.modules["torch"] = SimpleNamespace(get_num_threads=lambda: 2)  # the real one takes seconds to import
    Local(2).run([Note(name, Path(sys.argv[1]), seconds=60) for name in "abc"])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_command(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C reaches all processes at once; other signals reach the first."""
    (tmp_path / "sleepers.py").write_text(SLEEPERS)
    typed = [sys.executable, str(tmp_path / "sleepers.py"), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = subprocess.Popen(typed, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment)
    notes = [tmp_path / f"{name}-process" for name in "ab"]
    wait_until(lambda: all(note.exists() and note.read_text() for note in notes))
    (os.killpg if number == signal.SIGINT else os.kill)(command.pid, number)
    said = command.communicate(timeout=20)[1]
    assert said.count("Traceback") == (number != signal.SIGKILL)  # the first process's own alone
    assert ("Stopped: stopped before all cells were finished" in said) == (number != signal.SIGKILL)
    wait_until(lambda: not any(Path(f"/proc/{note.read_text()}").exists() for note in notes))
    assert not (tmp_path / "c-process").exists()
    assert not list(tmp_path.glob("*-failed"))


def wait_until(true: Callable[[], bool]) -> None:
    for _ in range(400):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("waited for 20 seconds")


def test_cells_that_train_different_first_models_begin(bench: Bench) -> None:
    cells = [Cell(bench, method, order, {}) for order in (0, 1, 2) for method in ("dmc", "lwf")]
    assert [(cell.method, cell.order) for cell in spread(cells)] == [
        *(("dmc", order) for order in (0, 1, 2)),
        *(("lwf", order) for order in (0, 1, 2)),
    ]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.slow
def test_a_ray_cluster_gives_the_same_bits_and_retries(
    bench: Bench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    import ray

    from dmc.bench.ray_cluster import Ray

    caplog.set_level("INFO", "dmc")
    in_turn = replace(bench, folder=tmp_path / "in turn")
    in_turn.run_all(methods_named("finetuning"), [0], Local())
    said = list(caplog.messages)
    monkeypatch.setattr(ray, "init", partial(ray.init, address="local", num_cpus=2))  # whatever is running here
    notes = Note("once", tmp_path, 1, signal.SIGINT), Note("always", tmp_path, losses=99)
    Ray().run([*bench.cells(methods_named("finetuning"), [0]), *notes])
    assert not ray.is_initialized()
    assert [text for text in caplog.messages if text.startswith("finetuning")] == [*said, *said]
    assert results(bench.folder) == results(in_turn.folder) != {}
    assert [text for text in caplog.messages if text.startswith("once")][-2:] == ["once: step 1", "once: done"]
    assert len(list(tmp_path.glob("always-try-*"))) == TRIES
    assert "worker" in (tmp_path / "always-failed").read_text()
    assert not (tmp_path / "once-failed").exists()
    assert capfd.readouterr().out == ""  # which is for the table alone


def test_what_belongs_to_ray_is_refused_elsewhere(
    dmc: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = dmc("bench", "digits", "--gpus-per-cell", 0.5, "-o", tmp_path / "b")
    assert (said.code, "are settings of --engine ray" in said.err) == (2, True)
    monkeypatch.setitem(sys.modules, "ray", None)
    for verb in (("bench", "digits"), ("reproduce", "losses")):
        said = dmc(*verb, "--engine", "ray", "-o", tmp_path / "b")
        assert said.err == "dmc: not installed: ray; pip install 'deep-model-consolidation[cluster]'\n"
