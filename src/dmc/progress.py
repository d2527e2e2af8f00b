"""Show progress: on a terminal a bar, after two seconds; elsewhere, for trainings only, a log line now and then."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from dmc.processes import is_main

EVERY = 30.0  # seconds between lines
EVERY_NOTE = 0.5  # seconds between notes on a bar: reading the loss for one waits for the device
log = logging.getLogger("dmc")
_bars = True


def only_lines() -> None:
    """Show no bars, as if there were no terminal: several processes would write over each other's."""
    global _bars
    _bars = False
    tqdm.set_lock(threading.RLock())  # its own is shared between processes, and one that is killed would leak it


def progress(total: int | None, what: str, done: int = 0) -> tqdm[Any]:
    """Count images in a `with` block by `update(n)`. Without a total the bar shows the rate, but not the time left."""
    return tqdm(
        total=total,
        initial=done,
        desc=what,
        unit=" images",
        unit_scale=total is None or total >= 10_000,
        delay=2,
        disable=None if _bars and is_main() else True,
        leave=False,
        dynamic_ncols=True,
    )


@contextmanager
def training_progress(total: int, what: str, done: int, note: Callable[[], str]) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of images after each step; `note` gives epoch and loss as a text."""
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
    """Word a number of seconds to the precision that matters: `2 h 05 min`, `3 min 20 s`."""
    hours, rest = divmod(max(1, round(seconds)), 3600)
    minutes, seconds = divmod(rest, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
