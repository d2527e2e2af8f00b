"""Run folders after damage, kills and full disks: the state before is used, or one line says what is wrong."""

from __future__ import annotations

import json
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dmc.config import RunConfig
from dmc.data.decode import CenterCrop
from dmc.data.loader import ImageLoader, open_loader
from dmc.data.open import open_images
from dmc.errors import DmcError
from dmc.files import HOST, part_of
from dmc.schedule import Schedule
from dmc.training.checkpoint import read_checkpoint
from dmc.training.loop import fit
from dmc.training.run_folder import CHECKPOINT, PREVIOUS, Position, Run
from tests.conftest import tiny, write_images
from tests.training.test_loop import Regression

RESUMED = RunConfig(resume=True, checkpoint_every=0)
SCHEDULE = Schedule(epochs=4, batch_size=2, lr=0.05)


class KilledError(BaseException):
    """What a test raises where a process would be killed."""


class Breaking(Regression):
    """A regression that ends before a step, as if it were killed."""

    def __init__(self, before: int | None = None) -> None:
        super().__init__()
        self.before = before

    def losses(self, network: nn.Module, batch: Any) -> Any:
        if self.calls == self.before:
            raise KilledError
        return super().losses(network, batch)


@pytest.fixture
def images(tmp_path: Path) -> ImageLoader:
    return open_loader(open_images(write_images(tmp_path / "i", 6)), CenterCrop(16))


def trained(folder: Path, images: ImageLoader, before: int | None = None, schedule: Schedule = SCHEDULE) -> float:
    """Train, or go on; break off before so many steps of this call; give the weight, in which every step shows."""
    task = Breaking(before)
    try:
        with Run(folder, {}, RESUMED) as run:
            fit(task.module, task, images, schedule, run, seed=0, what="test")
    except KilledError:
        pass
    return task.weight.item()


def refused(folder: Path, images: ImageLoader) -> str:
    with pytest.raises(DmcError) as error:
        trained(folder, images)
    assert "\n" not in str(error.value)
    assert not (folder / ".lock").exists()
    return str(error.value)


def flipped(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_no_flipped_bit_is_taken_for_the_state(tmp_path: Path, images: ImageLoader) -> None:
    trained(tmp_path / "run", images, 5)
    path = tmp_path / "run" / CHECKPOINT
    good, state = path.read_bytes(), read_checkpoint(path)
    assert state is not None
    found = 0
    for bit in range(3, 8 * len(good), 83):
        flipped(path, bit)
        read = read_checkpoint(path)
        if read is None:
            found += 1
        else:  # in the padding between the parts, or in a date
            assert repr(read) == repr(state)
        path.write_bytes(good)
    assert found > 8 * len(good) / 83 / 4


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "pipe", "list"])
def test_the_checkpoint_before_a_damaged_one_is_used(
    tmp_path: Path, images: ImageLoader, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole = trained(tmp_path / "whole", images)
    trained(tmp_path / "run", images, 7)
    path = tmp_path / "run" / CHECKPOINT
    content = path.read_bytes()
    if damage == "flip":  # in the weight itself, which any reader but one that compares checksums takes as it is
        state = torch.load(path, weights_only=True)
        place = content.index(state["module"]["weight"].numpy().tobytes())
        flipped(path, 8 * place + 3)
    elif damage == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif damage == "list":
        torch.save([1, 2], path)
    else:
        path.write_bytes(content[: {"cut": 600, "empty": 0}[damage]])
    caplog.clear()
    assert trained(tmp_path / "run", images) == whole
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"{path} is damaged: the run goes on from the checkpoint before it, at step 6"
    ]
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [3, 6, 9, 12]


def test_a_damaged_checkpoint_does_not_take_the_place_of_the_one_before(tmp_path: Path, images: ImageLoader) -> None:
    """The next checkpoint moves it there; a kill before its second move would leave nothing else."""
    trained(tmp_path / "run", images, 7)
    (tmp_path / "run" / CHECKPOINT).write_bytes(b"PK")
    with Run(tmp_path / "run", {}, RESUMED) as run:
        run.restore({}, {})
        kept = read_checkpoint(run.folder / CHECKPOINT)
    assert kept is not None
    assert kept["position"]["step"] == 6


def test_both_checkpoints_damaged(tmp_path: Path, images: ImageLoader) -> None:
    trained(tmp_path / "run", images, 5)
    for name in (CHECKPOINT, PREVIOUS):
        (tmp_path / "run" / name).write_bytes(b"PK")
    assert f"{CHECKPOINT} is damaged, so the run cannot be resumed" in refused(tmp_path / "run", images)


def test_a_kill_between_any_two_writes_loses_nothing(
    tmp_path: Path, images: ImageLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is a write, a sync and two moves; after each of them the process ends without cleaning up."""
    whole = trained(tmp_path / "whole", images)
    really = Path.replace
    for moves in range(2, 12):
        folder, made = tmp_path / f"run-{moves}", 0

        def replace(path: Path, target: Path, moves: int = moves) -> Path:
            nonlocal made
            made += 1
            if made == moves:
                monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
                raise KilledError
            return really(path, target)

        monkeypatch.setattr(Path, "replace", replace)
        trained(folder, images)
        monkeypatch.undo()
        kept = [read_checkpoint(folder / name) for name in (CHECKPOINT, PREVIOUS)]
        assert any(kept) or moves == 2  # the first checkpoint was never there
        assert list(folder.glob(".*.part"))
        assert trained(folder, images) == whole
        assert sorted(p.name for p in folder.iterdir()) == [PREVIOUS, CHECKPOINT, "metrics.jsonl", "run.json"]


def test_a_checkpoint_of_an_earlier_version_goes_on(tmp_path: Path, images: ImageLoader) -> None:
    whole = trained(tmp_path / "whole", images)
    trained(tmp_path / "run", images, 5)
    path = tmp_path / "run" / CHECKPOINT
    torch.save(torch.load(path, weights_only=True), path)  # as it was written, given a path
    (tmp_path / "run" / PREVIOUS).unlink()
    assert trained(tmp_path / "run", images) == whole


def test_a_finished_run_keeps_one_checkpoint(tmp_path: Path) -> None:
    with Run(tmp_path / "run", {}) as run:
        for step in (1, 2):
            run.checkpoint({}, {}, Position(step))
        assert (tmp_path / "run" / PREVIOUS).exists()
        run.finish(tiny("ab"))
    assert (tmp_path / "run" / CHECKPOINT).exists()
    assert not (tmp_path / "run" / PREVIOUS).exists()


class Wide(Regression):
    """Another network."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 1, bias=False)


def of_another(state: dict[str, Any]) -> None:
    weight = nn.Parameter(torch.zeros(1, 2))
    weight.grad = torch.ones(1, 2)
    other = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    other.step()
    state["optimizer"] = other.state_dict()


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no module": (lambda s: s.pop("module"), "module: it is missing"),
    "no optimizer": (lambda s: s.pop("optimizer"), "optimizer: it is missing"),
    "another's": (of_another, "optimizer: its 'momentum_buffer' is missing or has another shape"),
    "adam's": (
        lambda s: s["optimizer"]["state"].update({0: {"step": torch.tensor(1.0)}}),
        "optimizer: its 'momentum_buffer' is missing",
    ),
    "groups": (lambda s: s["optimizer"].update(param_groups=[]), "optimizer: loaded state dict has a different number"),
    "text": (lambda s: s.update(optimizer="Adam"), "optimizer: "),
    "list": (lambda s: s.update(module=[1]), "module: "),
    "shape": (lambda s: s["module"].update(weight=torch.zeros(1, 2)), "module: 'weight' is missing or has another"),
    "int8": (lambda s: s["module"].update(weight=s["module"]["weight"].char()), "'weight' is missing or has another"),
    "meta": (lambda s: s["module"].update(weight=torch.zeros(1, 1, device="meta")), "'weight' is missing or has ano"),
    "more": (lambda s: s["module"].update(bias=torch.zeros(1)), "module: Error(s) in loading state_dict"),
}


@pytest.mark.parametrize("which", CHANGES)
def test_a_checkpoint_of_another_run_is_named(tmp_path: Path, images: ImageLoader, which: str) -> None:
    trained(tmp_path / "run", images, 5)
    path = tmp_path / "run" / CHECKPOINT
    state = torch.load(path, weights_only=True)
    change, said = CHANGES[which]
    change(state)
    torch.save(state, path)
    told = refused(tmp_path / "run", images)
    assert f"{CHECKPOINT} is not of this run: " in told
    assert said in told


@pytest.mark.parametrize("field", ["step", "images", "seconds", "loss_sums", "epoch_images"])
@pytest.mark.parametrize("value", [None, -1, "x", float("nan"), [1]])
def test_a_position_that_is_none(tmp_path: Path, images: ImageLoader, field: str, value: Any) -> None:
    trained(tmp_path / "run", images, 1)
    path = tmp_path / "run" / CHECKPOINT
    state = torch.load(path, weights_only=True)
    state["position"][field] = value
    torch.save(state, path)
    assert f"{CHECKPOINT} is damaged" in refused(tmp_path / "run", images)


def test_notes_of_another_method(tmp_path: Path) -> None:
    with Run(tmp_path / "run", {}) as run:
        run.checkpoint({}, {"a": torch.zeros(2)}, Position())
        for notes in ({"b": torch.zeros(2)}, {"a": torch.zeros(3)}, {"a": torch.zeros(2, dtype=torch.int8)}):
            for use in (run.recall, lambda notes: run.restore({}, notes)):
                with pytest.raises(
                    DmcError, match=r"is not of this run: notes: '[ab]' is missing or has another shape"
                ):
                    use(notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "should be an object"),
        ("null", "should be an object"),
        ("[" * 100_000, "is no valid JSON: recursion limit exceeded"),
        ('{"schedule": []}', "has schedule [], which should be"),
        ('{"schedule": {"epochs": 0}}', "has a schedule in which epochs 0 should be greater than or equal to 1"),
        ('{"model": 3}', "has model 3, which should be an object"),
        ('{"student": {"arch": 3}}', "has student.arch 3, which should be a valid string"),
        ('{"seed": 1}', "seed was 1 and is now None"),
    ],
)
def test_a_record_that_is_damaged(tmp_path: Path, images: ImageLoader, text: str, said: str) -> None:
    trained(tmp_path / "run", images, 2)
    (tmp_path / "run" / "run.json").write_text(text)
    told = refused(tmp_path / "run", images)
    assert said in told
    assert "run" in told


def test_a_record_that_is_a_pipe(tmp_path: Path, images: ImageLoader) -> None:
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / "run.json")
    assert "run.json: it is not a regular file" in refused(tmp_path / "run", images)


def test_damaged_lines_of_metrics_are_left_out(
    tmp_path: Path, images: ImageLoader, caplog: pytest.LogCaptureFixture
) -> None:
    trained(tmp_path / "run", images, 7)
    path = tmp_path / "run" / "metrics.jsonl"
    first, second = path.read_bytes().splitlines()
    odd = [
        b"[1]",
        b"null",
        b'{"step": "x"}',
        b'{"step": NaN}',
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"step": 1' + b"0" * 5000,
    ]
    path.write_bytes(b"\n".join([first, *odd, second, b'{"step"']))
    trained(tmp_path / "run", images)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [3, 6, 9, 12]
    assert [r.getMessage() for r in caplog.records] == [f"{len(odd)} lines of {path} are damaged and left out"]


def test_what_a_kill_left_half_written_goes(tmp_path: Path, images: ImageLoader) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    folder = tmp_path / "run"
    trained(folder, images, 2)
    for process in (dead.pid, os.getpid(), os.getppid()):
        (folder / f".model.safetensors.{process}@{HOST}.part").write_bytes(b"half")
    (folder / ".mine.part").write_bytes(b"of the user")
    (folder / ".lock").touch()
    trained(folder, images)
    others = {".mine.part", f".model.safetensors.{os.getppid()}@{HOST}.part"}  # that process is at work
    assert {p.name for p in folder.iterdir() if p.name.startswith(".")} == others


def full(folder: Path, name: str) -> None:
    """Let the disk be full for the next write of a file."""
    folder.mkdir(exist_ok=True)
    part_of(folder / name).symlink_to("/dev/full")


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path, images: ImageLoader) -> None:
    whole = trained(tmp_path / "whole", images)
    trained(tmp_path / "run", images, 5)
    with Run(tmp_path / "run", {}, RESUMED) as run:
        full(run.folder, CHECKPOINT)
        with pytest.raises(DmcError, match=f"^cannot write {run.folder / CHECKPOINT}: the disk is full$"):
            run.checkpoint({}, {"large": torch.zeros(100_000)}, Position())
        (run.folder / "metrics.jsonl").unlink()
        (run.folder / "metrics.jsonl").symlink_to("/dev/full")
        with pytest.raises(DmcError, match=r"^cannot write .*metrics\.jsonl: the disk is full$"):
            run.log(step=1)
        (run.folder / "metrics.jsonl").unlink()
    assert trained(tmp_path / "run", images) == whole
    assert not list((tmp_path / "run").glob(".*"))


@pytest.mark.parametrize("name", ["model.safetensors", "README.md", "config.json"])
def test_a_full_disk_at_the_end(tmp_path: Path, name: str) -> None:
    full(tmp_path / "m", name)
    with pytest.raises(DmcError, match=f"^cannot write {tmp_path / 'm' / name}: the disk is full$"):
        tiny("ab").save(tmp_path / "m")
    assert not (tmp_path / "m" / "config.json").exists()
    assert not list((tmp_path / "m").glob(".*"))


def test_a_limit_of_the_system_is_named(tmp_path: Path) -> None:
    """A quota, or as here the largest file that a process may write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Run(tmp_path / "run", {}) as run:
        run.checkpoint({}, {}, Position(3))
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            with pytest.raises(DmcError, match=f"^cannot write {run.folder / CHECKPOINT}: File too large$"):
                run.checkpoint({}, {"large": torch.zeros(100_000)}, Position(4))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    state = read_checkpoint(tmp_path / "run" / CHECKPOINT)
    assert state is not None
    assert state["position"]["step"] == 3
