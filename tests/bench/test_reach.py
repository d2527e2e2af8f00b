"""What methods can and cannot reach."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from dmc.bench.runner import Bench
from dmc.bench.streams import open_stream
from dmc.data.open import open_labeled
from dmc.data.sources import Source
from dmc.methods import Learned, Lesson, Method, methods_named
from dmc.models.specialist import Specialist
from dmc.recipes.profile import load_profile
from tests.conftest import write_images


class Spy(Method):
    """Tries to remember all that it is given, in itself and in a list outside."""

    name, title = "spy", "Spy"
    seen: ClassVar[list[tuple[Lesson, Learned, Method]]] = []

    def begin(self, first: Learned, lesson: Lesson) -> Learned:
        self.remember(first, lesson)
        return first

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        self.remember(before, lesson)
        old = before.specialists[0]
        return Learned([old.widened(lesson.data.classes)])

    def remember(self, before: Learned, lesson: Lesson) -> None:
        self.hoard = [*getattr(self, "hoard", []), lesson]
        self.seen.append((lesson, before, self))


class SpyWithImages(Spy):
    name, uses_aux = "spy-with-images", True


class Stasher(Spy):
    """Hides its images in the model that it returns."""

    name = "stasher"

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        learned = super().learn(before, lesson)
        learned.specialists[0].stash = lesson.data
        return learned


def reachable(root: object) -> list[object]:
    """Collect everything that attributes and containers lead to, except into modules and types."""
    found: list[object] = []
    seen: set[int] = set()
    todo = [root]
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, type) or (type(thing).__module__ == "builtins" and callable(thing)):
            continue
        seen.add(id(thing))
        found.append(thing)
        todo += list(vars(thing).values()) if hasattr(thing, "__dict__") else []
        if isinstance(thing, dict):
            todo += thing.values()
        elif isinstance(thing, list | tuple | set):
            todo += thing
    return found


def pixels_of(source: Source) -> set[bytes]:
    return {np.asarray(record.image).tobytes() for record in source.records()}


@pytest.mark.parametrize("method", [Spy(), SpyWithImages(), Stasher()])
def test_old_data_is_out_of_reach(bench: Bench, method: Spy) -> None:
    Spy.seen.clear()
    bench.claim_folder()
    assert bench.run_cell(method, 0) == ""
    stream = bench.open(0)
    assert [lesson.data.classes for lesson, _, _ in Spy.seen] == [tuple(sorted(group)) for group in stream.groups]
    for (lesson, before, spy), group in zip(Spy.seen, stream.groups, strict=True):
        things = reachable([lesson, before, spy])
        given = [lesson.data] if lesson.aux is None else [lesson.data, lesson.aux]
        assert len(given) == 1 + method.uses_aux
        sources = [thing for thing in things if isinstance(thing, Source)]
        assert all(
            any(source is one for one in reachable(given)) for source in sources
        )  # those of earlier lessons are gone
        own = stream.train.keep(group)
        others = stream.train.keep([name for name in stream.train.classes if name not in group])
        arrays = [thing for thing in things if isinstance(thing, np.ndarray) and thing.dtype == np.uint8]
        seen = {image.tobytes() for array in arrays for image in (array if array.ndim == 4 else [array])}
        assert pixels_of(own) <= seen
        assert not pixels_of(others) & seen
        assert all(array.base is None for array in arrays)  # no view into the whole data set
        assert not any(isinstance(thing, Tensor) and thing.dtype == torch.uint8 for thing in things)


def test_only_the_oracle_sees_everything(bench: Bench) -> None:
    stream = bench.open(0, with_aux=True)
    for method in methods_named("all", Specialist):
        lesson = bench.lesson(stream, method, order=0, i=2)
        expected = stream.so_far(2) if method.name == "oracle" else stream.groups[2]
        assert set(lesson.data.classes) == set(expected)
        assert (lesson.aux is not None) == (method.name in ("dmc", "dmc+", "dmc++"))


class Hoarder(Spy):
    """Keeps one image more than it declared."""

    name, memory = "hoarder", 3

    def __init__(self, note: Tensor) -> None:
        super().__init__()
        self.note = note

    def begin(self, first: Learned, lesson: Lesson) -> Learned:
        return Learned(first.specialists, {"under any name": self.note})


@pytest.mark.parametrize(
    "note",
    [
        torch.zeros(4, 3, 8, 8),
        torch.zeros(4, 3 * 8 * 8),
        torch.zeros(4 * 3 * 8 * 8),
        torch.zeros((4, 3 * 8 * 8), dtype=torch.uint8),
    ],
)
def test_a_method_cannot_keep_more_images_than_it_declared(bench: Bench, note: Tensor) -> None:
    bench.claim_folder()
    assert bench.run_cell(Hoarder(note), 0) == "hoarder keeps 4 images but declared 3"


def test_auxiliary_images_have_no_labels(tmp_path: Path) -> None:
    """Auxiliary images have no labels, even if their data set has."""
    for part in ("train", "test", "aux"):
        for i, name in enumerate("abcd"):
            write_images(tmp_path / "pets" / part / name, 5, seed=i)
    labeled = open_labeled(tmp_path / "pets" / "aux")
    stream = open_stream(str(tmp_path / "pets"), 2, 0, load_profile("smoke", "digits"), None, with_aux=False)
    for count, images in ((None, 20), (7, 7), (100, 20), (0.25, 5), (1.0, 20), (1, 1)):  # 1.0 is a share: all
        aux = replace(stream, all_aux=labeled, aux_images=count).aux
        assert aux is not None
        assert (len(aux), aux.classes, set(aux.labels())) == (images, (), {-1})
