"""What a run leaves in its folder, and who may continue it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from filelock import FileLock

from dmc.config import RunConfig
from dmc.errors import DmcError
from dmc.schedule import Schedule
from dmc.training.run_folder import Run
from tests.conftest import classifiers, tiny, write_images
from tests.training.test_loop import trained


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", 30)
    first = trained(tmp_path / "run", images, 4, [])
    stamp = (tmp_path / "run" / "model.safetensors").stat().st_mtime_ns
    assert trained(tmp_path / "run", images, 4, []) == first
    assert (tmp_path / "run" / "model.safetensors").stat().st_mtime_ns == stamp


def test_a_finished_model_outlives_its_checkpoint(tmp_path: Path) -> None:
    trained(tmp_path / "run", write_images(tmp_path / "images", 30), 4, [])
    (tmp_path / "run" / "checkpoint.pt").unlink()
    config = json.loads((tmp_path / "run" / "run.json").read_text())
    with pytest.raises(KeyboardInterrupt), Run(tmp_path / "run", config, RunConfig(resume=True)):
        raise KeyboardInterrupt
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_a_kill_while_the_result_is_written_is_mended(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", 30)
    whole = trained(tmp_path / "run", images, 4, [])
    for name in ("config.json", "README.md"):  # model.safetensors comes first, config.json completes the folder
        (tmp_path / "run" / name).unlink()
    assert trained(tmp_path / "run", images, 4, []) == whole
    assert (tmp_path / "run" / "config.json").exists()


def test_held_and_streamed_runs_do_not_continue_each_other(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", 30)
    trained(tmp_path / "run", images, 4, [2])
    with pytest.raises(DmcError, match=r"aux\.held was True and is now False"):
        trained(tmp_path / "run", images, 0, [])


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with (
        FileLock(tmp_path / "run" / ".lock"),
        pytest.raises(DmcError, match="run is in use by another run"),
        Run(tmp_path / "run", {}),
    ):
        pass


def test_a_folder_with_files_of_these_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    for resume in (False, True):
        with pytest.raises(DmcError, match=r"README\.md"), Run(tmp_path, {}, RunConfig(resume=resume)):
            pass
    assert [p.name for p in tmp_path.iterdir()] == ["README.md"]


def test_resuming_with_other_settings_names_the_first_difference(tmp_path: Path) -> None:
    with Run(tmp_path / "run", {"a": {"b": 1}, "versions": {"torch": "1"}}):
        pass
    with (
        pytest.raises(DmcError, match=r"a\.b was 1 and is now 2"),
        Run(tmp_path / "run", {"a": {"b": 2}, "versions": {}}, RunConfig(resume=True)),
    ):
        pass
    with Run(tmp_path / "run", {"a": {"b": 1}, "versions": {"torch": "2"}}, RunConfig(resume=True)):
        pass


def test_images_may_have_moved_to_another_folder(tmp_path: Path) -> None:
    """A scheduler may continue a run on a machine that keeps its data elsewhere."""
    with Run(tmp_path / "run", {"data": {"name": "/here/cifar/train.parquet", "images": 3}}):
        pass
    with Run(tmp_path / "run", {"data": {"name": "data/train.parquet", "images": 3}}, RunConfig(resume=True)):
        pass
    with (
        pytest.raises(DmcError, match=r"data\.name was '/here/cifar/train\.parquet' and is now 'data/test\.parquet'"),
        Run(tmp_path / "run", {"data": {"name": "data/test.parquet", "images": 3}}, RunConfig(resume=True)),
    ):
        pass


def test_a_run_that_fails_before_it_learned_anything_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Run(tmp_path / "new" / "run", {}):
        raise ZeroDivisionError
    assert not (tmp_path / "new").exists()


def test_a_run_of_an_earlier_version_goes_on(tmp_path: Path, aux_folder: Path) -> None:
    """Its run.json lacks settings that came later, and which then have their defaults."""
    teachers, schedule = [tiny("ab", 1), tiny("cd", 2)], Schedule(epochs=1, batch_size=8)
    classifiers(teachers, aux_folder, schedule).run(tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    before = json.loads(path.read_text())
    for name in ("precision", "compile"):
        del before["schedule"][name]
    del before["views"]
    path.write_text(json.dumps(before))
    assert classifiers(teachers, aux_folder, schedule).run(tmp_path / "run", RunConfig(resume=True)).names
    other = classifiers(teachers, aux_folder, schedule.changed({"precision": "bf16"}))
    with pytest.raises(DmcError, match="precision was 'fp32' and is now 'bf16'"):
        other.run(tmp_path / "run", RunConfig(resume=True))
