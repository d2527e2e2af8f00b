"""What cannot work is refused in one line, before anything is trained or written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dmc as library
from dmc.config import LearnConfig, Length, NetworkConfig, PredictConfig, RunConfig
from dmc.data.batch import Batch
from dmc.data.open import open_labeled
from dmc.errors import DmcError
from dmc.models.specialist import Specialist
from dmc.schedule import Schedule
from dmc.settings import Config, options_of
from dmc.text import in_markdown, one_line
from dmc.training.classification import Supervised
from tests.conftest import Answer, tiny, write_images
from tests.detectors import TINY, untrained

Dmc = Callable[..., Answer]
QUICK = ("--arch", "cifar_resnet8", "--size", 16, "--epochs", 1)
ODD = "b\x1b[31m\n# <b>head</b> _x_ [y](z)"


def only_line(said: Answer, *words: str) -> None:
    """Expect status 2 and one line on stderr with these words, besides those that tell what is trained."""
    assert said.code == 2, said
    *_, last = said.err.splitlines()
    assert last.startswith("dmc: ")
    assert "unexpected" not in said.err
    for word in words:
        assert word in last


def all_below(owner: type[Config]) -> list[type[Config]]:
    return [owner, *(found for below in owner.__subclasses__() for found in all_below(below))]


def two_classes(folder: Path, images: int, size: int = 20) -> Path:
    for seed, name in enumerate("xy"):
        write_images(folder / name, images, seed, size)
    return folder


# Batches that batch norm cannot train on: a cifar_resnet8 at 4 pixels has features of one pixel.


@pytest.mark.parametrize("batch", [1, 2])
def test_batches_of_one_image_are_refused_before_training(
    dmc: Dmc, tmp_path: Path, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five images in batches of at most two are batches of one, two and two."""
    two_classes(tmp_path / "data", 3)
    (tmp_path / "data" / "x" / "000.png").unlink()
    monkeypatch.setattr("dmc.training.loop.Step.__call__", None)  # no step is made
    small = ("--arch", "cifar_resnet8", "--size", 4, "--epochs", 1, "--batch-size", batch, "--val", "none")
    only_line(dmc("train", tmp_path / "data", "-o", tmp_path / "out", *small), "batch norm sees one value per channel")
    assert not (tmp_path / "out").exists()


def at_four_pixels(names: str, seed: int) -> Specialist:
    small = library.Preprocessing(size=4)
    return Specialist.untrained("cifar_resnet8", names, small, seed=seed)


def test_a_pool_that_leaves_one_image_alone(tmp_path: Path) -> None:
    teachers = [at_four_pixels("ab", 1), at_four_pixels("cd", 2)]
    for images, batch in ((1, 8), (3, 2), (5, 1)):
        pool = write_images(tmp_path / f"aux-{images}", images)
        with pytest.raises(DmcError, match="batch norm sees one value per channel"):
            library.consolidate(teachers, pool, tmp_path / "out", epochs=1, batch_size=batch)
        assert not (tmp_path / "out").exists()
    with pytest.raises(DmcError, match="batch norm sees one value per channel"):
        library.consolidate(teachers, write_images(tmp_path / "s", 3), epochs=1, batch_size=2, memory=0)
    data = two_classes(tmp_path / "data", 2)
    with pytest.raises(DmcError, match="batch norm sees one value per channel"):
        library.learn(teachers[0], data, tmp_path / "aux-3", tmp_path / "out", epochs=1, batch_size=2, val=None)
    assert not (tmp_path / "out").exists()  # the specialist was not trained for nothing


def test_one_image_is_enough_where_batch_norm_sees_several_pixels(tmp_path: Path) -> None:
    pool = write_images(tmp_path / "aux", 1)
    merged = library.consolidate([tiny("ab", 1), tiny("cd", 2)], pool, epochs=1, batch_size=1)
    assert merged.names == ("a", "b", "c", "d")
    detectors = [untrained("ab", seed=1), untrained("c", seed=2)]
    assert library.consolidate(detectors, pool, epochs=1, size=64, weights="random").names == ("a", "b", "c")


# Memory.


class Greedy(Supervised):
    """An objective that has memory for ten images."""

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        if len(batch) > 10:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB\nand much more")
        return super().losses(network, batch)


def test_a_batch_that_does_not_fit_names_one_that_does(
    dmc: Dmc, tmp_path: Path, labeled_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 32 images, batches of 16 and 8 are tried, and 8 fit."""
    monkeypatch.setattr("dmc.tasks.classification.Supervised", Greedy)
    command = ("train", labeled_folder, "-o", tmp_path / "out", "--val", "none", *QUICK)
    only_line(dmc(*command, "--batch-size", 32), "a batch of 32 images does not fit into memory; 8 do (--batch-size 8)")
    assert not (tmp_path / "out").exists()
    assert dmc(*command, "--batch-size", 8).code == 0


def test_a_teacher_too_large_for_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: object, images_N3HW: Tensor) -> list[Tensor]:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried")

    monkeypatch.setattr("dmc.distill.teachers.Teachers.each", failing)
    with pytest.raises(DmcError, match="24 images does not fit into memory; nor does one image"):
        library.consolidate([tiny("ab", 1), tiny("cd", 2)], write_images(tmp_path / "aux", 24), epochs=1)


def test_memory_that_runs_out_elsewhere_is_one_line(
    dmc: Dmc, tmp_path: Path, labeled_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("dmc.training.labeled.open_loader", failing)
    only_line(dmc("train", labeled_folder, "-o", tmp_path / "out", *QUICK), "out of memory: MemoryError; take smaller")


def test_more_memory_than_the_machine_has(
    dmc: Dmc, tmp_path: Path, labeled_folder: Path, two_models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 images of 16x16 pixels take 24 KiB, 24 of them 18 KiB."""
    monkeypatch.setattr("dmc.data.auxiliary.machine_memory", lambda: 18 * 2**10 - 1)
    aux = write_images(tmp_path / "aux", 24)
    for command in (("train", labeled_folder, "--arch", "cifar_resnet8"), ("consolidate", *two_models, "--aux", aux)):
        command = (*command, "-o", tmp_path / "out", "--size", 16, "--epochs", 1)
        only_line(dmc(*command), "takes 0.0 GiB of memory, and this machine has 0.0; with less --memory it is streamed")
        assert dmc(*command, "--memory", 0).code == 0
        shutil.rmtree(tmp_path / "out")


OWNERS: tuple[type[Config], ...] = (
    Schedule,
    Length,
    RunConfig,
    LearnConfig,
    *all_below(NetworkConfig),
    *all_below(PredictConfig),
)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300, 10**400, -(10**400)])
def test_numbers_beyond_all_reason(value: float) -> None:
    """Every setting that is a number has limits; checkpoints may be as far apart as anyone wants."""
    tried = 0
    for owner in OWNERS:
        for name, field in owner.model_fields.items():
            number = field.annotation in (int, int | None, float, float | None) and name not in ("share", "clip")
            if number and not (value == 1e300 and name == "checkpoint_every"):
                tried += 1
                with pytest.raises(DmcError, match=f"^{name} ") as error:
                    owner.of({name: value})
                assert "\n" not in str(error.value)
    assert tried > 30


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e400", "9" * 400, "-" + "9" * 400, "9" * 5000])
def test_numbers_beyond_all_reason_on_the_command_line(dmc: Dmc, tmp_path: Path, value: str) -> None:
    for name, field in options_of(Schedule, Length, RunConfig, NetworkConfig):
        if field.annotation in (int, int | None, float, float | None):
            said = dmc("train", "nosuch", "-o", tmp_path / "out", f"--{name.replace('_', '-')}", value)
            only_line(said, name.replace("_", "-"))
            assert said.err.count("\n") == 1


# Text of others.


def test_names_give_neither_terminal_nor_card_commands(dmc: Dmc, tmp_path: Path) -> None:
    model = tiny(["a", ODD], 1)
    folder = model.save(tmp_path / "model")
    card = (folder / "README.md").read_text()
    assert r"- classes: a; b\\x1b\[31m\\n\# \<b\>head\</b\> \_x\_ \[y\](z)" in card.splitlines()
    assert json.loads((folder / "config.json").read_text())["label_names"] == ["a", ODD]
    images = write_images(tmp_path / "images" / ODD.replace("/", ""), 3)
    for said in (
        dmc("predict", folder, images),
        dmc("predict", folder, images, "--top", 1),
        dmc("check", folder, tiny("cd", 2).save(tmp_path / "other"), "--aux", images),
        dmc("evaluate", folder, images.parent),
        dmc("train", "no\nsuch\x1b[2Jplace", "-o", tmp_path / "out"),
    ):
        assert "\x1b" not in said.out + said.err
        assert not any(line.startswith("#") for line in (said.out + said.err).splitlines())
        assert said.err.count("\n") <= 1


def test_one_line_and_markdown() -> None:
    assert one_line("a\tb\r\nc\x9b\u2028\u202e\udcff") == r"a\tb\r\nc\x9b\u2028\u202e\udcff"
    assert one_line("naïve Übung 猫 \U0001f408") == "naïve Übung 猫 \U0001f408"
    assert in_markdown("cifar_resnet8 of /a/b_c/d-e") == "cifar_resnet8 of /a/b_c/d-e"
    assert in_markdown("*_a_* `b` <i>\\") == r"\*\_a\_\* \`b\` \<i\>" + r"\\"


# Places for the result.


def test_a_result_is_not_written_among_other_files(
    dmc: Dmc, tmp_path: Path, labeled_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for out in ("labeled/..", tmp_path, "labeled", labeled_folder / "red"):
        only_line(dmc("train", labeled_folder, "-o", out, *QUICK), "holds other files, such as", "name a folder of its")
    with pytest.raises(DmcError, match="holds other files"):
        library.train(labeled_folder, tmp_path / "labeled")
    assert sorted(tmp_path.rglob("*")) == before
    teachers = [tiny("ab", 1), tiny("cd", 2)]
    with pytest.raises(DmcError, match="out is for the result; name another folder for the cache"):
        library.consolidate(teachers, labeled_folder, "out", epochs=1, cache=str(tmp_path / "out"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".nfs01").touch()  # as file systems leave them
    assert dmc("train", labeled_folder, "-o", "empty", *QUICK).code == 0
    (tmp_path / "empty" / "notes.txt").touch()
    assert dmc("train", labeled_folder, "-o", "empty", *QUICK, "--resume").code == 0


# Slips with folders.


def test_images_that_are_trained_on_are_no_test(dmc: Dmc, tmp_path: Path, squares: Path) -> None:
    two_classes(tmp_path / "data", 4)
    said = dmc("train", tmp_path / "data", "--val", tmp_path / "data", "-o", tmp_path / "out", *QUICK)
    only_line(said, f"8 of the 8 images of {tmp_path / 'data'}, such as", "would be trained on, too: test on others")
    assert not (tmp_path / "out").exists()
    small = ("--arch", TINY, "--weights", "random", "--size", 64, "--epochs", 1)
    only_line(dmc("train", f"{squares},split=val", "--val", f"{squares},split=val", "-o", tmp_path / "out", *small),
        "would be trained on, too")  # fmt: skip
    said = dmc("train", f"{squares},split=val", "--val", f"{squares},split=train", "-o", tmp_path / "out", *small)
    assert said.code == 0, said.err


def test_results_do_not_lie_among_images(dmc: Dmc, tmp_path: Path) -> None:
    """They would be images, or a class, to whoever reads the folder again."""
    data, aux = tmp_path / "data", write_images(tmp_path / "aux", 8)
    two_classes(data, 4)
    a, b = (tiny(names, i).save(tmp_path / names) for i, names in enumerate(("ab", "cd")))
    merging = ("consolidate", a, b, "--aux", aux)
    for command, folder in (
        (("train", data), data),
        (merging, aux),
        (("learn", a, data, "--aux", aux), data),
        (("learn", a, data, "--aux", aux), aux),
    ):
        only_line(
            dmc(*command, "-o", folder / "model"), f"lies in {folder}, which holds images: name a folder outside of it"
        )
        assert not (folder / "model").exists()
    only_line(dmc("bench", "digits", "--methods", "lwf", "--profile", "smoke", "--orders", 1, "-o", aux),
        f"{aux} holds other files, such as 000.png; name a folder of its own")  # fmt: skip
    for task in ("classify", "detect"):
        only_line(
            dmc("demo", "--task", task, "-o", aux),
            f"{aux} holds other files, such as 000.png; name a folder of its own",
        )
    only_line(
        dmc(*merging, "-o", tmp_path / "m", "--cache", aux / "answers"),
        f"lies in {aux}, which holds images: name a folder outside of it",
    )
    several = ("--aux", tmp_path / "aux", "--aux", data, "-o", data / "model")
    only_line(dmc("consolidate", a, b, *several), f"lies in {data}, which holds images: name a folder outside of it")


def test_the_report_of_a_run_is_not_replaced_by_that_of_others(dmc: Dmc, tmp_path: Path) -> None:
    two_classes(tmp_path / "data", 4)
    for out in ("one", "other"):
        assert dmc("train", tmp_path / "data", "-o", tmp_path / out, *QUICK, "--no-report").code == 0
    only_line(dmc("report", tmp_path / "one", "-o", tmp_path / "other"), "is a run with a report of its own")
    assert dmc("report", tmp_path / "one", "-o", tmp_path / "one").code == 0


def test_folders_without_an_image_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("cat", "dog"):
        write_images(tmp_path / name, 4)
    (tmp_path / "bird").mkdir()
    assert open_labeled(tmp_path).classes == ("cat", "dog")
    assert "has folders without an image, such as bird" in caplog.text


def test_files_that_are_no_models(dmc: Dmc, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("")
    only_line(dmc("show", tmp_path / "net.py"), "net.py holds no weights: name a model's folder")
    model = tiny("ab").save(tmp_path / "m")
    assert dmc("export", model, "--format", "torchscript", "-o", tmp_path / "m.pt").code == 0
    (tmp_path / "ab.txt").write_text("a\nb\n")
    said = dmc("check", f"{tmp_path}/m.pt,arch=cifar_resnet8,classes={tmp_path}/ab.txt", model, "--aux", tmp_path)
    only_line(said, "it is an exported program; name the model's folder or an ONNX file")


def test_settings_that_say_nothing(dmc: Dmc, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    aux = write_images(tmp_path / "aux", 8)
    a, b = (tiny(names, i).save(tmp_path / names) for i, names in enumerate(("ab", "cd")))
    said = dmc("consolidate", a, b, "--aux", aux, "-o", tmp_path / "out", "--views", 3)
    only_line(said, "views has no effect: it is for a cache")
    bench = (
        "bench",
        "digits",
        "--methods",
        "finetuning",
        "--profile",
        "smoke",
        "--orders",
        1,
        "-o",
        tmp_path / "bench",
    )
    only_line(dmc(*bench, "--group-size", 5, "--set", "overlap=10"), "groups of 5 classes cannot share 10")
    assert dmc(*bench, "--group-size", 5, "--set", "classes=20").code == 0
    assert "has 10 classes, not 20: all of them are learned" in caplog.text
