"""Which labeled data is trained on and which is tested on, as users see it; auxiliary images from several places."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dmc.api import evaluate
from dmc.choices import NetworkChoice
from dmc.config import RunConfig
from dmc.data.open import open_labeled
from dmc.jobs import Merge
from dmc.schedule import Schedule
from dmc.tasks.classification import Classification
from dmc.training.run_folder import Run
from tests.conftest import Answer, bad, load_specialist, tiny, write_images

Dmc = Callable[..., Answer]
QUICK = ("--epochs", 2, "--batch-size", 8)
SMALL = ("--arch", "cifar_resnet8", "--size", 16, *QUICK)


def coloured(folder: Path, count: int, names: tuple[str, ...] = ("red", "green"), seed: int = 0) -> Path:
    for colour, name in enumerate(names):
        write_images(folder / name, count, seed + colour, colour=colour)
    return folder


def card(model: Path) -> dict[str, Any]:
    provenance: dict[str, Any] = json.loads((model / "config.json").read_text())["dmc"]["provenance"]
    return provenance


def same_weights(one: Path, other: Path) -> bool:
    first, second = (load_file(model / "model.safetensors") for model in (one, other))
    return all(torch.equal(first[key], second[key]) for key in first)


def test_a_folder_of_train_and_val(dmc: Dmc, tmp_path: Path) -> None:
    coloured(tmp_path / "data" / "train", 20)
    val = coloured(tmp_path / "data" / "val", 3, seed=5)
    out = tmp_path / "m"
    said = dmc("train", tmp_path / "data", "-o", out, *SMALL)
    assert said.code == 0, said.err
    assert said.err.splitlines()[-1] == (
        f"dmc: training on {tmp_path}/data/train: 40 images of 2 classes (green; red); 6 images are held out ({val})"
    )
    accuracy = evaluate(load_specialist(out), val).accuracy
    line = f"{accuracy:.1%} of 6 images ({val})"
    assert "  classes: green; red\n" in said.out
    assert f"  held-out accuracy: {line}\n" in said.out
    assert card(out)["held-out accuracy"] == line
    assert card(out)["data"] == f"{tmp_path}/data/train (40 images, 0 skipped)"
    assert f"- held-out accuracy: {line}" in (out / "README.md").read_text()
    assert line in dmc("train", tmp_path / "data", "-o", out, *SMALL, "--resume").out
    assert json.loads((out / "run.json").read_text())["held out"] == {"name": str(val), "images": 6}
    said = dmc("evaluate", out, tmp_path / "data")
    bad(said, "is ambiguous: it holds a training set and one to test on; name", f"{tmp_path}/data/train or {val}")
    bad(dmc("train", tmp_path / "data", "-o", out, *SMALL, "--val", "none", "--resume"), "held out was", "is now None")


def test_what_is_held_out_is_not_trained_on(dmc: Dmc, tmp_path: Path) -> None:
    """The 10th and 20th of 20 images of a class are held out; without them in the folder the weights are the same."""
    data = coloured(tmp_path / "data", 20)
    said = dmc("train", data, "-o", tmp_path / "auto", *SMALL)
    assert said.code == 0, said.err
    assert f"4 images are held out (every 10th image of {data})" in said.err
    assert "of 4 images (every 10th image of" in card(tmp_path / "auto")["held-out accuracy"]
    assert "(36 images" in card(tmp_path / "auto")["data"]
    said = dmc("train", data, "-o", tmp_path / "all", *SMALL, "--val", "none")
    assert "held-out" not in said.out
    assert "images are held out" not in said.err
    assert "(40 images" in card(tmp_path / "all")["data"]
    assert not same_weights(tmp_path / "auto", tmp_path / "all")
    schedule = Schedule(epochs=2, batch_size=8, shape="one-cycle", precision="auto")
    network = NetworkChoice("cifar_resnet8", 16, None, "small")
    inside = Classification().trained(open_labeled(data), network, schedule, out=tmp_path / "inside")
    assert same_weights(tmp_path / "inside", tmp_path / "all")  # the function that benchmarks call holds nothing out
    assert "held-out accuracy" not in inside.provenance
    for name in ("red", "green"):
        for place in (9, 19):
            (data / name / f"{place:03}.png").unlink()
    assert dmc("train", data, "-o", tmp_path / "rest", *SMALL).code == 0  # 18 of each class: none is held out
    assert same_weights(tmp_path / "auto", tmp_path / "rest")


def test_a_killed_training_holds_out_the_same(dmc: Dmc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = coloured(tmp_path / "data", 20)
    command = ("train", data, *SMALL, "--checkpoint-every", 0)
    assert dmc(*command, "-o", tmp_path / "whole").code == 0

    class KilledError(BaseException):
        pass

    def kill(*_: object, **__: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(Run, "log", kill)  # when the first epoch ends
        with pytest.raises(KilledError):
            dmc(*command, "-o", tmp_path / "cut")
    assert not (tmp_path / "cut" / "config.json").exists()
    assert (tmp_path / "cut" / "checkpoint.pt").exists()
    bad(dmc(*command, "-o", tmp_path / "cut", "--val", "none", "--resume"), "data.images was 36 and is now 40")
    assert dmc(*command, "-o", tmp_path / "cut", "--resume").code == 0
    assert same_weights(tmp_path / "whole", tmp_path / "cut")
    assert card(tmp_path / "whole") == card(tmp_path / "cut")


def test_images_to_test_on_can_be_named(dmc: Dmc, tmp_path: Path) -> None:
    data, val = coloured(tmp_path / "data", 20), coloured(tmp_path / "other", 2, ("red", "green", "blue"), seed=7)
    out = tmp_path / "m"
    bad(dmc("train", data, "-o", out, *SMALL, "--val", val), "other has a class 'blue'", "test on what is learned")
    bad(dmc("train", data, "-o", out, *SMALL, "--val", tmp_path / "gone"), "no such file or folder")
    assert not out.exists()
    assert dmc("train", data, "-o", out, *SMALL, "--val", val, "--keep", "red,green").code == 0
    assert card(out)["held-out accuracy"].endswith(f"of 4 images ({val})")
    assert "(40 images" in card(out)["data"]


def test_broken_images_to_test_on_do_not_cost_the_model(dmc: Dmc, tmp_path: Path) -> None:
    data, val = coloured(tmp_path / "data", 4), coloured(tmp_path / "val", 2)
    for file in val.rglob("*.png"):
        file.write_bytes(b"no image")
    said = dmc("train", data, "-o", tmp_path / "m", *SMALL, "--val", val)
    assert said.code == 0, said.err
    assert "held-out accuracy: not measured: 4 of 4 images in" in said.out
    assert evaluate(load_specialist(tmp_path / "m"), data).images == 8


def test_ambiguous_folders_are_refused_before_anything_is_written(dmc: Dmc, tmp_path: Path) -> None:
    coloured(tmp_path / "data" / "train", 4)
    bad(dmc("train", tmp_path / "data", "-o", tmp_path / "m", *SMALL), f"name {tmp_path}/data/train itself")
    write_images(tmp_path / "data" / "val", 2)
    bad(dmc("train", tmp_path / "data", "-o", tmp_path / "m", *SMALL), "val/ holds images but no class folders")
    vehicles = coloured(tmp_path / "vehicles", 4, ("train", "bus", "car"))
    assert not (tmp_path / "m").exists()
    said = dmc("train", vehicles, "-o", tmp_path / "m", *SMALL)
    assert "12 images of 3 classes (bus; car; train)\n" in said.err
    assert dmc("evaluate", tmp_path / "m", vehicles).code == 0


def test_many_classes_are_not_all_named(dmc: Dmc, tmp_path: Path) -> None:
    for i in range(14):
        write_images(tmp_path / "data" / f"c{i:02}", 2)
    said = dmc("train", tmp_path / "data", "-o", tmp_path / "m", *SMALL)
    for text in (said.err, said.out):
        assert "c00; c01; c02; c03; c04; c05; c06; c07; c08; c09; c10; c11; ... and 2 more" in text


def test_learning_says_what_is_known_already(
    dmc: Dmc, tmp_path: Path, two_models: tuple[Path, Path], aux_folder: Path
) -> None:
    """The first model knows a and b."""
    learn = ("learn", two_models[0], "--aux", aux_folder, "-o", tmp_path / "l", "--specialist-epochs", 1, *QUICK)
    known = coloured(tmp_path / "known", 4, ("a", "b"))
    bad(
        dmc(*learn, known),
        "knows a; b already: there is nothing new to learn from",
        "if classes only share a name, rename one",
    )
    assert not (tmp_path / "l").exists()
    said = dmc(*learn, coloured(tmp_path / "some" / "train", 4, ("b", "c")).parent)
    bad(said, "is ambiguous")
    coloured(tmp_path / "some" / "test", 2, ("b", "c"), seed=3)
    said = dmc(*learn, tmp_path / "some")
    assert said.code == 0, said.err
    first, student, specialist, second = said.err.splitlines()
    assert student.startswith(
        "dmc: student: cifar_resnet8 at 16 pixels from random weights (as the teachers): 2 epochs"
    )
    assert specialist.startswith("dmc: specialist: cifar_resnet8 at 16 pixels")
    assert first == (
        f"dmc: {two_models[0]} knows 1 of the classes already (b): both models teach them, "
        "and the target is the mean of the two"
    )
    assert second.startswith(f"dmc: training on {tmp_path}/some/train: 8 images of 2 classes (b; c); 4 images are held")
    tested = card(tmp_path / "l" / "specialist")["held-out accuracy"]
    assert tested.endswith(f"of 4 images ({tmp_path}/some/test)")
    assert f"held-out accuracy of the new classes' own model: {tested}" in said.out
    assert card(tmp_path / "l")["held-out accuracy of the new classes' own model"] == tested
    assert "  classes: a; b; c\n" in said.out


def test_auxiliary_images_from_several_places_and_a_part_of_them(
    dmc: Dmc, tmp_path: Path, two_models: tuple[Path, Path], aux_folder: Path
) -> None:
    """There are 24 and 16 images, and a quarter of them is ten."""
    more = write_images(tmp_path / "more", 16, seed=4)
    both = ("--aux", aux_folder, "--aux", more)
    assert json.loads(dmc("check", *two_models, *both, "--json").out)["aux"]["images"] == 40
    found = json.loads(dmc("check", *two_models, *both, "--aux-limit", "25%", "--json").out)["aux"]
    assert (found["images"], found["name"]) == (10, f"a sample of {aux_folder} + {more}")
    merge = ("consolidate", *two_models, *both, "-o", tmp_path / "m", *QUICK)
    said = dmc(*merge, "--aux-limit", "10")
    assert said.code == 0, said.err
    assert f"auxiliary images: a sample of {aux_folder} + {more} (10, 0 skipped)" in said.out
    bad(dmc(*merge, "--aux-limit", 11, "--resume"), "aux.images was 10 and is now 11")
    bad(dmc(*merge, "--resume"), "aux.")
    other = shutil.copytree(aux_folder, tmp_path / "other")
    bad(dmc(*merge[:3], "--aux", other, *merge[5:], "--aux-limit", 10, "--resume"), "aux.name was")
    assert dmc(*merge, "--aux-limit", 0.25, "--resume").code == 0
    for limit, words in (("0", "'0' is neither"), ("1.5", "'1.5' is neither"), ("some", "'some' is neither")):
        bad(dmc("check", *two_models, *both, "--aux-limit", limit), words)
    said = dmc("check", *two_models, *both, "--aux-limit", 41)
    assert "has 40 images, not 41: all of them are used" in said.err
    bad(dmc("check", *two_models, "--aux", more, "--aux", more), "are named twice")


def test_another_seed_samples_other_auxiliary_images(aux_folder: Path) -> None:
    teachers = [tiny("ab", 1), tiny("cd", 2)]
    names = [
        {
            r.name
            for r in Merge.chosen(
                teachers, [aux_folder], None, RunConfig(), {"aux_limit": 8, "seed": seed}
            ).aux.records()
        }
        for seed in (0, 0, 1)
    ]
    assert names[0] == names[1] != names[2]
    assert all(len(chosen) == 8 for chosen in names)


def test_a_model_is_not_merged_with_itself(dmc: Dmc, two_models: tuple[Path, Path], aux_folder: Path) -> None:
    """With other classes kept it may be."""
    first = two_models[1]
    bad(dmc("check", first, first, "--aux", aux_folder), "are the same model: there is nothing to merge")
    parts = ("--keep", "1:c,d", "--keep", "2:d,e")
    assert dmc("check", first, first, "--aux", aux_folder, *parts).code == 0


def test_a_finished_run_says_so(dmc: Dmc, tmp_path: Path, two_models: tuple[Path, Path], aux_folder: Path) -> None:
    merge = ("consolidate", *two_models, "--aux", aux_folder, "-o", tmp_path / "m", *QUICK)
    assert dmc(*merge).code == 0
    said = dmc(*merge, "--resume")
    assert (said.code, said.err) == (0, f"dmc: {tmp_path / 'm'} is finished: nothing is trained again\n")
    bad(dmc("consolidate", tmp_path / "none", *merge[2:]), "already holds run.json")  # before a model is looked for
