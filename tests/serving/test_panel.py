"""Models side by side, the limits of a server, and its examples, without a server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from socket import create_server

import pytest
from PIL import Image

import dmc as library
from dmc.data.decode import DecodeError
from dmc.data.sources import UNLABELED, Record
from dmc.errors import DmcError
from dmc.evaluation.detection import DetectedObject
from dmc.report.drawing import drawn_within
from dmc.serving.examples import MOST, as_files
from dmc.serving.limits import Bucket
from dmc.serving.panel import Panel
from dmc.tasks.classification import Classification
from tests.conftest import Answer, tiny, write_images
from tests.detectors import untrained

Dmc = Callable[..., Answer]


def encoded(width: int = 20, height: int = 20) -> bytes:
    buffer = BytesIO()
    Image.new("RGB", (width, height), "red").save(buffer, "PNG")
    return buffer.getvalue()


def test_each_model_answers_as_it_does_alone(tmp_path: Path) -> None:
    """Kinds may be mixed: each model takes its own settings."""
    (tmp_path / "red.png").write_bytes(encoded(64, 48))
    models = [tiny("ab"), untrained("xy")]
    replies = Panel(models, {"top": 1, "min_score": 0.0}).ask(encoded(64, 48))
    assert replies[0].answer == library.predict(models[0], tmp_path / "red.png", top=1)[0]
    assert len(replies[0].answer) == 1
    assert replies[1].answer == library.predict(models[1], tmp_path / "red.png", min_score=0.0)[0]
    assert len(replies[1].answer) > 0
    assert all(reply.milliseconds > 0 for reply in replies)
    assert replies[1].seat.task.answer_as_scores(replies[1].answer)[0] == (
        replies[1].answer[0].name,
        replies[1].answer[0].score,
    )


def test_what_cannot_be_answered_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = Panel([tiny("ab")], {})
    with pytest.raises(DecodeError, match=r"^the image: cannot be read: it is not an image$"):
        panel.ask(b"nonsense")

    def broken(*_: object) -> None:
        raise ValueError("shapes\ndiffer")

    monkeypatch.setattr(Classification, "predict", broken)
    with pytest.raises(DmcError, match=r"^tiny-0 cannot answer: ValueError: shapes$"):
        panel.ask(encoded())
    monkeypatch.undo()
    assert len(panel.ask(encoded())) == 1  # and goes on


def test_a_setting_that_no_model_has_is_refused() -> None:
    with pytest.raises(DmcError, match=r"^min_score is a setting of detectors$"):
        Panel([tiny("ab")], {"min_score": 0.5})


def test_the_bucket_fills_by_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("dmc.serving.limits.monotonic", lambda: now[0])
    bucket = Bucket(4)
    assert [bucket.seconds_to_wait() for _ in range(5)] == [0, 0, 0, 0, 0.25]
    now[0] += 0.5  # two more
    assert [bucket.seconds_to_wait() for _ in range(3)] == [0, 0, 0.25]
    now[0] += 60  # a pause saves up a second's worth, and no more
    assert [bucket.seconds_to_wait() for _ in range(5)] == [0, 0, 0, 0, 0.25]


def test_examples_are_the_first_that_can_be_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = write_images(tmp_path / "given", MOST + 2)
    (given / "000.png").write_bytes(b"broken")
    (given / "001.png").write_bytes(bytes(5000))
    shown = as_files(given, tmp_path / "shown", max_bytes=4000)
    assert len(shown) == MOST
    assert shown[0].read_bytes() == (given / "002.png").read_bytes()
    assert "000.png is left out of the examples" in caplog.text
    assert "001.png is left out of the examples: it is larger than an upload may be" in caplog.text
    drawn = as_files(None, tmp_path / "drawn", max_bytes=4000)
    assert [file.stem for file in drawn] == ["disc", "square", "triangle"]
    assert len({file.read_bytes() for file in drawn}) == 3
    with pytest.raises(DmcError, match="holds no images that can be shown"):
        as_files(tmp_path, tmp_path / "none", max_bytes=1)


def test_boxes_are_drawn_where_the_shown_picture_has_them() -> None:
    """The picture of 20 x 10 pixels is shown at 200 x 100: a box that begins at (4, 2) begins at (40, 20)."""
    found = [DetectedObject("x", 0.9, (4.0, 2.0, 12.0, 8.0))]
    picture = drawn_within(Record(encoded(20, 10), UNLABELED, "image"), found, ["x"], side=200)
    assert picture.size == (200, 100)
    red, drawn = (255, 0, 0), picture.getpixel((40, 50))
    assert drawn != red
    assert picture.getpixel((36, 50)) == picture.getpixel((44, 50)) == red


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("nowhere",), "no model at nowhere: give a folder"),
        (
            ("a", "--host", "203.0.113.1"),
            "cannot listen on 203.0.113.1, port 0: Cannot assign requested",
        ),
        (("a", "--host", "no.such.invalid"), "cannot listen on no.such.invalid, port 0: "),
        (("a", "--host", "x" * 70), "cannot listen on xxxx"),
        (("a", "--examples", "nowhere"), "nowhere is not a folder of example images"),
        (("a", "--min-score", "0.5"), "min_score is a setting of detectors"),
        (("a", "--max-megabytes", "0"), "--max-megabytes 0.0 should be greater than 0"),
    ],
)
def test_a_server_that_cannot_begin_says_so_in_one_line(
    dmc: Dmc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny("ab").save(tmp_path / "a")
    answer = dmc("serve", *typed, "--port", 0)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert answer.err.startswith(f"dmc: {said}")


def test_a_port_in_use_and_a_missing_package_are_one_line(dmc: Dmc, monkeypatch: pytest.MonkeyPatch) -> None:
    with create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = dmc("serve", "anything", "--port", port)
    line = f"dmc: cannot listen on 127.0.0.1, port {port}: Address already in use; choose another host or port\n"
    assert answer == (2, "", line)
    monkeypatch.setitem(sys.modules, "gradio", None)
    line = "dmc: not installed: gradio; pip install 'deep-model-consolidation[serve]'\n"
    assert dmc("serve", "anything") == (2, "", line)
