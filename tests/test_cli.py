"""What users type, and what they get."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from typer.main import get_command

import dmc as library
from dmc.cli import Notices, app
from dmc.cli.options import as_typed
from dmc.data.decode import CenterCrop, decode
from dmc.data.open import open_images
from dmc.errors import DmcError
from dmc.models.cifar_resnet import CifarResNet
from dmc.precision import settled
from dmc.schedule import Schedule
from tests.conftest import Answer, bad, tiny, write_images

Dmc = Callable[..., Answer]


QUICK = ("--epochs", 1, "--batch-size", 8)


def snapshot(folder: Path) -> dict[str, float]:
    return {str(p): p.stat().st_mtime_ns for p in folder.rglob("*")}


def test_settings_in_errors_are_named_as_they_are_typed() -> None:
    def said(verb: str, text: str) -> str:
        return as_typed(text, get_command(app).commands[verb])  # type: ignore[attr-defined]

    assert said("learn", "leave out `use_labels`, or (`use_new=True`)") == "leave out --use-labels, or (--use-new)"
    assert said("learn", "begin anew (`from_teacher=False`)") == "begin anew (--no-from-teacher)"
    assert said("consolidate", "`scale=none` or `matching=boxes`") == "--scale none or --matching boxes"
    assert said("train", "`batch_size=8`; `out`, `use_new`") == "--batch-size 8; --out, `use_new`"  # not of `train`
    assert said("train", "weight_decay inf should be a finite number") == "--weight-decay inf should be a finite number"
    assert said("train", "aux_limit '1 x' should be") == "aux_limit '1 x' should be"  # not of `train`
    assert said("learn", "aux_limit '1 x' should be") == "--aux-limit '1 x' should be"
    assert said("train", "epochs of a run: batch_size 0 should be 1") == "epochs of a run: batch_size 0 should be 1"
    assert as_typed("`use_new`", None) == "`use_new`"


def test_settings_in_warnings_are_named_as_they_are_typed(capsys: pytest.CaptureFixture[str], dmc: Dmc) -> None:
    """By the command that runs: `evaluate` has no size."""
    for verb, said in (("train", "--size sets how many"), ("evaluate", "`size` sets how many")):
        dmc(verb, "nothing")
        capsys.readouterr()
        Notices().emit(logging.LogRecord("dmc", logging.WARNING, "", 0, "`size` sets how many", None, None))
        assert capsys.readouterr().err == f"dmc: {said}\n"


def test_what_users_typed_is_not_taken_for_a_setting(dmc: Dmc, tmp_path: Path) -> None:
    """A bare state dict needs an architecture in its own settings; --arch would be the student's."""
    (tmp_path / "w.pth").write_bytes(b"")
    answer = dmc("consolidate", tmp_path / "w.pth", tmp_path / "w.pth", "--aux", tmp_path, "-o", tmp_path / "out")
    assert (answer.code, f"{tmp_path / 'w.pth'},arch=NAME,classes=FILE" in answer.err) == (2, True), answer.err


def test_help_is_quick_and_loads_no_torch() -> None:
    code = "import sys; sys.argv = ['dmc', '--help']\nfrom dmc.cli import main\ntry: main()\nexcept SystemExit: pass\n"
    code += "import time; assert not {'torch', 'gradio'} & {*sys.modules}; assert time.process_time() < 1.0"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert said.returncode == 0, said.stderr
    assert b"consolidate" in said.stdout


def test_the_whole_way_from_images_to_a_merged_model(
    dmc: Dmc, tmp_path: Path, labeled_folder: Path, aux_folder: Path
) -> None:
    small = ("--arch", "cifar_resnet8", "--size", 16)
    assert dmc("train", labeled_folder, "-o", tmp_path / "a", *small, *QUICK).code == 0
    for colour, name in enumerate(("violet", "yellow", "brown")):
        write_images(tmp_path / "more" / name, 8, seed=colour, colour=colour)
    said = dmc("train", tmp_path / "more", "-o", tmp_path / "b", "--keep", "violet,brown", *small, *QUICK)
    assert said.code == 0
    assert "2 classes" in said.out

    said = dmc("consolidate", tmp_path / "a", tmp_path / "b", "--aux", aux_folder, "-o", tmp_path / "m", *QUICK)
    assert said.code == 0, said.err
    assert "4 classes" in said.out
    (line,) = said.err.splitlines()  # one line if not on a terminal
    student = "dmc: student: cifar_resnet8 at 16 pixels from random weights (as the teachers)"
    assert line.startswith(f"{student}: 1 epoch of 24 images, about ")
    for name in ("model.safetensors", "config.json", "README.md", "run.json", "metrics.jsonl", "checkpoint.pt"):
        assert (tmp_path / "m" / name).is_file()
    assert not (tmp_path / "m" / ".lock").exists()
    config = json.loads((tmp_path / "m" / "run.json").read_text())
    schedule = settled(Schedule(epochs=1, batch_size=8, shape="one-cycle", precision="auto"))
    assert config["schedule"] == json.loads(schedule.model_dump_json())
    assert [t["from"] for t in config["teachers"]] == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert [t["classes"] for t in config["teachers"]] == [["green", "red"], ["brown", "violet"]]

    found = json.loads(dmc("evaluate", tmp_path / "m", labeled_folder, "--json").out)
    assert found["images"] == 32
    assert set(found["per_class"]) == {"green", "red"}
    assert "of 32 images (0 skipped)" in dmc("evaluate", tmp_path / "m", labeled_folder).out

    images = sorted(aux_folder.iterdir())[:2]
    found = json.loads(dmc("predict", tmp_path / "m", *images, "--json", "--top", 4).out)
    assert [entry["image"] for entry in found] == [str(image) for image in images]
    assert sum(found[0]["classes"].values()) == pytest.approx(1, abs=1e-5)
    assert dmc("predict", tmp_path / "m", *images, "--top", 1).out.count("%") == 2

    said = dmc("learn", tmp_path / "a", tmp_path / "more", "--aux", aux_folder, "-o", tmp_path / "n",
               "--specialist-epochs", 1, *QUICK)  # fmt: skip
    assert said.code == 0, said.err
    assert "5 classes" in said.out
    assert f"dmc learn, new classes from {tmp_path / 'more'}" in (tmp_path / "n" / "README.md").read_text()


def test_teachers_can_be_cut_down_and_renamed(
    dmc: Dmc, tmp_path: Path, two_models: tuple[Path, Path], aux_folder: Path
) -> None:
    said = dmc(
        "check",
        *two_models,
        "--aux",
        aux_folder,
        "--keep",
        "2:c",
        "--keep",
        "2:e",
        "--rename",
        "1:b=e",
        "--rename",
        "c=z",
        "--json",
    )
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert [t["classes"] for t in found["teachers"]] == [["a", "e"], ["z", "e"]]
    assert found["student"]["classes"] == ["a", "e", "z"]
    assert found["shared"] == ["e"]
    first, second = (tiny(names, seed) for names, seed in (("ab", 1), ("cde", 2)))
    pixels = torch.stack([decode(record, CenterCrop(16)) for record in open_images(aux_folder).records()])
    for teacher, spread in zip((first, second.keep("ce")), found["side_by_side"]["logit_spreads"], strict=True):
        logits = teacher.logits(pixels)
        assert spread == pytest.approx((logits - logits.mean(1, keepdim=True)).std().item(), abs=0.01)


def test_check_says_what_will_happen_and_changes_nothing(
    dmc: Dmc, tmp_path: Path, two_models: tuple[Path, Path], aux_folder: Path
) -> None:
    (aux_folder / "broken.png").write_bytes(b"no")
    before = snapshot(tmp_path)
    found = json.loads(dmc("check", *two_models, "--aux", aux_folder, "--epochs", 4, "--json").out)
    assert found["aux"] == {
        "name": str(aux_folder),
        "images": 25,
        "size": 16,
        "held_in_memory": True,
        "tried": 25,
        "undecodable": 1,
        "first_undecodable": f"{aux_folder / 'broken.png'}: it is not an image",
        "held_out": 0,
        "selected": None,
    }
    assert found["estimate"]["images"] == 100
    assert found["estimate"]["seconds"] == pytest.approx(100 / found["estimate"]["images_per_second"], abs=1)
    text = dmc("check", *two_models, "--aux", aux_folder).out
    assert "teacher 2: " in text
    assert "shared classes: none" in text
    assert f"1 of the first 25 cannot be decoded (first: {aux_folder / 'broken.png'}: it is not" in text
    assert snapshot(tmp_path) == before


def test_a_state_dict_on_the_command_line(dmc: Dmc, tmp_path: Path, aux_folder: Path) -> None:
    torch.save({"state_dict": CifarResNet(8, 2).state_dict()}, tmp_path / "w.pth")
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    said = dmc("predict", f"{tmp_path}/w.pth,arch=cifar_resnet8,classes={tmp_path}/names.txt", aux_folder / "000.png")
    assert said.code == 0, said.err
    assert "cat" in said.out


def test_a_broken_image_does_not_keep_others_from_an_answer(
    dmc: Dmc, tmp_path: Path, two_models: tuple[Path, Path], aux_folder: Path
) -> None:
    """The images are a folder of 24, the second of which is broken, and one more file."""
    (aux_folder / "001.png").write_bytes((aux_folder / "001.png").read_bytes()[:200])
    other = write_images(tmp_path / "other", 1, seed=9) / "000.png"
    files = [*sorted(aux_folder.iterdir()), other]
    said = dmc("predict", two_models[0], aux_folder, other)
    assert said.code == 2
    assert said.err.startswith(f"dmc: {aux_folder}/001.png: cannot be read: ")
    assert said.err.count("\n") == 1
    assert [line.split(": ")[0] for line in said.out.splitlines()] == [str(f) for f in files if f != files[1]]
    said = dmc("predict", two_models[0], aux_folder, other, "--json")
    assert said.code == 2
    found = json.loads(said.out)
    assert [entry["image"] for entry in found] == [str(file) for file in files]
    assert [set(entry) - {"image"} for entry in found] == [{"error"} if i == 1 else {"classes"} for i in range(25)]
    alone = json.loads(dmc("predict", two_models[0], other, "--json").out)
    assert alone[0]["classes"] == pytest.approx(found[24]["classes"], abs=1e-4)


def test_python_predicts_whatever_is_an_image(
    two_models: tuple[Path, Path], aux_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The same picture in every form has the same answer; one that cannot be read has None."""
    file = aux_folder / "000.png"
    (aux_folder / "text.png").write_text("no image")
    with Image.open(file) as picture:
        pixels = np.array(picture)
        answers = library.predict(two_models[0], [file, pixels, str(file), aux_folder / "text.png", picture], top=2)
        assert library.predict(two_models[0], picture, top=2)[0] == pytest.approx(answers[0], abs=1e-5)
    assert answers[3] is None
    assert [record.getMessage() for record in caplog.records] == [
        f"{aux_folder}/text.png: cannot be read: it is not an image"
    ]
    for answer in (answers[1], answers[2], answers[4]):
        assert answer == pytest.approx(answers[0], abs=1e-5)
    grey = library.predict(two_models[0], [pixels[:, :, 0], np.repeat(pixels[:, :, :1], 3, axis=2)])
    assert grey[0] == pytest.approx(grey[1], abs=1e-5)
    assert len(library.predict(two_models[0], aux_folder)) == 25
    unfit: list[Any] = [pixels.astype(np.float32), pixels[None], pixels[:, :, :2], pixels[0, :, 0]]
    for wrong in unfit:
        with pytest.raises(DmcError, match=r"image 1: an array is uint8 of shape H x W or H x W x 3, not .* of shape"):
            library.predict(two_models[0], [file, wrong])
    Image.fromarray(pixels).resize((400, 400)).save(aux_folder / "large.jpg")
    with Image.open(aux_folder / "large.jpg") as picture:
        library.predict(two_models[0], picture)
        assert np.array(picture).shape == (400, 400, 3)  # neither closed nor decoded at a fraction of its size
    exif = Image.Exif()
    exif[0x0112] = 6  # the picture is stored lying on its side
    Image.fromarray(pixels).save(aux_folder / "lying.png", exif=exif)
    with Image.open(aux_folder / "lying.png") as picture:
        turned = library.predict(two_models[0], [picture, np.rot90(pixels, -1).copy()])
    assert turned[0] == pytest.approx(turned[1], abs=1e-5)


def test_a_specialist_begins_with_the_weights_of_a_network_with_other_classes(
    dmc: Dmc, tmp_path: Path, labeled_folder: Path
) -> None:
    """All but the output layer comes from the file; with a learning rate of almost 0 it stays like that."""
    before = CifarResNet(8, 7)
    torch.save(before.state_dict(), tmp_path / "w.pth")
    begin = ("--arch", "cifar_resnet8", "--size", 16, "--lr", 1e-12, *QUICK, "--weights")
    assert dmc("train", labeled_folder, "-o", tmp_path / "a", *begin, tmp_path / "w.pth").code == 0
    after = load_file(tmp_path / "a" / "model.safetensors")
    torch.testing.assert_close(after["blocks.0.conv1.weight"], before.state_dict()["blocks.0.conv1.weight"])
    assert after["fc.weight"].shape[0] != 7
    torch.save({k: v for k, v in before.state_dict().items() if "blocks.1" not in k}, tmp_path / "cut.pth")
    for weights, words in (
        (tmp_path / "cut.pth", "does not fit cifar_resnet8: 'blocks.1"),
        (tmp_path / "no.pth", "no such weights"),
        ("imagenet", "there are no ImageNet weights of cifar_resnet8"),
    ):
        bad(dmc("train", labeled_folder, "-o", tmp_path / "b", *begin, weights), words)
        assert not (tmp_path / "b").exists()


def test_python_takes_one_image_and_wants_a_list_of_teachers(two_models: tuple[Path, Path], aux_folder: Path) -> None:
    assert len(library.predict(two_models[0], aux_folder / "000.png")) == 1
    with pytest.raises(DmcError, match="teachers must be a list of two or more models"):
        library.consolidate(str(two_models[0]), aux_folder)
    assert {"train", "load", "consolidate"} < set(dir(library))


def test_a_misspelt_setting_does_not_mean_another_one(aux_folder: Path) -> None:
    """Python callers can pass anything; `per_teacher` used to switch Eq. 4 off."""
    from dmc import consolidate

    for name, value in (("centring", "per_teacher"), ("scale", "pool_std"), ("loss", "l3")):
        setting: dict[str, Any] = {name: value}
        with pytest.raises(DmcError, match=f"{name} '{value}' should be "):
            consolidate([tiny("ab"), tiny("cd", 1)], aux_folder, **setting)


def test_damaged_runs_are_named(dmc: Dmc, tmp_path: Path, labeled_folder: Path) -> None:
    command = ("train", labeled_folder, "-o", tmp_path / "a", "--arch", "cifar_resnet8", "--size", 16, *QUICK)
    assert dmc(*command).code == 0
    (tmp_path / "a" / "config.json").unlink()  # as if the run had been killed
    (tmp_path / "a" / "checkpoint.pt").write_bytes(b"PK")
    bad(dmc(*command, "--resume"), "checkpoint.pt is damaged")
    (tmp_path / "a" / "run.json").write_text("{")
    bad(dmc(*command, "--resume"), "run.json is damaged")


def test_others_may_read_the_model(tmp_path: Path) -> None:
    folder = tiny("ab").save(tmp_path / "m")
    modes = {(folder / name).stat().st_mode & 0o777 for name in ("model.safetensors", "config.json")}
    assert len(modes) == 1


def test_short_help_and_completion_of_the_shell(dmc: Dmc, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dmc("-h").out == dmc("--help").out
    assert dmc("train", "-h").out == dmc("train", "--help").out
    assert "Usage: dmc train" in dmc("train", "-h").out
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")  # whichever shell runs the tests
    assert "complete -o default -F _dmc_completion dmc" in dmc("--show-completion", "bash").out
    for name, value in (("_DMC_COMPLETE", "complete_bash"), ("COMP_WORDS", "dmc con"), ("COMP_CWORD", "1")):
        monkeypatch.setenv(name, value)
    assert dmc().out == "consolidate\n"


def test_version(dmc: Dmc) -> None:
    said = dmc("--version")
    assert (said.code, said.out) == (0, f"dmc {version('deep-model-consolidation')}\n")


def test_every_teacher_is_read_once(
    dmc: Dmc, tmp_path: Path, two_models: tuple[Path, Path], aux_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dmc.models import load

    read: list[str] = []

    def counting(name: str) -> Callable[..., Any]:
        real = getattr(load, name)

        def call(*arguments: Any) -> Any:
            read.append(name)
            return real(*arguments)

        return call

    for name in ("read_weights", "_read_config"):
        monkeypatch.setattr(load, name, counting(name))
    said = dmc("consolidate", *two_models, "--aux", aux_folder, "-o", tmp_path / "m", *QUICK)
    assert said.code == 0, said.err
    assert sorted(read) == ["_read_config"] * 2 + ["read_weights"] * 2
