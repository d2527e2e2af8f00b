"""Files of strangers that name what they should not, and a watch on what is opened."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from PIL import Image

from dmc.data.decode import CenterCrop, DecodeError, decode_or_skip
from dmc.data.sources import Source


class Watch:
    """What is opened while it is on, by Python's own account; a socket is forbidden."""

    def __init__(self) -> None:
        self.opened: list[str] | None = None
        self.fetched: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.opened is None:
            return
        if event == "open" and not isinstance(arguments[0], int):
            self.opened.append(os.fsdecode(arguments[0]))
        elif event.startswith(("socket.", "urllib.", "subprocess.", "os.exec", "os.posix_spawn")):
            self.fetched.append(event)
            raise PermissionError(event)


WATCH = Watch()


sys.addaudithook(WATCH)  # there is no way to remove one, so it is on only within `watched`


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Give a context in which no socket, no program and no fsspec is opened; it gives the list of opened files."""

    def fsspec_open(name: str, *_: Any) -> None:
        WATCH.fetched.append(name)
        raise PermissionError(name)

    @contextmanager
    def watching() -> Iterator[list[str]]:
        monkeypatch.setattr("fsspec.open", fsspec_open)
        WATCH.opened, WATCH.fetched = [], []
        try:
            yield WATCH.opened
        finally:
            WATCH.opened = None
        assert WATCH.fetched == []

    return watching


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail instead of waiting for ever."""

    def stop(_: int, __: FrameType | None) -> None:
        raise AssertionError(f"it takes more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def png(side: int = 4, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (side, side)).save(buffer, "PNG")
    return buffer.getvalue()


def reasons(source: Source) -> list[str]:
    """Give, of each image in stored order, why it cannot be read, or nothing."""
    found = [decode_or_skip(record, CenterCrop(4)) for record in source.records()]
    return [image.reason if isinstance(image, DecodeError) else "" for image in found]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an image, a link within it, a link out of it and a FIFO; there is an image outside of it, too."""
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    for path in (folder / "deep" / "good.png", tmp_path / "outside.png"):
        path.write_bytes(png())
    (folder / "link.png").symlink_to(tmp_path / "outside.png")
    (folder / "deep" / "inner.png").symlink_to("good.png")
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "fifo.png")
    return folder


def hostile(folder: Path) -> list[str]:
    """Names that lead out of a folder, or to what is not a file."""
    outside = folder.parent / "outside.png"
    return [
        "http://127.0.0.1:9/a.png",
        "s3://bucket/a.png",
        "git://host/a.png",
        "file:///etc/passwd",
        f"file://{outside}",
        "zip://a.png::http://127.0.0.1:9/a.zip",
        f"simplecache::file://{outside}",
        f"zip://a.png::{outside}",
        f"local://{outside}",
        str(outside),
        "/dev/zero",
        "../outside.png",
        "deep/../../outside.png",
        "link.png",
        "up/outside.png",
        "fifo.png",
        "no\0thing.png",
        "x" * 5000,
    ]


GOOD = ["deep/good.png", "deep/../deep/good.png", "deep/inner.png"]


def assert_only_good(source: Source, folder: Path, opened: Callable[[], Any]) -> None:
    """Read all images: first the good ones, then the hostile ones; no file but the good one is opened."""
    assert reasons(source)[0] == ""  # and all modules are imported
    with opened() as files, at_most(5):
        found = reasons(source)
    assert found[: len(GOOD)] == [""] * len(GOOD)
    assert all(found[len(GOOD) :])
    assert len(found) == len(GOOD) + len(hostile(folder))
    images = [file for file in files if Path(file).suffix in (".png", "") or "passwd" in file]
    assert {Path(file).resolve() for file in images} == {folder / "deep" / "good.png"}
