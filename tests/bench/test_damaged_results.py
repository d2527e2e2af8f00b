"""A comparison's folder in which files are damaged: one line says which, and nothing stays behind."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Lock

import numpy as np
import pytest

from dmc.bench.engines import Job
from dmc.bench.runner import Bench
from dmc.bench.tuning import tuned
from dmc.distill.cache import read_marker
from dmc.errors import DmcError
from dmc.files import digest
from dmc.locks import locked, sweep
from dmc.methods import METHODS, Learned
from dmc.metrics.average_precision import Precisions
from dmc.metrics.incremental import Confusion
from tests.conftest import tiny

CELL = "order-0/finetuning"


@pytest.fixture
def finished(bench: Bench) -> Bench:
    """Give a comparison of one cell, as if it had been run."""
    bench.claim_folder()
    for i, names in enumerate(("ab", "abcd")):
        Confusion(names, np.eye(len(names), dtype=np.int64)).save(made(bench.folder / CELL / f"group-{i}"))
        (bench.folder / CELL / f"group-{i}" / "made.json").write_text('{"minutes": 1.5}')
    (bench.folder / "order-0" / "groups.json").write_text('[["a", "b"], ["c", "d"]]')
    return bench


def made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def told(ask: Callable[[], object]) -> str:
    with pytest.raises(DmcError) as error:
        ask()
    assert "\n" not in str(error.value)
    return str(error.value)


def array(content: object) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.save(file, np.array(content), allow_pickle=True)

    return write


def text(content: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(content)

    return write


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


ONE: object = [[1]]
HEADER = b"\x93NUMPY\x01\x00v\x00{'descr': '<i8', 'fortran_order': False, 'shape': (4000000, 4000000), }"


@pytest.mark.parametrize(
    ("file", "write"),
    [
        *(("order-0/groups.json", text(t)) for t in ("{}", "null", '["ab"]', "[[]]", "[[1]]", "[" * 10**5, "[[")),
        *((f"{CELL}/group-1/confusion.npy", text(t)) for t in ("", "x" * 99, "PK")),
        *((f"{CELL}/group-1/confusion.npy", array(a)) for a in (ONE, [1.5], {}, np.eye(4), -np.eye(4, dtype=int))),
        (f"{CELL}/group-1/confusion.npy", lambda p: p.write_bytes(HEADER.ljust(127) + b"\n")),
        *((file, pipe) for file in ("order-0/groups.json", f"{CELL}/group-1/confusion.npy")),
    ],
)
def test_a_damaged_result_is_named(finished: Bench, file: str, write: Callable[[Path], None]) -> None:
    assert finished.finished("finetuning", 0) is not None
    write(finished.folder / file)
    said = told(lambda: finished.finished("finetuning", 0))
    assert f"{finished.folder / file} is damaged" in said or said.endswith(f"{file}: it is not a regular file")


@pytest.mark.parametrize("content", ["[]", "{}", '{"minutes": "x"}', '{"minutes": NaN}', "[" * 10**5])
def test_a_damaged_record_of_a_group_is_named(finished: Bench, content: str) -> None:
    assert finished.made("finetuning") == [{"minutes": 1.5}] * 2
    (finished.folder / CELL / "group-0" / "made.json").write_text(content)
    assert "made.json is damaged, so remove it and run again: it " in told(lambda: finished.made("finetuning"))


@pytest.mark.parametrize("content", ["[]", "null", "\xff", "[" * 10**5, '{"stream": "digits"}'])
def test_damaged_settings_of_a_comparison(finished: Bench, content: str) -> None:
    (finished.folder / "bench.json").write_bytes(content.encode("latin-1"))
    assert "bench.json" in told(finished.claim_folder)


def test_folders_that_are_no_orders_do_not_matter(finished: Bench) -> None:
    for name in ("order-", "order-of-merit", "order-\u00b2"):
        (finished.folder / name).mkdir()
    assert finished.orders() == [0]


@pytest.mark.parametrize(
    "content", ["[]", '{"per_class": {}}', '{"per_class": {"a": "x"}, "overall": {}}', '{"per_class": 1, "overall": 2}']
)
def test_damaged_precisions(tmp_path: Path, content: str) -> None:
    Precisions({"a": 0.5, "b": float("nan")}, {"area": 0.25}).save(tmp_path)
    assert Precisions.load(tmp_path, "ab").of_classes["a"] == 0.5
    (tmp_path / "precisions.json").write_text(content)
    assert "precisions.json is damaged" in told(lambda: Precisions.load(tmp_path, "ab"))


def test_what_a_method_learned_is_damaged(tmp_path: Path) -> None:
    Learned([tiny("ab")]).save(tmp_path)
    for content in ("[]", "{}", '{"models": "1"}', '{"models": 0}', '{"models": -1}', '{"models": 1.0}'):
        (tmp_path / "learned.json").write_text(content)
        assert "learned.json is damaged" in told(lambda: Learned.load(tmp_path))
    Learned([tiny("ab")]).save(tmp_path)
    (tmp_path / "notes.safetensors").write_bytes(b"x" * 20)
    assert "notes.safetensors: " in told(lambda: Learned.load(tmp_path))


@pytest.mark.parametrize("content", ["[]", '{"layout": {}, "probe": ["x"]}', '{"layout": []}', "[" * 10**5, "\xff"])
def test_a_damaged_table_of_answers_is_none(tmp_path: Path, content: str) -> None:
    folder = made(tmp_path / digest({}))
    (folder / "dmc-answers.json").write_text('{"layout": {}, "probe": [1, 0.5, NaN]}')
    assert read_marker(folder) is not None
    (folder / "dmc-answers.json").write_bytes(content.encode("latin-1"))
    assert read_marker(folder) is None


class InTurn:
    """An engine that runs jobs here, one after the other."""

    def run(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            job.run()


def test_a_cell_leaves_no_locks_and_no_halves(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = replace(bench, group_size=5)
    out, gone = bench.folder, 2**22 + 1  # no process has that number
    place = made(out / "order-0" / "finetuning" / "group-1" / "learned")
    (place / f".notes.safetensors.{gone}@there.part").touch()
    first = made(out / "order-0" / "first" / "learned" / "model-0")
    (first / f".config.json.{gone}@there.part").touch()
    for folder, age in ((out, 7200), (out / "order-0", 0)):  # which have no lock: only what is old or ours is removed
        (folder / f".groups.json.{gone}@here.part").touch()
        (folder / f".groups.json.{gone}@there.part").touch()
        os.utime(folder / f".groups.json.{gone}@there.part", (folder.stat().st_mtime - age,) * 2)
    monkeypatch.setattr("dmc.locks.HOST", "here")
    bench.run_all([METHODS["finetuning"]], [0], InTurn())
    assert bench.finished("finetuning", 0)
    left = [p for p in out.rglob("*") if p.name.startswith(".")]
    assert left == [out / "order-0" / f".groups.json.{gone}@there.part"]


def test_who_waits_for_a_lock_notices_that_its_file_has_gone(tmp_path: Path) -> None:
    inside = Lock()

    def work(_: int) -> None:
        with locked(tmp_path / ".lock"):
            assert inside.acquire(blocking=False)
            time.sleep(0.001)
            inside.release()

    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(work, range(40)))) == 40
    assert not list(tmp_path.iterdir())


def test_only_half_written_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    for name in (".a.part", "a.1@x.part", f".a.{os.getppid()}@x.part", ".a.99999999999@x.part", ".part", ".a.1.part"):
        (tmp_path / name).touch()
    before = sorted(tmp_path.iterdir())
    (tmp_path / f".a.{2**22 + 1}@x.part").symlink_to(tmp_path / "a.1@x.part")
    (tmp_path / f".b.{2**22 + 1}@x.part").symlink_to(tmp_path.parent)
    (tmp_path / f".c.{2**22 + 1}@x.part" / "inner").mkdir(parents=True)
    sweep(tmp_path)
    assert sorted(tmp_path.iterdir()) == before
    assert tmp_path.parent.is_dir()


def test_tuning_reads_what_it_found_before(tmp_path: Path) -> None:
    def untried(strength: float, folder: Path) -> float:
        raise AssertionError("it was tried before")

    for content in ("{}", "[]", '{"x": 1}', '{"1": "x"}', "[" * 10**5):
        (tmp_path / "accuracies.json").write_text(content)
        assert "accuracies.json is damaged" in told(lambda: tuned("ewc", 1.0, tmp_path, untried))
    (tmp_path / "accuracies.json").write_text(json.dumps({0.1: 0.25, 10.0: 0.5, 100.0: 0.125}))
    assert tuned("ewc", 1.0, tmp_path, untried) == 10.0
    assert not (tmp_path / ".tuning-lock").exists()
