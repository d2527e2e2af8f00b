"""The demo, shortened: its data, its table, its JSON, its picture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dmc.bench.digits import digits, letters
from dmc.schedule import Schedule
from tests.conftest import Answer


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmc.demos.classification.LETTERS", 200)
    for name in ("LABELED", "UNLABELED"):
        monkeypatch.setattr(f"dmc.demos.classification.{name}", Schedule(epochs=1, batch_size=128))


def test_training_and_test_digits_are_apart() -> None:
    train, test = digits(3, test=False), digits(3, test=True)
    assert (len(train), len(test)) == (1257, 540)
    assert train.classes == tuple("0123456789")
    assert np.bincount(test.label_of).min() >= 52  # every digit in proportion
    both = {image.tobytes() for image in train.images} & {image.tobytes() for image in test.images}
    assert not both


def test_letters_are_letters_and_a_function_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn_again = letters.__wrapped__  # not from the cache
    assert np.array_equal(letters(20, 1).images, drawn_again(20, 1).images)
    assert not np.array_equal(letters(20, 1).images, letters(20, 2).images)
    drawn: list[str] = []
    real = "PIL.ImageDraw.ImageDraw.text"
    from PIL.ImageDraw import ImageDraw

    original = ImageDraw.text

    def recorded(self: ImageDraw, xy: object, text: str, **more: object) -> None:
        drawn.append(text)
        original(self, xy, text, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(real, recorded)
    drawn_again(300, 0)
    assert len(drawn) == 300
    assert all(text.isalpha() and len(text) == 1 for text in drawn)
    assert len(set(drawn)) > 40


def test_json_and_picture(dmc: Callable[..., Answer], tmp_path: Path, quick: None) -> None:
    said = dmc("demo", "-o", tmp_path / "demo", "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert set(found) == {"finetuning", "dmc", "inference-twice", "oracle"}
    for row in found.values():
        assert set(row) == {"old", "new", "all"}
        assert all(0 <= value <= 1 for value in row.values())
        assert row["all"] == pytest.approx((row["old"] + row["new"]) / 2, abs=0.02)
    with Image.open(tmp_path / "demo" / "demo.png") as picture:
        assert picture.width > 1000
        assert len(picture.convert("RGB").getcolors(picture.width * picture.height) or []) > 50
    assert dmc("evaluate", tmp_path / "demo" / "dmc", tmp_path).code == 2


def test_table(dmc: Callable[..., Answer], tmp_path: Path, quick: None) -> None:
    lines = dmc("demo", "-o", tmp_path / "demo").out.splitlines()
    assert lines[0].split() == ["accuracy", "on", "0-4", "5-9", "all", "parameters", "images", "seen"]
    # The two specialists saw 1,257 digits in all, the merged model 200 letters more.
    assert [line.split()[-1] for line in lines[1:5]] == ["1,257", "1,457", "1,257", "1,257"]
    assert dmc("demo", "-o", tmp_path / "demo").out.splitlines() == lines  # the demo may run twice in one folder
