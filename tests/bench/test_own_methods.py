"""Users' own methods and networks in the benchmark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dmc.bench.runner import Bench
from dmc.methods import METHODS, OWN_FILES, methods_named
from dmc.recipes.profile import load_profile
from tests.bench.test_runner import Dmc

MINE = """
from dmc.methods import Learned, Lesson, Method
from dmc.methods.base import fitted, widened


class Mine(Method):
    name, title = "mine", "My method"

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        old, wide = widened(before, lesson)
        return Learned([fitted(wide, lesson, "mine")])
"""


def test_a_method_of_ones_own_is_one_file(dmc: Dmc, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    command = ("bench", "digits", "--group-size", 3, "--profile", "smoke", "--orders", 1, "-o", tmp_path / "b")
    said = dmc(*command, "--methods", f"finetuning,{file}", "--json")
    try:
        assert said.code == 0, said.err
        found = json.loads(said.out)
        assert found["mine"]["accuracy"] == found["finetuning"]["accuracy"]  # which it is
        assert "| My method | 1 |" in (tmp_path / "b" / "table.md").read_text()
    finally:
        METHODS.pop("mine", None)
    assert dmc(*command, "--methods", "finetuning").code == 0
    assert "| mine | 1 |" in (tmp_path / "b" / "table.md").read_text()  # its cells are there, its file is not
    for text, words in (
        ("import nothing_like_it", "ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("x = 1", "must have one subclass of dmc.methods.Method with `learn`; it has 0"),
        (MINE.replace('"mine", "My', '"lwf", "My'), "there is a method 'lwf' already"),
        (MINE.replace("My method", "DMC"), "there is a method with the title 'DMC' already"),
        (MINE.replace('"mine", "My', '"a/b", "My'), "a method is not called 'a/b'"),
        (MINE.replace('"mine", "My', '"shared", "My'), "'shared' has another meaning"),
        (MINE.replace('name, title = "mine", "My method"', "memory = 3"), "Mine needs a name and a title"),
        *(
            (
                MINE.replace("    def learn", f"    kinds = {kinds}\n\n    def learn"),
                "kinds of Mine is no tuple of classes",
            )
            for kinds in ('("classifier",)', "__import__('dmc').Specialist")
        ),
    ):
        file.write_text(text)
        said = dmc(*command, "--methods", file)
        assert (said.code, said.err.count("\n")) == (2, 1)
        assert words in said.err
    assert f"no such file: {tmp_path}/gone.py" in dmc(*command, "--methods", tmp_path / "gone.py").err


def test_a_method_that_has_changed_is_not_mixed_with_its_old_results(dmc: Dmc, tmp_path: Path) -> None:
    """Finished cells belong to the file that they were made with."""
    file, out = tmp_path / "mine.py", tmp_path / "b"
    file.write_text(MINE)
    command = ("bench", "digits", "--group-size", 5, "--profile", "smoke", "--orders", 1, "-o", out, "--methods", file)
    try:
        assert dmc(*command).code == 0
        file.write_text(f"{MINE}\n# changed\n")
        METHODS.pop("mine")
        said = dmc(*command)
        assert (said.code, said.out) == (2, "")
        assert f"{file} has changed since {out}/order-0/mine was begun with it: remove that folder" in said.err
        shutil.rmtree(out / "order-0" / "mine")
        assert dmc(*command).code == 0
    finally:
        METHODS.pop("mine", None)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("", "mine gives a NoneType back, not Learned([model])"),
        ("return wide", "mine gives a Specialist back, not Learned([model])"),
        ("return Learned(wide)", "Learned takes a list of models, Learned([model])"),
        ("return Learned([])", "Learned takes a list of models, Learned([model])"),
        ("return Learned([wide], {'seen': 3})", "Learned takes tensors as notes, by name"),
        ("return Learned([old])", "the model of mine does not know 3 after group 1"),
        ("return before.notes['gone']", "KeyError: 'gone' ({folder}/failed.txt has more)"),
    ],
)
def test_what_a_method_gives_back_is_checked(given: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE.replace('return Learned([fitted(wide, lesson, "mine")])', given))
    bench = Bench("digits", 5, load_profile("smoke", "digits"), tmp_path / "b")
    bench.claim_folder()
    try:
        (method,) = methods_named(str(file))
        assert bench.run_cell(method, 0) == reason.format(folder=bench.cell_folder("mine", 0))
        told = (bench.cell_folder("mine", 0) / "failed.txt").read_text()
        assert (f'File "{file}", line' in told) == ("KeyError" in reason)
    finally:
        METHODS.pop("mine", None)


def test_a_file_that_changes_between_two_calls_is_read_again(tmp_path: Path) -> None:
    """As in a notebook: a built-in method keeps its name, one's own is replaced."""
    file = tmp_path / "mine.py"
    try:
        for title in ("My method", "My better method"):
            file.write_text(MINE.replace("My method", title))
            (found,) = methods_named(str(file))
            assert (found.title, METHODS["mine"].title, title in OWN_FILES["mine"].code) == (title, title, True)
    finally:
        METHODS.pop("mine", None)


OWN = """
from __future__ import annotations
from dataclasses import dataclass
from torch import nn

@dataclass
class Shape:
    hidden: int = 4

def make_network(num_classes):
    hidden = Shape().hidden
    return nn.Sequential(nn.Conv2d(1, hidden, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(hidden, num_classes))
"""


def test_a_network_of_ones_own_learns_group_after_group(dmc: Dmc, tmp_path: Path) -> None:
    """Models of earlier groups are loaded again, and their code is run because the user has named it."""
    file, out = tmp_path / "net.py", tmp_path / "b"
    file.write_text(OWN)
    said = dmc("bench", "digits", "--group-size", 5, "--profile", "smoke", "--orders", 1, "--set", "classes=10",
               "--methods", "finetuning,inference-twice", "--set", f"arch={file}:make_network", "-o", out)  # fmt: skip
    assert said.code == 0, said.err
    assert "Finetuning" in said.out
    assert "Inference twice" in said.out
    assert json.loads((out / "order-0/finetuning/group-1/learned/model-0/config.json").read_text())["architecture"] == (
        "net.py:make_network"
    )
