"""`dmc show`: what is in a folder, of models, runs and comparisons, also of broken ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from tests.conftest import Answer, bad, tiny
from tests.test_cli import QUICK

Dmc = Callable[..., Answer]
SESSION = """
import sys
import dmc.cli
sys.argv = ["dmc", "show", sys.argv[1]]
try:
    dmc.cli.main()
except SystemExit as stop:
    assert not stop.code
print([name for name in ("torch", "timm", "transformers", "huggingface_hub") if name in sys.modules])
"""


@pytest.fixture
def trained(dmc: Dmc, tmp_path: Path, labeled_folder: Path) -> Path:
    said = dmc("train", labeled_folder, "-o", tmp_path / "m", "--arch", "cifar_resnet8", "--size", 16, *QUICK)
    assert said.code == 0, said.err
    return tmp_path / "m"


def test_a_finished_run_is_a_model_and_how_it_did(dmc: Dmc, trained: Path, labeled_folder: Path) -> None:
    found = json.loads(dmc("show", trained, "--json").out)
    model, (run,) = found["model"], found["runs"]
    network = tiny("ab")
    assert (model["arch"], model["classes"], model["parameters"]) == (
        "cifar_resnet8", ["green", "red"], network.parameter_count,
    )  # fmt: skip
    assert (model["task"], model["output"], model["preprocessing"]["size"]) == ("image-classification", "softmax", 16)
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert (run["state"], run["epoch"], run["epochs"]) == ("finished", len(lines), len(lines))
    assert (run["loss"], run["command"]) == (lines[-1]["loss"], "train")
    assert run["images"] == {"name": str(labeled_folder), "count": 32}
    said = dmc("show", trained).out
    assert said.startswith(f"{trained}: cifar_resnet8, image-classification, {network.parameter_count:,} parameters\n")
    assert "  2 classes: green; red\n" in said
    assert "  sees size 16, mean 0.5071/0.4865/0.4409, std 0.2673/0.2564/0.2762, interpolation bilinear, " in said
    assert "  made by: dmc train\n" in said
    assert "resume" not in said


def test_a_run_that_is_not_finished(dmc: Dmc, trained: Path) -> None:
    (trained / "config.json").unlink()
    run = json.loads((trained / "run.json").read_text())
    (trained / "run.json").write_text(json.dumps(run | {"schedule": run["schedule"] | {"epochs": 9}}))
    lines = ('{"epoch": 2, "step": 4, "images": 64, "seconds": 2.0, "loss": 0.5}\n'
             '{"epoch": 3, "step": 6, "images": 96, "seconds": 2.5, "loss": 0.25}\n{"epoch": 4, "st')  # fmt: skip
    (trained / "metrics.jsonl").write_text(lines)
    said = dmc("show", trained).out
    assert f"{trained}: train, stopped: epoch 3 of 9, loss 0.25, 64 images/s\n" in said
    assert said.endswith("  to go on: the same command with --resume\n")
    with FileLock(trained / ".lock"):
        said = dmc("show", trained).out
    assert "train, running: epoch 3 of 9" in said
    assert "resume" not in said
    assert "train, stopped" in dmc("show", trained).out  # a killed run leaves the file of its lock behind
    (trained / "metrics.jsonl").unlink()
    assert "stopped: epoch 0 of 9\n" in dmc("show", trained).out


def test_both_parts_of_learning(
    dmc: Dmc, tmp_path: Path, two_models: tuple[Path, Path], labeled_folder: Path, aux_folder: Path
) -> None:
    said = dmc("learn", two_models[0], labeled_folder, "--aux", aux_folder, "-o", tmp_path / "n",
               "--specialist-epochs", 1, *QUICK)  # fmt: skip
    assert said.code == 0, said.err
    first, second = json.loads(dmc("show", tmp_path / "n", "--json").out)["runs"]
    assert (first["command"], first["teachers"], first["classes"]) == ("train", [], ["green", "red"])
    assert second["command"] == "consolidate"
    assert second["teachers"] == [str(two_models[0]), str(tmp_path / "n" / "specialist")]
    assert "  teachers: " in dmc("show", tmp_path / "n").out


def test_a_comparison_lists_its_cells(dmc: Dmc, tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text('{"stream": "digits", "group_size": 2, "profile": {}, "tune": false}')
    for order, groups in ((0, 3), (10, 2)):
        (tmp_path / f"order-{order}" / "first").mkdir(parents=True)
        (tmp_path / f"order-{order}" / "groups.json").write_text(json.dumps([["a", "b"]] * groups))
    for place in ("order-0/dmc/group-0", "order-0/dmc/group-1", "order-0/lwf/group-0", "order-10/dmc/group-0"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "made.json").touch()
    (tmp_path / "order-0" / "lwf" / "failed.txt").write_text("it diverged\n")
    assert dmc("show", tmp_path).out.splitlines() == [
        f"{tmp_path}: comparison on digits, 2 classes at a time",
        "  order 0, dmc: 2 of 3 groups",
        "  order 0, lwf: 1 of 3 groups, failed: it diverged",
        "  order 10, dmc: 1 of 2 groups",
    ]


def test_a_model_that_is_no_folder_is_loaded(dmc: Dmc, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("a\nb\x1b[31m\n")
    tiny("ab").save(tmp_path / "m")
    said = dmc("show", f"{tmp_path}/m/model.safetensors,arch=cifar_resnet8,size=16,classes={tmp_path}/names.txt")
    assert said.code == 0, said.err
    assert "  2 classes: a; b\\x1b[31m\n" in said.out


def test_what_is_damaged_is_one_line(dmc: Dmc, tmp_path: Path, trained: Path) -> None:
    bad(dmc("show", tmp_path / "none"), "none")
    bad(dmc("show", tmp_path), "holds no model, no run and no comparison")
    (trained / "run.json").write_text("{")
    bad(dmc("show", trained), f"{trained}/run.json is damaged: it is no valid JSON")
    (trained / "config.json").write_text('{"architecture": 5}')
    bad(dmc("show", trained), f"{trained} is not a model folder: config.json has architecture 5")
    (tmp_path / "bench.json").write_text("[]")
    bad(dmc("show", tmp_path), f"{tmp_path}/bench.json is damaged")


def test_showing_a_folder_does_not_wait_for_torch(tmp_path: Path) -> None:
    folder = tiny("ab").save(tmp_path / "m")
    said = subprocess.run([sys.executable, "-c", SESSION, folder], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("teachers", ["3", "[3]", '[{"from": 3, "classes": []}]'])
def test_teachers_of_odd_types_are_one_line(dmc: Callable[..., Answer], tmp_path: Path, teachers: str) -> None:
    (tmp_path / "run.json").write_text(f'{{"command": "consolidate", "teachers": {teachers}}}')
    said = dmc("show", tmp_path)
    assert said.code == 2
    assert len(said.err.splitlines()) == 1
    assert "run.json is damaged" in said.err
