"""Where jobs run: in this process or in several processes of this machine; ray_cluster.py has one more place.

The pools of concurrent.futures and joblib end all of their processes when one is lost. Here a thread pool gives out the
jobs, and each thread has a process of its own, so that a lost one costs nothing but its job's last minutes.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from dmc.errors import first_line
from dmc.progress import only_lines
from dmc.training.stopping import Stopped, StopSignals

log = logging.getLogger("dmc")
TRIES = 3  # of a job whose process is lost
POLL = 0.2  # seconds between looks at what is finished, and whether to stop
SPAWN = multiprocessing.get_context("spawn")  # a fork of a process whose threads hold locks may hang
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


@dataclass(frozen=True)
class Local:
    """Processes of this machine, which share its cores; if there is one, this one."""

    processes: int = 1

    def run(self, jobs: Sequence[Job]) -> None:
        """Run the jobs one after the other, or as many at once as there are processes."""
        if self.processes == 1 or not jobs:
            for job in jobs:
                job.run()
            return
        import torch  # not above: the new processes import this file before they know their number of threads

        threads = max(
            1, torch.get_num_threads() // self.processes
        )  # even if there are fewer jobs: results depend on it
        workers = [Worker(threads) for _ in range(min(self.processes, len(jobs)))]
        free: SimpleQueue[Worker] = SimpleQueue()
        for worker in workers:
            free.put(worker)
        with StopSignals() as stop, ThreadPoolExecutor(len(workers)) as pool:
            pending = {pool.submit(attempt, job, free, stop) for job in spread(jobs)}
            try:
                while pending:
                    done, pending = wait(pending, POLL)
                    for future in done:
                        if not future.cancelled():
                            future.result()
                    if stop.asked is not None:
                        for future in pending:
                            future.cancel()
                        for worker in workers:
                            worker.stop()
            finally:
                for worker in workers:
                    worker.end()
        refuse_stopped(stop)


def attempt(job: Job, free: SimpleQueue[Worker], stop: StopSignals) -> None:
    """Run a job in a free process, and again in a new one if that is lost."""
    worker = free.get()
    try:
        for left in reversed(range(TRIES)):
            if worker.finishes(job) or stop.asked is not None:
                return
            if left:
                log.warning(f"{job.name}: its process was lost; another one goes on with it")
        job.failed(f"its process was lost {TRIES} times")
    finally:
        free.put(worker)


class Worker:
    """A process that runs one job after the other; when it is lost, the next job gets a new one."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.process: Any = None
        self.pipe: Connection
        self.busy = self.told = False  # at a job; to stop

    def finishes(self, job: Job) -> bool:
        """Run a job and log what it says; tell whether it came to its end."""
        if self.process is None or not self.process.is_alive():
            self.pipe, theirs = SPAWN.Pipe()
            process = SPAWN.Process(target=serve, args=(theirs, self.threads, log.getEffectiveLevel(), Path.cwd()))
            process.start()
            theirs.close()  # the process has the other end alone, which closes with it
            self.process, self.told = process, False
        self.busy = True
        with suppress(EOFError, OSError):
            self.pipe.send(job)
            while (line := self.pipe.recv()) is not None:
                log.log(*line)
            self.busy = False
            return True
        self.process.join()
        return False

    def stop(self) -> None:
        """Ask the process, once, to end after the step that it is at."""
        if self.process is not None and not self.told:
            self.told = True
            self.process.terminate()

    def end(self) -> None:
        """End the process: at once if it is still at a job, else by telling it that there are no more."""
        if self.process is None:
            return
        if self.busy:
            self.process.kill()
        else:
            self.pipe.close()
        self.process.join()


def serve(pipe: Connection, threads: int, level: int, folder: Path) -> None:
    """Run the jobs that come through a pipe, in a new process; end with the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one tells the others
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    if "torch" in sys.modules:  # it has not read the above
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    threading.Thread(target=follow_parent, daemon=True).start()
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            perform(pipe.recv(), pipe.send, level, folder)
            pipe.send(None)


def follow_parent() -> None:
    """Stop this process when its parent has ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


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
