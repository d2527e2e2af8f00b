"""The detection demo, shortened: its scenes, its table, its picture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dmc.bench.digit_scenes import INK, LARGEST, SIDE, digit_scenes, unlabeled_scenes
from dmc.schedule import Schedule
from tests.conftest import Answer


def test_boxes_fit_tightly_around_the_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a grey wall, what differs clearly from the wall is the digit."""
    monkeypatch.setattr("dmc.bench.digit_scenes._background", lambda _: Image.new("RGB", (SIDE, SIDE), (115, 115, 115)))
    scenes = digit_scenes(60, "38", seed=4).images
    assert set(np.concatenate([scene.objects.labels_M for scene in scenes])) == {0, 1}
    alone = [scene for scene in scenes if len(scene.objects.labels_M) == 1]
    assert len(alone) > 10
    for scene in alone:
        contrast = np.abs(np.asarray(scene.image).astype(int) - 115).max(axis=2)
        rows, columns = (contrast > contrast.max() * INK / 255).nonzero()
        seen = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert scene.objects.boxes_M4[0] == pytest.approx(seen, abs=1)
        assert max(seen[2] - seen[0], seen[3] - seen[1]) <= LARGEST


def test_scenes_are_a_function_of_the_seed_and_test_digits_are_others() -> None:
    def images(*arguments: int, test: bool = False) -> list[bytes]:
        scenes = digit_scenes(arguments[0], "01", arguments[1], test).images
        return [np.asarray(scene.image).tobytes() for scene in scenes]

    assert images(5, 1) == images(5, 1)
    assert not set(images(5, 1)) & set(images(5, 2))
    assert not set(images(5, 1)) & set(images(5, 1, test=True))


def test_unlabeled_scenes_have_no_labels() -> None:
    source = unlabeled_scenes(6, 0)
    assert len(source) == 6
    assert all(record.annotation is not None and not len(record.annotation.labels_M) for record in source.records())


@pytest.mark.slow
def test_the_demo(dmc: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = Schedule(epochs=1, lr=1e-3, algorithm="adam", batch_size=16)
    settings = {"SCENES": 16, "UNLABELED": 16, "TESTED": 60, "LABELED_SCHEDULE": quick, "UNLABELED_SCHEDULE": quick}
    for name, value in settings.items():
        monkeypatch.setattr(f"dmc.demos.detection.{name}", value)
    said = dmc("demo", "--task", "detect", "-o", tmp_path / "d", "--json")
    assert said.code == 0, said.err
    rows = json.loads(said.out)
    assert rows["knows 0-4"]["new"] is None
    assert rows["DMC"]["old"] is not None
    assert rows["both detectors"]["parameters"] == 2 * rows["knows 0-4"]["parameters"]
    with Image.open(tmp_path / "d" / "demo.png") as picture:
        assert picture.width > 1000
    said = dmc("demo", "--task", "detect", "-o", tmp_path / "d")
    assert "mAP on" in said.out
    assert str(tmp_path / "d" / "demo.png") in said.out
