"""How far something has come: a bar on a terminal after two seconds; of a training, elsewhere, a line now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

EVERY = 30.0  # seconds between lines
EVERY_NOTE = 0.5  # seconds between notes on a bar: each one waits for the device
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
def training_progress(total: int, what: str, done: int, note: Callable[[], str]) -> Iterator[Callable[[int], None]]:
    """Give a function to call after each step with its number of images. `note` says epoch and loss, when asked."""
    started = told = time.monotonic()
    seen = 0

    def stepped(images: int) -> None:
        nonlocal seen, told
        seen += images
        now = time.monotonic()
        if now - told >= (EVERY if bar.disable else EVERY_NOTE):
            told, rate = now, seen / (now - started)
            left = duration((total - done - seen) / rate)
            if bar.disable:
                log.info(f"{what}: {note()}, {rate:,.0f} images/s, about {left} left")
            else:
                bar.set_postfix_str(note(), refresh=False)
        bar.update(images)

    with progress(total, what, done) as bar:
        yield stepped


def duration(seconds: float) -> str:
    """Seconds in words, to the precision that matters."""
    hours, rest = divmod(max(1, round(seconds)), 3600)
    minutes, seconds = divmod(rest, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
