"""Which auxiliary images are chosen, and that a run goes on with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dmc
from dmc.config import DetectorConsolidateConfig
from dmc.cost import Cost
from dmc.data.batch import Batch
from dmc.data.readers import ArrayImages
from dmc.errors import DmcError
from dmc.estimate import selecting_seconds, some_batches
from dmc.files import digest
from dmc.schedule import Schedule
from dmc.selection import most_telling
from dmc.tasks.detector_consolidation import DetectorConsolidation
from tests.conftest import classifiers, tiny, write_images
from tests.detectors import small

STILL = Schedule(epochs=1, lr=1e-6, batch_size=16, weight_decay=0)
NOISE = np.random.default_rng(0).integers(0, 256, (240, 16, 16, 3), dtype=np.uint8)


def test_each_class_has_its_clearest_images_and_the_rest_is_drawn() -> None:
    """Of ten images seven are the clearest: by rank 0, 1, 2, 2 of one class and 0, 1, 1 of the other."""
    seen_NT = torch.zeros(100, 2)
    seen_NT[:20, 0] = torch.arange(20, 0, -1)  # the first class has its images from place 0 on
    seen_NT[50:70, 1] = 100 * torch.arange(20.0, 0, -1)  # the other from 50 on, and speaks louder
    chosen = most_telling(seen_NT, 10, seed=0)
    assert len(set(chosen)) == 10
    assert set(chosen) >= {0, 1, 2, 50, 51, 52}
    assert len(set(chosen) - {*range(4), *range(50, 54)}) == 3
    assert set(most_telling(seen_NT, 10, seed=1)) != set(chosen)
    assert most_telling(seen_NT, 100, seed=0) == list(range(100))


def test_a_student_sees_only_the_images_that_were_selected_and_resumes_with_them(tmp_path: Path) -> None:
    teachers, out = [tiny("ab", 1), tiny("cd", 2)], tmp_path / "out"
    plan = classifiers(teachers, NOISE, STILL, select=40)
    assert (plan.held_out, plan.trained_on, plan.run_json["aux"]["select"]) == (24, 40, 40)
    student = dmc.consolidate(teachers, NOISE, out, schedule=STILL, select=40, report=False)
    names = json.loads((out / "selected.json").read_text())["names"]
    assert len(set(names)) == 40
    assert json.loads((out / "metrics.jsonl").read_text())["images"] == 40
    assert "40 selected" in student.provenance["auxiliary images"]

    target_NT = plan.teachers.logits(torch.from_numpy(NOISE).permute(0, 3, 1, 2))
    seen, unseen = plan.open_loaders(out)  # by the names in the folder
    assert (seen.count, unseen.count) == (40, 24)
    theirs_NT = torch.cat([plan.teachers.logits(batch.images_N3HW) for batch in seen.in_order(16)])
    assert (theirs_NT.amax(dim=0) > target_NT.quantile(0.97, dim=0)).all()  # each class has some of its clearest

    path = out / "selected.json"
    path.write_text(json.dumps({"names": names[1:], "checksum": digest(names[1:])}))
    with pytest.raises(DmcError, match=r"selected.json does not name 40 images of"):
        plan.open_loaders(out)
    other = next(name for name in ArrayImages(NOISE).names() if name not in names)
    path.write_text(json.dumps({"names": [other, *names[1:]], "checksum": digest(names)}))
    with pytest.raises(DmcError, match=r"is damaged: its names are not those that were selected"):
        plan.open_loaders(out)
    path.write_text("{}")
    with pytest.raises(DmcError, match=r"selected.json is damaged: it has no 'names'"):
        plan.open_loaders(out)


def test_broken_images_are_not_selected(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", 30)
    for i in range(3):
        (images / f"broken-{i}.png").write_bytes(b"no")
    teachers = [tiny("ab", 1), tiny("cd", 2)]
    seen, _ = classifiers(teachers, images, STILL, select=30).open_loaders(tmp_path)
    assert (seen.count, len(seen.skipped)) == (30, 0)
    with pytest.raises(DmcError, match=r"only 30 images of .*images can be decoded: select fewer"):
        classifiers(teachers, images, STILL, select=32).open_loaders(tmp_path / "images")


def test_more_than_there_are_is_all_of_them(caplog: pytest.LogCaptureFixture) -> None:
    plan = classifiers([tiny("ab", 1), tiny("cd", 2)], NOISE, STILL, select=240)
    assert (plan.select, plan.trained_on) == (None, 216)
    assert "216 images to select from, so all are used" in caplog.text


def test_a_selection_takes_a_pass_of_the_teachers_over_all_images_but_those_held_out() -> None:
    cost = Cost(student_flops=1, student_seconds=1, asking_flops=1, asking_seconds=0.5)
    teachers = [tiny("ab", 1), tiny("cd", 2)]
    assert selecting_seconds(classifiers(teachers, NOISE, STILL, select=40), cost) == 108  # of 240 images, 24 held out
    assert selecting_seconds(classifiers(teachers, NOISE, STILL), cost) == 0


def test_check_tells_of_the_selection_and_its_cost() -> None:
    teachers = [tiny("ab", 1), tiny("cd", 2)]
    found = dmc.check(teachers, NOISE, select=40, epochs=3)
    assert (found["aux"]["selected"], found["estimate"]["images"]) == (40, 120)
    assert found["cost"]["image_bytes"] == (40 + 24) * 3 * 16 * 16


def test_detectors_select_images_by_the_highest_score_of_each_class(tmp_path: Path) -> None:
    images, teachers = write_images(tmp_path / "images", 20, size=64), [small("ab", seed=1), small("cd", seed=2)]
    out = tmp_path / "out"
    settings: dict[str, Any] = {"anchors": 10**6, "weights": None}
    merge = DetectorConsolidation(teachers, images, DetectorConsolidateConfig.of(settings))
    batch = some_batches(merge)[0][0]
    with torch.no_grad():
        theirs = [teacher.answers(batch.images_N3HW).logits_NAK.amax(dim=1) for teacher in teachers]
    torch.testing.assert_close(merge.seen_in(batch), torch.cat(theirs, dim=1))

    dmc.consolidate(teachers, images, out, select=4, epochs=1, batch_size=2, weights="random", report=False)
    assert len(set(json.loads((out / "selected.json").read_text())["names"])) == 4
    assert json.loads((out / "metrics.jsonl").read_text())["images"] == 4


def test_teachers_are_asked_about_as_many_images_at_once_as_the_student_learns_from(tmp_path: Path) -> None:
    """What fits into memory in a step of training fits here."""
    asked: list[int] = []
    plan = classifiers([tiny("ab", 1), tiny("cd", 2)], NOISE, STILL, select=40)

    def seen_in(batch: Batch) -> torch.Tensor:
        asked.append(len(batch))
        return torch.zeros(len(batch), 4)

    plan.seen_in = seen_in  # type: ignore[method-assign]
    plan.open_loaders(tmp_path)
    assert max(asked) == STILL.batch_size
    assert sum(asked) == 216


def test_teachers_select_in_the_precision_of_the_training(tmp_path: Path) -> None:
    """On many machines `auto` is bf16; what was seen is kept in half precision, which autocast does not join."""
    schedule = STILL.changed({"precision": "bf16"})
    for teachers, images in (([tiny("ab", 1), tiny("cd", 2)], NOISE), ([small("ab"), small("cd", seed=1)], None)):
        source = write_images(tmp_path / "images", 20, size=64) if images is None else images
        out = tmp_path / teachers[0].singular
        dmc.consolidate(teachers, source, out, schedule=schedule, select=10, weights="random", report=False)
        assert len(json.loads((out / "selected.json").read_text())["names"]) == 10


def test_new_images_do_not_outweigh_those_that_were_selected() -> None:
    new = ArrayImages(NOISE[:100], np.arange(100) % 2, ("c", "d"))
    plan = classifiers([tiny("ab", 1), tiny("cd", 2)], NOISE, STILL, new, select=40)
    assert plan.trained_on == 40 + 20
