"""The benchmark as a user runs it, in seconds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from filelock import FileLock

from dmc.bench.runner import Bench, Cell, every_tracker, require_none_failed
from dmc.bench.summary import summary
from dmc.data.subsets import ListedImages
from dmc.errors import DmcError
from dmc.methods import METHODS, Learned, Lesson, Method, methods_named
from dmc.metrics.incremental import Confusion, StreamScores
from dmc.models.specialist import Specialist
from dmc.recipes.profile import load_profile, strength_for
from dmc.recipes.recipe import comparisons, load_recipes
from dmc.report.bench import other_orders
from dmc.schedule import CONSOLIDATION, SPECIALIST
from tests.conftest import Answer, tiny, write_images

Dmc = Callable[..., Answer]


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.slow
def test_every_method_goes_through_three_groups(dmc: Dmc, tmp_path: Path) -> None:
    command = ("bench", "digits", "--group-size", 2, "--profile", "smoke", "--orders", 1, "-o", tmp_path / "b")
    said = dmc(*command, "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    everyone = methods_named("all", Specialist)
    assert set(found) == {method.name for method in everyone}
    assert {row["profile"] for row in found.values()} == {"smoke"}
    for name, row in found.items():
        assert len(row["accuracy"]) == 3
        assert [len(step["of each group"]) for step in row["after each group"]] == [1, 2, 3]
        assert [step["accuracy"]["mean"] for step in row["after each group"]] == row["accuracy"]
        once, then, now = (step["of each group"] for step in row["after each group"])
        forgotten = (max(once[0], then[0]) - now[0] + then[1] - now[1]) / 2
        assert row["after each group"][2]["forgetting"]["mean"] == pytest.approx(forgotten)
        assert "forgetting" not in row["after each group"][0]
        assert row["after each group"][1]["average incremental"]["mean"] == row["accuracy"][1]
        if name not in ("icarl", "lwf.mc"):  # which have a first model with sigmoids
            assert row["accuracy"][0] == found["oracle"]["accuracy"][0]  # the first group's model is shared
    assert "profile smoke" in (tmp_path / "b" / "table.md").read_text()
    assert (tmp_path / "b" / "accuracy.png").stat().st_size > 10_000
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "b").rglob("confusion.npy")}
    assert len(stamps) == 3 * len(everyone)
    said = dmc(*command[:-2], "--methods", "lwf", *command[-2:])
    assert said.code == 0
    for table in (said.out, (tmp_path / "b" / "table.md").read_text()):
        assert "`smoke`: its numbers only show that everything runs, and mean nothing." in table
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps  # finished cells are not run again
    table = (tmp_path / "b" / "table.md").read_text()
    assert all(method.title in table for method in everyone)  # and all of them are shown
    minutes = sum(row["minutes"] for row in map(read_json, (tmp_path / "b" / "order-0" / "lwf").rglob("made.json")))
    assert f"--methods lwf -o {tmp_path}/b`" in table  # what to type to get it again
    assert f"LwF {minutes:.1f}, " in table
    assert f"torch {version('torch')}" in table


class StopError(BaseException):
    pass


def stopping_after(learn: Callable[..., Learned], stop: int) -> Callable[..., Learned]:
    """Break `learn` off when group `stop` is trained and not yet saved."""

    def broken_off(self: Method, before: Learned, lesson: Lesson) -> Learned:
        result = learn(self, before, lesson)
        if lesson.folder.name == f"group-{stop}":
            raise StopError
        return result

    return broken_off


@pytest.mark.slow
def test_a_cell_interrupted_after_any_group_ends_the_same(bench: Bench, tmp_path: Path) -> None:
    whole = Bench(bench.stream, 2, bench.profile, tmp_path / "whole")
    for comparison in (bench, whole):
        comparison.claim_folder()

    for name in ("rwalk", "icarl", "dmc+"):
        method = METHODS[name]
        whole.run_cell(method, 1)  # in order 1, classes do not arrive in the order of their names
        for stop in (1, 2):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(type(method), "learn", stopping_after(type(method).learn, stop))
                with pytest.raises(StopError):
                    bench.run_cell(method, 1)
        assert bench.run_cell(method, 1) == ""
        ours, theirs = (b.cell_folder(name, 1) / "group-2" for b in (bench, whole))
        assert np.array_equal(np.load(ours / "confusion.npy"), np.load(theirs / "confusion.npy"))
        for file in ("model-0/model.safetensors", "notes.safetensors"):
            assert (ours / "learned" / file).read_bytes() == (theirs / "learned" / file).read_bytes()


def test_a_cell_that_another_process_is_at_is_left_to_it(bench: Bench) -> None:
    bench.claim_folder()
    folder = bench.cell_folder("finetuning", 0)
    folder.mkdir(parents=True)
    with FileLock(folder / ".lock"):
        assert bench.run_cell(METHODS["finetuning"], 0) == "another process is working on it"
    assert not (folder / "failed.txt").exists()
    assert bench.finished("finetuning", 0) is None


def test_a_first_model_that_another_process_trained_meanwhile(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "_train_first", lambda *_: pytest.fail("it is trained again"))
    folder, stream = bench.first_folder(0, ()), bench.open(0)
    folder.mkdir(parents=True)
    with ThreadPoolExecutor(1) as pool:
        with FileLock(folder / ".first-lock"):
            waiting = pool.submit(bench.first, stream, 0)
            time.sleep(0.2)
            assert not waiting.done()
            Learned([tiny("ab")]).save(folder / "learned")
        assert list(waiting.result().model.names) == ["a", "b"]


def test_a_cell_that_diverges_does_not_stop_the_others(
    dmc: Dmc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dmc.methods.lwf.TEMPERATURE", float("nan"))
    said = dmc("bench", "digits", "--group-size", 3, "--profile", "smoke", "--orders", 1,
               "--methods", "lwf,finetuning", "-o", tmp_path / "b")  # fmt: skip
    assert said.code == 2
    assert "lwf, order 0: training diverged: loss is not finite" in said.err
    assert "failed, and not in the table: lwf, order 0 (training diverged: loss is not finite" in said.err
    assert "Finetuning" in said.out
    assert "LwF" not in said.out
    assert "diverged" in (tmp_path / "b" / "order-0" / "lwf" / "failed.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("digits", "--methods", "dmcc"), "unknown method 'dmcc'; did you mean 'dmc'?"),
        (("digits", "--methods", "all,LwF.MC"), "unknown method 'LwF.MC'; did you mean 'lwf.mc'?"),
        (("digits", "--methods", ""), "no method is named"),
        (("digits", "--profile", "lit"), "unknown profile 'lit'; did you mean 'lite'?"),
        (("nowhere",), "unknown stream 'nowhere'"),
        (("digits", "--group-size", "10"), "all 10 classes are in the first group"),
        (("digits", "--group-size", "3"), "the last group has one class, and fixed-representation, lwf, ewc, ewc++"),
        (("digits", "--set", "arch=resnett", "--group-size", "2"), "unknown architecture 'resnett'"),
        (("digits", "--set", "loss=[1"), "setting loss=[1: cannot parse '[1'"),
        (("digits", "--set", "loss=foo"), "loss 'foo' should be 'l2', 'l1' or 'kd'\n"),
        (("digits", "--set", "specialist.epoch=3"), "specialist: there is no setting 'epoch'; did you mean 'epochs'?"),
        (("digits", "--set", "epochs=3"), "epochs is a schedule's: write specialist.epochs or consolidation.epochs"),
        (("digits", "--set", "specialist=3"), "write specialist.epochs=20, not specialist=3"),
        (("icifar100",), "CIFAR-100 is missing: put cifar100/train"),
    ],
)
def test_bad_input(
    dmc: Dmc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.delenv("DMC_DATA", raising=False)
    said = dmc("bench", *arguments, "-o", tmp_path / "b")
    assert said.code == 2
    assert words in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "b").exists()


def test_a_folder_holds_one_comparison(dmc: Dmc, tmp_path: Path) -> None:
    command = ("bench", "digits", "--methods", "finetuning", "--orders", 1, "--profile", "smoke", "-o", tmp_path / "b")
    said = dmc(*command, "--group-size", 4)
    assert said.code == 0
    first, after = said.err.splitlines()[0], said.err.splitlines()[1:]
    assert first == "dmc: the last group has 2 classes"
    assert [line.rpartition(": ")[0] for line in after] == ["dmc: finetuning, order 0"] * 2  # a log of what is finished
    assert [line.partition(" of ")[2] for line in after] == ["4 classes", "6 classes"]
    assert dmc(*command, "--group-size", 3).code == 2


def test_profiles_change_only_what_they_name() -> None:
    paper = load_profile("paper", "icifar100")
    assert (paper.specialist, paper.consolidation, paper.arch) == (SPECIALIST, CONSOLIDATION, "cifar_resnet32")
    lite = load_profile("lite", "icifar100")
    assert (lite.specialist.epochs, lite.specialist.momentum) == (36, SPECIALIST.momentum)
    assert load_profile("lite", "digits").specialist.flip is False


def test_a_stream_changes_the_paper_and_a_profile_has_the_last_word() -> None:
    paper, lite, smoke = (load_profile(name, "cub200") for name in ("paper", "lite", "smoke"))
    assert (paper.arch, paper.specialist.epochs, paper.specialist.lr) == ("vgg16", 50, 0.001)
    assert (lite.arch, lite.specialist.epochs, lite.specialist.lr) == ("cifar_resnet32", 12, 0.1)
    assert (smoke.arch, smoke.specialist.epochs) == ("cifar_resnet8", 1)


def test_a_plain_folder_of_classes_is_a_stream(dmc: Dmc, tmp_path: Path) -> None:
    """Every fifth image is for testing; auxiliary images are asked for only by methods that use them."""
    for i, name in enumerate("abcd"):
        write_images(tmp_path / "pets" / name, 10, seed=i)
    command = ("bench", tmp_path / "pets", "--group-size", 2, "--profile", "smoke", "--orders", 1)
    said = dmc(*command, "--methods", "finetuning", "-o", tmp_path / "b", "--json")
    assert said.code == 0, said.err
    assert np.load(tmp_path / "b" / "order-0" / "finetuning" / "group-1" / "confusion.npy").sum() == 8
    (tmp_path / "pets").rename(tmp_path / "away")  # a table of finished cells needs no data
    again = dmc(*command, "--methods", "finetuning", "-o", tmp_path / "b", "--json")
    assert (again.code, again.out) == (0, said.out), again.err
    moved = ("bench", f"{tmp_path / 'away' / '..'}/pets/", *command[2:])  # another spelling of the same folder
    again = dmc(*moved, "--methods", "finetuning", "-o", tmp_path / "b", "--json")
    assert (again.code, again.out) == (0, said.out), again.err
    (tmp_path / "away").rename(tmp_path / "pets")
    said = dmc(*command, "--methods", "dmc", "-o", tmp_path / "c")
    assert (said.code, "say where they are, aux=FOLDER" in said.err) == (2, True)
    write_images(tmp_path / "pets" / "aux", 10, seed=9)  # aux/ is not a class
    said = dmc(*command, "--methods", "dmc", "--order", 3, "-o", tmp_path / "c", "--json")
    assert (said.code, json.loads(said.out)["dmc"]["classes"]) == (0, [2, 4]), said.err
    assert [p.name for p in (tmp_path / "c").glob("order-*")] == ["order-3"]  # one cell, as a scheduler runs it
    write_images(tmp_path / "pets" / "e", 3, seed=8)
    said = dmc(*command, "--methods", "finetuning", "-o", tmp_path / "d")
    assert (said.code, "has 3 images of class 'e'; one in 5 is held out" in said.err) == (2, True)


def test_a_class_that_cannot_be_tested(dmc: Dmc, tmp_path: Path) -> None:
    for part, names in (("train", "abcd"), ("test", "abc")):
        for name in names:
            write_images(tmp_path / "pets" / part / name, 5, seed=0)
    said = dmc("bench", tmp_path / "pets", "--group-size", 2, "--methods", "finetuning", "-o", tmp_path / "b")
    assert (said.code, "has no class 'd', which" in said.err) == (2, True)


def test_the_first_group_is_watched_for_every_method() -> None:
    found = {tracker.prefix for tracker in every_tracker(tiny("ab").module, Specialist)}
    assert found == {"fisher", "walk", "path"}


def test_strengths_are_the_appendixs() -> None:
    assert [strength_for("ewc++", g, 0) for g in (5, 10, 20, 50)] == [10, 10, 1, 0.1]
    assert strength_for("rwalk", 6, 0) == 5  # the nearest group size
    assert strength_for("lwf", 10, 1.0) == 1.0


def test_answers_outside_of_the_classes_so_far(bench: Bench) -> None:
    """A class that the model does not know counts as wrong; one that has not arrived must not be an answer."""
    stream = bench.open(0)
    names = stream.so_far(1)
    specialist = Specialist.untrained("cifar_resnet8", names[:2], bench.profile.preprocessing)
    kind = bench.profile.task
    found = kind.measure(specialist, stream.test, names, names)
    assert isinstance(found, Confusion)
    matrix = found.matrix
    per_class = [int((np.array(list(stream.test.labels())) == stream.test.classes.index(n)).sum()) for n in names]
    assert matrix.sum(axis=1).tolist() == per_class
    assert matrix[:, 2:].sum() == 0
    with pytest.raises(DmcError, match="answers with 'z', a class that has not arrived"):
        kind.measure(specialist.widened("z"), stream.test, names, names)


def test_groups_larger_than_a_profile_was_made_for(dmc: Dmc, tmp_path: Path) -> None:
    """smoke has six classes. Five at a time would leave one alone, so there are ten, unless the user says how many."""
    command = ("bench", "digits", "--group-size", 5, "--profile", "smoke", "--orders", 1, "--methods", "finetuning")
    said = dmc(*command, "-o", tmp_path / "a", "--json")
    assert json.loads(said.out)["finetuning"]["classes"] == [5, 10]
    assert json.loads((tmp_path / "a" / "table.json").read_text()) == json.loads(said.out)
    said = dmc(*command, "--set", "classes=7", "-o", tmp_path / "b", "--json")
    assert json.loads(said.out)["finetuning"]["classes"] == [5, 7]
    assert "the last group has 2 classes" in said.err


def test_a_part_of_the_auxiliary_images_is_always_the_same(bench: Bench) -> None:
    first, second = (bench.open(0, with_aux=True).aux for _ in range(2))
    assert isinstance(first, ListedImages)
    assert isinstance(second, ListedImages)
    assert len(first) == 200
    assert [r.name for r in first.records()] == [r.name for r in second.records()]


def test_a_class_that_only_some_orders_have() -> None:
    """A profile may take an order's first classes alone, and another order has others."""
    cells = {
        order: StreamScores([2], [0.5], [[0.5]], per_class)
        for order, per_class in enumerate(({"a": 0.2, "b": 0.4}, {"b": 0.8, "c": 1.0}))
    }
    found = summary({"dmc": cells})["dmc"]["per class"]
    assert {name: spread["mean"] for name, spread in found.items()} == pytest.approx({"a": 0.2, "b": 0.6, "c": 1.0})


def test_a_reason_why_a_cell_failed_does_not_outlive_the_next_try(tmp_path: Path) -> None:
    """Another command that finds it being worked on has nothing to complain of."""
    bench = Bench("digits", 5, load_profile("smoke", "digits"), tmp_path)
    bench.claim_folder()
    cell = Cell(bench, "finetuning", 0, {})
    cell.folder.mkdir(parents=True)
    (cell.folder / "failed.txt").write_text("yesterday's reason\n")
    with patch.object(Bench, "_learn_all", side_effect=lambda *_: require_none_failed([cell])):
        assert bench.run_cell(METHODS["finetuning"], 0) == ""


def test_rows_of_different_class_orders_are_said_not_to_compare() -> None:
    first, second = (StreamScores([1, 2], [0.9, a], [[0.9], [a, a]], {"a": a}) for a in (0.5, 0.7))
    found = {"lwf": {0: first, 1: second}, "oracle": {0: second}}
    assert other_orders(found).endswith("so rows do not compare. LwF: 0, 1; Oracle: 0.")
    assert summary(found)["lwf"]["intransigence"] is None
    both = {"lwf": {0: first, 1: second}, "oracle": {0: second, 1: second}}
    assert other_orders(both) == ""
    assert summary(both)["lwf"]["intransigence"]["mean"] == pytest.approx(0.1)


def test_data_that_has_changed_is_not_mixed_with_what_was_learned_before(bench: Bench) -> None:
    place = bench.folder / "order-0" / "groups.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps([["0", "1"], ["2", "3"]]))
    assert "was begun with other classes (see groups.json): choose another folder" in bench.run_cell(
        METHODS["finetuning"], 0
    )
    assert json.loads(place.read_text()) == [["0", "1"], ["2", "3"]]


def test_a_setting_within_others_changes_it_alone() -> None:
    whole = load_profile("paper", "cub200").preprocessing
    smaller = load_profile("paper", "cub200", {"preprocessing": {"size": 112}}).preprocessing
    assert whole is not None
    assert whole.size == 224
    assert smaller == replace(whole, size=112)


def test_every_profile_of_a_recipe_leaves_classes_to_learn() -> None:
    for name, recipe in load_recipes().items():
        for profile in ("paper", "night", "lite", "smoke"):
            for comparison in comparisons(recipe, profile, {}):
                classes, size = comparison.profile.classes, comparison.group_size
                assert comparison.profile.groups or classes is None or classes > size, (name, profile)


def test_only_divergence_is_a_verdict_on_a_strength(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "run_cell", lambda *_: "training diverged: loss is not finite by step 3")
    assert bench._trial(METHODS["ewc"], 0, 1.0, bench.folder / "trial") is None
    monkeypatch.setattr(Bench, "run_cell", lambda *_: "out of memory")
    with pytest.raises(DmcError, match="strength 1 could not be tried: out of memory"):
        bench._trial(METHODS["ewc"], 0, 1.0, bench.folder / "trial")


def test_a_method_keeps_only_what_it_watches(bench: Bench) -> None:
    """The first group's model is watched for all methods; what MAS needs of that is nothing."""
    stream = bench.open(0)
    first = bench.first(stream, 0)
    lesson = bench.lesson(stream, METHODS["mas"], 0, 0)
    watching = {"ewc++": "fisher", "si": "path", "mas": ""}
    assert {note.partition(".")[0] for note in first.notes} >= {"fisher", "path", "walk"}
    for name, prefix in watching.items():
        notes = METHODS[name].begin(first, lesson).notes
        assert {note.partition(".")[0] for note in notes} == {"importance", *filter(None, [prefix])}
