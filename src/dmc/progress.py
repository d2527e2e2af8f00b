"""How far something has come: a bar on a terminal after two seconds; of a training, elsewhere, a line now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

EVERY = 30.0  # seconds between lines
log = logging.getLogger("dmc")


def progress(total: int | None, what: str, done: int = 0) -> tqdm[Any]:
    """Count images. Use as a context manager; call `update(n)`. Without a total there is a rate, but no time left."""
    return tqdm(
        total=total,
        initial=done,
        desc=what,
        unit=" images",
        unit_scale=total is None or total >= 10_000,
        delay=2,
        disable=None,
        leave=False,
        dynamic_ncols=True,
    )


@contextmanager
def training_progress(total: int, what: str, done: int) -> Iterator[Callable[[int, str], None]]:
    """Give a function to call after each step with its number of images and a note, such as epoch and loss."""
    started = told = time.monotonic()
    seen = 0

    def stepped(images: int, note: str) -> None:
        nonlocal seen, told
        seen += images
        bar.set_postfix_str(note, refresh=False)
        bar.update(images)
        now = time.monotonic()
        if bar.disable and now - told >= EVERY:
            told, rate = now, seen / (now - started)
            left = duration((total - done - seen) / rate)
            log.info(f"{what}: {note}, {rate:,.0f} images/s, about {left} left")

    with progress(total, what, done) as bar:
        yield stepped


def duration(seconds: float) -> str:
    """Seconds in words, to the precision that matters."""
    hours, rest = divmod(max(1, round(seconds)), 3600)
    minutes, seconds = divmod(rest, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
