"""What teachers answered is asked once, kept whole or not at all, and changes nothing but the time it takes."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import dmc
from dmc.config import RunConfig
from dmc.data.augment import content_ids, stored_corners, stored_mirrored
from dmc.data.batch import Batch
from dmc.distill.answer_table import AnswerTable, ImageRows, Part, Room
from dmc.distill.cache import MARKER, AnswerCache, Kept, on_disk
from dmc.distill.classifier_objective import Distillation
from dmc.errors import DmcError
from dmc.models.detector import Detector
from dmc.models.specialist import Specialist
from dmc.schedule import Schedule
from tests.conftest import classifiers, tiny
from tests.detectors import untrained

PIXELS = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8), dtype=np.uint8))
NOISE = np.random.default_rng(1).integers(0, 256, (24, 16, 16, 3), dtype=np.uint8)
PLAIN: dict[str, Any] = {"scale": "none", "balance": False, "held_out": 0}


class Teacher:
    """Answers with three numbers about an image, and counts how many images it was asked about."""

    def __init__(self) -> None:
        self.asked = 0

    def about(self, batch: Batch) -> list[Tensor]:
        self.asked += len(batch)
        return [batch.images_N3HW.float().mean(dim=(2, 3)) / 7]


def opened(folder: Path, images: int = 40, views: int = 2) -> AnswerTable:
    folder.mkdir(exist_ok=True)
    return AnswerTable(folder, ImageRows(folder, images), [Part((3,))], views, Room(2**20))


def some(first: int, last: int, view: int = 0) -> Batch:
    return Batch(PIXELS[first:last], torch.zeros(last - first)).in_view(view)


def test_each_view_of_an_image_is_asked_about_once_and_rounded_alike_from_the_first_time_on(tmp_path: Path) -> None:
    table, teacher = opened(tmp_path / "t"), Teacher()
    first = [table(some(0, 8), lambda: teacher.about(some(0, 8)))[0] for _ in range(2)]
    assert teacher.asked == 8
    assert torch.equal(first[0], first[1])
    exact = teacher.about(some(0, 8))[0]
    assert torch.equal(first[0], exact.half().float())
    assert not torch.equal(first[0], exact)
    table(some(0, 8, view=1), lambda: teacher.about(some(0, 8)))
    assert teacher.asked == 24  # another view, and the line above
    table(some(4, 12), lambda: teacher.about(some(4, 12)))  # half of it is new, so all of it is asked about
    assert teacher.asked == 32
    table.close()
    again = opened(tmp_path / "t")
    assert torch.equal(
        again(some(2, 12), lambda: pytest.fail("known"))[0], teacher.about(some(2, 12))[0].half().float()
    )


@pytest.mark.parametrize("name", ["answers.bin", "images.bin"])
def test_a_flipped_bit_anywhere_is_noticed_and_answered_again(tmp_path: Path, name: str) -> None:
    teacher = Teacher()
    table = opened(tmp_path / "t", views=1)
    right = table(some(0, 8), lambda: teacher.about(some(0, 8)))[0]
    table.close()
    path = tmp_path / "t" / name
    whole = path.read_bytes()
    size = 8 * (10 if name == "answers.bin" else 8)  # of the rows in use: a checksum and three words, or a number
    for byte in range(size):
        path.write_bytes(whole[:byte] + bytes([whole[byte] ^ (1 << byte % 8)]) + whole[byte + 1 :])
        teacher.asked = 0
        damaged = opened(tmp_path / "t", views=1)
        assert torch.equal(damaged(some(0, 8), lambda: teacher.about(some(0, 8)))[0], right)
        assert teacher.asked == 8
        damaged.close()


def test_files_that_were_cut_off_or_are_written_by_two_at_once_do_no_harm(tmp_path: Path) -> None:
    teacher = Teacher()
    table, other = opened(tmp_path / "t"), opened(tmp_path / "t")
    for first in range(0, 40, 8):  # both are asked about everything, each writes half of it
        for one in (table, other) if first % 16 else (other, table):
            one(some(first, first + 8), lambda first=first: teacher.about(some(first, first + 8)))  # type: ignore[misc]
            one.flush()
    assert (tmp_path / "t/images.bin").stat().st_size == 8 * 40
    right = table(some(0, 40), lambda: pytest.fail("known"))[0]
    assert torch.equal(right, other(some(0, 40), lambda: pytest.fail("known"))[0])
    os.truncate(tmp_path / "t/images.bin", 8 * 20 + 3)
    os.truncate(tmp_path / "t/answers.bin", 100)
    for _ in range(2):
        cut = opened(tmp_path / "t")
        assert torch.equal(cut(some(0, 40), lambda: teacher.about(some(0, 40)))[0], right)
        cut.close()
    assert torch.equal(opened(tmp_path / "t")(some(0, 40), lambda: pytest.fail("known"))[0], right)


def test_a_full_disk_ends_the_keeping_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dmc.distill.answer_table.os.pwrite", full)
    table, teacher = opened(tmp_path / "t"), Teacher()
    with caplog.at_level(logging.WARNING, "dmc"):
        for _ in range(3):
            assert len(table(some(0, 8), lambda: teacher.about(some(0, 8)))[0]) == 8
    assert teacher.asked == 24
    assert [record.getMessage().partition(" in ")[0] for record in caplog.records] == [
        "the teachers' answers are no longer kept"
    ]


def using(folder: Path, key: str, images: int, limit: int, answers: Sequence[float] = (1.0, 2.0)) -> int:
    """Open the table of a key and ask about eight images; give how many the teacher was asked about."""
    teacher = Teacher()
    with AnswerCache(folder, limit, views=1, images=images, seen={}) as cache:
        (table,) = cache.tables([Kept({"key": key}, [Part((3,))], torch.tensor(answers))])
        table(some(0, 8), lambda: teacher.about(some(0, 8)))
    age = {"a": 100, "b": 200, "c": 300}[key]
    os.utime(table.folder / MARKER, (age, age))
    return teacher.asked


def test_tables_not_used_for_longest_make_room_and_what_cannot_fit_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    mine = folder / "website"  # a user may name any folder
    mine.mkdir(parents=True)
    (mine / MARKER).write_text('{"layout": {}, "probe": []}')

    def kept() -> set[str]:
        found = (json.loads(path.read_text())["layout"].get("key") for path in folder.glob(f"*/{MARKER}"))
        return {key for key in found if key}

    assert [using(folder, key, 8, 2**20) for key in "abc"] == [8, 8, 8]
    assert kept() == set("abc")
    used = on_disk(folder) + sum(map(on_disk, folder.glob("*/"))) - on_disk(mine)
    (own,) = (path.parent for path in folder.glob(f"*/{MARKER}") if '"c"' in path.read_text())
    needed = 1000 * (8 + 4 + 2 * 3) - on_disk(own)  # for an image its number, a checksum and three words
    assert using(folder, "c", 1000, used + needed) == 0
    assert kept() == set("abc")
    assert using(folder, "c", 1000, used + needed - 1) == 0
    assert kept() == set("bc")
    with pytest.raises(
        DmcError, match=r"^the teachers' answers need 0.02 GiB in .*cache, which has room for 0.00: keep"
    ):
        using(folder, "c", 2**20, 2**20)
    assert using(folder, "c", 8, 8 * 18) == 0  # a limit that is passed already refuses nothing that is there
    assert (mine / MARKER).exists()
    with pytest.raises(DmcError, match=r"^the cache cannot be in .*: .*dmc-answers.json is no folder that can be"):
        using(mine / MARKER, "a", 8, 2**20)


def test_the_limit_holds_also_where_other_images_fill_a_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, limit = tmp_path / "cache", 40 * 18
    with AnswerCache(folder, limit, 1, 40, {}) as cache, caplog.at_level(logging.WARNING, "dmc"):
        (table,) = cache.tables([Kept({"key": "a"}, [Part((3,))], torch.zeros(1))])
        table.room.left = 8 * 10  # for eight entries
        for first in (0, 8, 16):
            table(some(first, first + 8), lambda: Teacher().about(some(0, 8)))
        table.flush()
        assert table.read(some(0, 8).ids_N.numpy(), 0)[1].all()  # type: ignore[union-attr]
        assert not table.read(some(8, 16).ids_N.numpy(), 0)[1].any()  # type: ignore[union-attr]
    assert [message.rpartition(": ")[2] for message in caplog.messages] == ["the cache is full"]


def test_a_teacher_with_the_same_weights_and_another_program_is_asked_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert using(tmp_path / "c", "a", 8, 2**20, (1.0, -3.0)) == 8
    assert using(tmp_path / "c", "a", 8, 2**20, (1.001, -3.001)) == 0  # as another device rounds
    with caplog.at_level(logging.WARNING, "dmc"):
        assert using(tmp_path / "c", "a", 8, 2**20, (1.0, -2.0)) == 8
    assert "another program with the same weights" in caplog.text


def test_a_teacher_that_is_not_finite_is_noticed_with_a_cache_too() -> None:
    words = Part((3,)).packed(torch.tensor([[float("inf"), float("nan"), 1e6]]))
    assert Part((3,)).unpacked(words).isfinite().tolist() == [[False, False, True]]


def test_stored_views_depend_on_the_image_alone_and_are_as_varied_as_random_ones() -> None:
    ids_N = content_ids(PIXELS)
    assert len(set(ids_N.tolist())) == 40
    assert torch.equal(content_ids(PIXELS[5:9]), ids_N[5:9])
    assert content_ids(PIXELS[:1].view(1, 3, 4, 16)) != ids_N[:1]  # the same pixels in another shape
    views = torch.stack([stored_corners(ids_N, view, pad=2) for view in range(32)])  # 32 x 2 x 40
    assert views.min() == 0
    assert views.max() == 4
    drawn = Counter(map(tuple, views.permute(0, 2, 1).reshape(-1, 2).tolist()))
    assert len(drawn) == 25
    assert max(drawn.values()) < 2 * min(drawn.values())
    mirrored = torch.stack([stored_mirrored(ids_N, view, flip=True) for view in range(4)])
    assert (mirrored.sum(dim=0) == 2).all()  # every second view of each image
    assert 10 < mirrored[0].sum() < 30
    assert not stored_mirrored(ids_N, 1, flip=False).any()


def asked_about(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> Counter[str]:
    """Count the images that each teacher is asked about."""
    images: Counter[str] = Counter()
    real = getattr(kind, name)

    def counting(self: Any, images_N3HW: Tensor) -> Any:
        images[",".join(self.names)] += len(images_N3HW)
        return real(self, images_N3HW)

    monkeypatch.setattr(kind, name, counting)
    return images


def merged(teachers: Sequence[Specialist], out: Path, cache: Path, stops: Sequence[int] = (), **extra: Any) -> bytes:
    """Consolidate with a cache, breaking off after each of `stops` steps; give the student's weights."""
    schedule = Schedule(epochs=5, lr=0.05, batch_size=8)
    real = Distillation.losses
    for stop in [*stops, None]:
        steps = count()

        def losses(self: Distillation, *given: Any, stop: int | None = stop, steps: Any = steps) -> dict[str, Tensor]:
            if next(steps) == stop:
                raise KeyboardInterrupt
            return real(self, *given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Distillation, "losses", losses)
            settings = PLAIN | {"cache": str(cache), "views": 2} | extra
            with suppress(KeyboardInterrupt):
                classifiers(teachers, NOISE, schedule, **settings).run(out, RunConfig(resume=True, checkpoint_every=0))
    return (out / "model.safetensors").read_bytes()


def test_teachers_are_asked_once_about_each_view_and_other_runs_use_their_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ab, cd, ef = tiny("ab", 1), tiny("cd", 2), tiny("ef", 3)
    asked = asked_about(monkeypatch, Specialist, "logits")
    cache = tmp_path / "cache"

    def new(teachers: Sequence[Specialist], out: str, **extra: Any) -> dict[str, int]:
        asked.clear()
        merged(teachers, tmp_path / out, cache, **extra)
        others = 24 + 2  # for the comparison at the end, and of noise
        teachers_asked = {",".join(t.names): asked[",".join(t.names)] - others for t in teachers}
        return {names: images for names, images in teachers_asked.items() if images}

    assert new([ab, cd], "first") == {"a,b": 48, "c,d": 48}  # 24 images, two views, five epochs
    assert new([ab, cd], "second") == {}
    assert (tmp_path / "first/model.safetensors").read_bytes() == (tmp_path / "second/model.safetensors").read_bytes()
    assert new([ab, ef], "third", seed=1) == {"e,f": 48}
    assert new([ab, cd], "fourth", views=3) == {"a,b": 72, "c,d": 72}


@pytest.mark.parametrize("memory", [4.0, 0.0], ids=["held", "streamed"])
def test_a_killed_run_with_a_cache_ends_with_the_same_bits(tmp_path: Path, memory: float) -> None:
    teachers = [tiny("ab", 1), tiny("cd", 2)]
    whole = merged(teachers, tmp_path / "whole", tmp_path / "cache-1", memory=memory)
    parts = merged(teachers, tmp_path / "parts", tmp_path / "cache-2", [1, 3, 5], memory=memory)
    assert whole == parts
    run = json.loads((tmp_path / "parts/run.json").read_text())
    assert run["views"] == 2
    assert "cache" not in run
    without = classifiers(teachers, NOISE, Schedule(epochs=5, lr=0.05, batch_size=8), memory=memory, **PLAIN)
    with pytest.raises(DmcError, match="views was 2 and is now None"):
        without.run(tmp_path / "parts", RunConfig(resume=True))


def test_the_cache_teaches_what_the_teachers_would(tmp_path: Path) -> None:
    """With one view that shows the whole image, and no flip, a cache changes the targets' rounding alone."""
    teachers = [tiny("ab", 1), tiny("cd", 2)]
    schedule = Schedule(epochs=4, lr=0.01, batch_size=8, pad=0, flip=False)
    kept: dict[str, Any] = {"cache": str(tmp_path / "cache"), "views": 1}
    for name, cache in (("with", kept), ("without", {})):
        classifiers(teachers, NOISE, schedule, **PLAIN, **cache).run(tmp_path / name)
    curves = [
        [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("with", "without")
    ]
    assert curves[0] == pytest.approx(curves[1], rel=1e-3)
    assert curves[0] != curves[1]


@pytest.mark.slow
def test_detectors_keep_the_selected_anchors_of_both_mirrorings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = untrained("ab", seed=1), untrained("c", seed=2)
    sides = ((40, 56), (56, 40), (64, 64))
    draw = np.random.default_rng(0)
    images = tmp_path / "images"
    images.mkdir()
    for i in range(9):
        Image.fromarray(draw.integers(0, 256, (*sides[i % 3], 3), dtype=np.uint8)).save(images / f"{i}.png")
    asked = asked_about(monkeypatch, Detector, "answers")
    settings: dict[str, Any] = {
        "epochs": 5,
        "batch_size": 2,
        "held_out": 0,
        "weights": None,
        "cache": str(tmp_path / "cache"),
    }
    weights = []
    for out in ("first", "second"):
        asked.clear()
        dmc.consolidate([old, new], images, tmp_path / out, seed=0, size=64, **settings)
        weights.append((tmp_path / out / "model.safetensors").read_bytes())
        if out == "first":
            known = asked["a,b"]
    assert known - asked["a,b"] == 18  # nine images, two views
    assert weights[0] == weights[1]
    with pytest.raises(DmcError, match="padded anew in every pass"):
        dmc.consolidate([old, new], images, size=64, memory=0, **settings)
