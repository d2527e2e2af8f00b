"""What an engine is: a place where jobs run. There are `local.py`, this machine, and `ray_cluster.py`."""

from __future__ import annotations

import logging
import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

from dmc.errors import first_line
from dmc.progress import only_lines
from dmc.training.stopping import Stopped, StopSignals

log = logging.getLogger("dmc")
TRIES = 3  # of a job whose process is lost
POLL = 0.2  # seconds between looks at what is finished, and whether to stop
Line = tuple[int, str]  # of a log: level and text


class Job(Protocol):
    """Work that any process may do, given the same files; done again, it goes on where it stopped."""

    @property
    def name(self) -> str: ...

    @property
    def awaits(self) -> Path:
        """What the first of several jobs makes, while the others that name it wait."""

    def run(self) -> None:
        """Do what is left; log why it fails."""

    def failed(self, reason: str) -> None:
        """Note that it was given up."""


AnyJob = TypeVar("AnyJob", bound=Job)


class Engine(Protocol):
    """A place where jobs run."""

    def run(self, jobs: Sequence[Job]) -> None:
        """Run all jobs; one that fails, or loses its process, does not stop the others."""


def perform(job: Job, tell: Callable[[Line], object], level: int, folder: Path) -> None:
    """Run a job in a process that has no terminal of its own: what it logs is told to the one that has."""
    log.handlers, log.propagate = [Relay(tell, job.name)], False
    log.setLevel(level)
    warnings.filterwarnings("ignore", module="PIL")  # as on the command line
    only_lines()
    try:
        os.chdir(folder)  # paths may be relative to it
        job.run()
    except Exception as error:
        job.failed(f"{type(error).__name__}: {first_line(error)}")


class Relay(logging.Handler):
    """Pass on what a job logs, with its name."""

    def __init__(self, tell: Callable[[Line], object], job: str) -> None:
        super().__init__()
        self.tell, self.job = tell, job

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        with suppress(Exception):  # a line that gets lost must not cost the job
            self.tell((record.levelno, text if text.startswith(f"{self.job}:") else f"{self.job}: {text}"))


def spread(jobs: Sequence[AnyJob]) -> list[AnyJob]:
    """Begin with jobs that do not wait for each other."""
    seen: Counter[Path] = Counter()
    ranks = []
    for job in jobs:
        ranks.append(seen[job.awaits])
        seen[job.awaits] += 1
    return [jobs[i] for i in sorted(range(len(jobs)), key=ranks.__getitem__)]


def refuse_stopped(stop: StopSignals) -> None:
    """Say that a signal ended the jobs before they were finished."""
    if stop.asked is not None:
        stopped = Stopped(stop.asked, "stopped before all cells were finished")
        stopped.add_note("what was learned is kept")
        raise stopped
