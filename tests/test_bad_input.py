"""What users type that cannot be meant, and the one line that they get."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from filelock import FileLock

from tests.conftest import Answer, bad, tiny, write_images
from tests.test_cli import QUICK, Dmc


@pytest.fixture
def consolidate(dmc: Dmc, tmp_path: Path, two_models: tuple[Path, Path], aux_folder: Path) -> Dmc:
    """Give a function that consolidates with one thing changed; whatever goes wrong must leave no output folder."""

    def call(*more: object, teachers: tuple[object, ...] = two_models, aux: object = aux_folder) -> Answer:
        said = dmc("consolidate", *teachers, "--aux", aux, "-o", tmp_path / "out", *QUICK, *more)
        if said.code:
            assert not (tmp_path / "out").exists()
        return said

    return call


def test_bad_classes(consolidate: Dmc) -> None:
    bad(consolidate("--keep", "2:cc"), "no class 'cc'")
    bad(consolidate("--keep", "3:c"), "teachers 1 to 2")
    bad(consolidate("--keep", "c"), "--keep 'c': say which classes of which teacher, as in --keep 1:c")
    bad(consolidate("--keep", ""), "--keep '': say which classes of which teacher, as in --keep 1:cat,dog")
    bad(consolidate("--keep", "2:"), "'' names no class; ", "knows c; d; e")
    bad(consolidate("--rename", "9:c=d"), "--rename 9:c=d: there are teachers 1 to 2")
    bad(consolidate("--rename", "2:c= "), "the new name of class 'c' of ", "is empty: give it one")
    bad(consolidate("--rename", "q=r"), "no teacher has a class 'q'")
    bad(consolidate("--rename", "2:c=d"), "'d' is named twice")
    bad(consolidate("--rename", "c"), "OLD=NEW")
    bad(consolidate("--keep", "2:c"), "has one class ('c')")


def test_bad_architectures(consolidate: Dmc) -> None:
    bad(consolidate("--arch", "cifar_resnet9"), "cifar_resnet9", "6n+2")
    bad(consolidate("--arch", "resnet18x"), "unknown architecture 'resnet18x'; did you mean 'resnet18")
    bad(consolidate("--arch", "test_vit", "--size", 50), "test_vit does not accept 50x50 images")


def test_bad_models(consolidate: Dmc, tmp_path: Path, two_models: tuple[Path, Path]) -> None:
    first = two_models[0]
    bad(consolidate(teachers=(first,)), "at least two teachers")
    bad(consolidate(teachers=(first, tmp_path / "gone")), "no model at", "gone")
    torch.save(tiny("ab").module, tmp_path / "whole.pt")
    bad(consolidate(teachers=(first, f"{tmp_path}/whole.pt,arch=cifar_resnet8,classes=imagenet-1k")), "refused")
    torch.save(tiny("ab").module.state_dict(), tmp_path / "w.pt")
    (tmp_path / "three.txt").write_text("x\ny\nz\n")
    bad(
        consolidate(teachers=(first, f"{tmp_path}/w.pt,arch=cifar_resnet8,classes={tmp_path}/three.txt")),
        "3 class names but the head",
        "2 outputs",
    )
    bad(consolidate(teachers=(first, f"{two_models[1]},output=sigmoid")), "is softmax", "is sigmoid")
    bad(consolidate(teachers=(first, f"{two_models[1]},color=red")), "unknown setting 'color'")
    bad(consolidate(teachers=(first, f"{two_models[1]},size=large")), "size is a number, not 'large'")
    bad(consolidate(teachers=(first, f"{two_models[1]},mean=0.5/x")), "mean is a number, not 'x'")
    bad(consolidate(teachers=(first, tmp_path / "photo.PNG")), "photo.PNG is an image, not a model")


def test_bad_images(consolidate: Dmc, tmp_path: Path, aux_folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    bad(consolidate(aux=tmp_path / "empty"), "empty holds no images")
    bad(consolidate(aux=tmp_path / "gone"), "no such file or folder", "gone")
    for i in range(5):
        (aux_folder / f"broken-{i}.png").write_bytes(b"no")
    bad(consolidate(), "5 of 29 images", "broken-", "cannot be decoded")
    for i in range(3):
        (aux_folder / f"broken-{i}.png").unlink()
    said = consolidate()
    assert "2 skipped" in said.out
    for name in ("broken-3.png", "broken-4.png"):  # each once, though images are looked at several times
        assert said.err.count(f"{name}: cannot be read: it is not an image") == 1


def test_bad_settings(dmc: Dmc, consolidate: Dmc) -> None:
    bad(consolidate("--lr", 0), "lr 0.0 should be greater than 0")
    bad(consolidate("--loss", "l3"), "'--loss'", "l1", "l2", "kd")
    bad(consolidate("--los", "l2"), "No such option: --los", "--loss")
    bad(consolidate("--temperature", 3), "temperature 3.0 has no effect: it is for loss kd")
    bad(dmc("consolidat"), "Did you mean 'consolidate'?")
    bad(dmc("train", "data"), "Missing option '--out' / '-o'")
    assert "Commands:" in dmc().err


def test_what_nobody_thought_of_is_one_line(
    dmc: Dmc, tmp_path: Path, labeled_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("something else\nand a trace")

    monkeypatch.setattr("dmc.training.labeled.fit", failing)
    command = ("train", labeled_folder, "-o", tmp_path / "out", "--arch", "cifar_resnet8")
    with pytest.raises(RuntimeError):
        dmc(*command)  # the tests set DMC_TRACEBACK
    monkeypatch.delenv("DMC_TRACEBACK")
    bad(dmc(*command), "unexpected RuntimeError: something else (DMC_TRACEBACK=1 shows where)")


def test_places_that_are_empty_text(dmc: Dmc, consolidate: Dmc, tmp_path: Path, labeled_folder: Path) -> None:
    bad(consolidate(aux=""), "the path is empty; is a variable unset?")
    bad(dmc("evaluate", "", labeled_folder), "the path is empty")
    bad(dmc("train", labeled_folder, "-o", ""), "--out is empty or the current folder")


def test_a_class_of_broken_images_is_not_learned(dmc: Dmc, tmp_path: Path, labeled_folder: Path) -> None:
    (labeled_folder / "ghost").mkdir()
    (labeled_folder / "ghost" / "1.png").write_bytes(b"no")
    command = ("train", labeled_folder, "-o", tmp_path / "out", "--arch", "cifar_resnet8", "--epochs", 1)
    bad(dmc(*command), "no image of class 'ghost' in", "can be decoded")


def test_logits_that_are_not_finite(dmc: Dmc, consolidate: Dmc, tmp_path: Path, two_models: tuple[Path, Path]) -> None:
    broken = tiny("xy", 3)
    torch.nn.init.constant_(broken.module.fc.bias, float("nan"))  # type: ignore[union-attr, arg-type]
    broken.save(tmp_path / "broken")
    bad(consolidate(teachers=(two_models[0], tmp_path / "broken")), f"{tmp_path}/broken gives answers", "not finite")
    write_images(tmp_path / "xy" / "x", 2)
    bad(dmc("evaluate", tmp_path / "broken", tmp_path / "xy"), f"{tmp_path}/broken gives answers", "not finite")
    bad(dmc("predict", tmp_path / "broken", tmp_path / "xy" / "x" / "000.png", "--json"), "not finite")


def test_an_output_folder_in_use(dmc: Dmc, tmp_path: Path, two_models: tuple[Path, Path], aux_folder: Path) -> None:
    command = ("consolidate", *two_models, "--aux", aux_folder, "-o", tmp_path / "out", *QUICK)
    (tmp_path / "out").mkdir()
    with FileLock(tmp_path / "out" / ".lock"):
        bad(dmc(*command), "in use by another run")
    assert dmc(*command).code == 0
    bad(dmc(*command), "already holds run.json", "or go on with its run (--resume)")
    assert dmc(*command, "--resume").code == 0
    moved = two_models[0].rename(tmp_path / "moved")  # the same weights in another place are the same teacher
    assert dmc("consolidate", moved, *command[2:], "--resume").code == 0
    moved.rename(two_models[0])
    bad(dmc(*command, "--resume", "--lr", 0.5), "schedule.lr was 0.1 and is now 0.5")
    write_images(tmp_path / "new-data" / "x", 2)
    write_images(tmp_path / "new-data" / "y", 2)
    bad(
        dmc("learn", two_models[0], tmp_path / "new-data", "--aux", aux_folder, "-o", tmp_path / "out"), "already holds"
    )
    bad(dmc("train", tmp_path / "gone", "-o", tmp_path / "new"), "gone")
    assert not (tmp_path / "new").exists()


def test_the_word_merge_leads_to_consolidate(dmc: Dmc) -> None:
    said = dmc("merge", "a", "b")
    assert said.code == 2
    assert "Did you mean 'consolidate'?" in said.err


def test_bad_images_to_predict(dmc: Dmc, tmp_path: Path, two_models: tuple[Path, Path]) -> None:
    (tmp_path / "text.png").write_text("no image")
    bad(dmc("predict", two_models[0], tmp_path / "text.png"), "text.png: cannot be read: it is not an image")
    bad(dmc("predict", two_models[0], tmp_path / "gone.png"), "gone.png: cannot be read: No such file or directory")
    said = dmc("predict", two_models[0], tmp_path / "gone.png", "--draw", tmp_path)
    bad(said, "is a classifier: it finds no boxes that could be drawn")
    bad(dmc("predict", two_models[0], ""), "the path is empty")
    (tmp_path / "empty").mkdir()
    bad(dmc("predict", two_models[0], tmp_path / "empty"), "empty holds no images")


def test_data_with_one_class_teaches_nothing(dmc: Dmc, tmp_path: Path) -> None:
    write_images(tmp_path / "data" / "only", 3)
    bad(dmc("train", tmp_path / "data", "-o", tmp_path / "out"), "has one class ('only')")
    assert not (tmp_path / "out").exists()
