"""Jobs that need no torch, so that processes for them start at once."""

from __future__ import annotations

import logging
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from dmc.training.stopping import Stopped

log = logging.getLogger("dmc")


@dataclass(frozen=True)
class Note:
    """Log, and write down which process did it; before that, lose the process as often as `losses` says."""

    name: str
    folder: Path
    losses: int = 0
    by: signal.Signals = signal.SIGKILL  # what loses the process; SIGINT as a training takes it, after its step
    seconds: float = 0.0

    @property
    def awaits(self) -> Path:
        return self.folder

    def run(self) -> None:
        begun = len(list(self.folder.glob(f"{self.name}-try-*")))
        (self.folder / f"{self.name}-try-{begun}").touch()
        log.info(f"step {begun}")
        (self.folder / f"{self.name}-process").write_text(str(os.getpid()))
        time.sleep(self.seconds)
        if begun < self.losses and self.by == signal.SIGINT:
            raise Stopped(self.by, "stopped")
        if begun < self.losses:
            os.kill(os.getpid(), self.by)
        log.warning(f"{self.name}: done")
        (self.folder / f"{self.name}-threads").write_text(os.environ["OMP_NUM_THREADS"])

    def failed(self, reason: str) -> None:
        (self.folder / f"{self.name}-failed").write_text(reason)
