"""How long a training waits for its images."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from dmc.data.batch import Batch

WORTH_TELLING, SECONDS = 0.1, 5.0  # share of the time, if it is that long
log = logging.getLogger("dmc")


class Watched:
    """An iterator over batches that measures how long whoever takes them waits for them."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self.batches, self.told = batches, False
        self.waited, self.since = 0.0, time.monotonic()  # seconds, and since when

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        asked = time.monotonic()
        batch = next(self.batches)
        self.waited += time.monotonic() - asked
        return batch

    def share_waited(self) -> float:
        """Give the share of the time that went into waiting since this was last asked; say once if it is much."""
        now = time.monotonic()
        share = self.waited / max(now - self.since, 1e-9)
        if share > WORTH_TELLING and self.waited > SECONDS and not self.told:
            log.info(f"training waits for images {share:.0%} of the time: more workers may help")
            self.told = True
        self.waited, self.since = 0.0, now
        return share
