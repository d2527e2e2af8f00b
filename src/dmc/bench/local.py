"""Jobs in this process, or in several processes of this machine.

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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from dmc.bench.engines import POLL, TRIES, Job, perform, refuse_stopped, spread
from dmc.errors import first_line
from dmc.training.stopping import StopSignals, raise_on_signals

log = logging.getLogger("dmc")
SPAWN = multiprocessing.get_context("spawn")  # a fork of a process whose threads hold locks may hang


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

        threads = max(1, torch.get_num_threads() // self.processes)  # of few jobs, too: results depend on them
        workers = [Worker(threads) for _ in range(min(self.processes, len(jobs)))]
        free: SimpleQueue[Worker] = SimpleQueue()
        for worker in workers:
            free.put(worker)
        with StopSignals() as stop, ThreadPoolExecutor(len(workers)) as pool:
            pending = {pool.submit(attempt, job, free, stop) for job in spread(jobs)}
            try:
                while pending:
                    pending = wait(pending, POLL).not_done
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
    except Exception as error:  # no process could be started, or the job cannot be sent to it
        job.failed(f"{type(error).__name__}: {first_line(error)}")
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
    raise_on_signals()
    if "OMP_NUM_THREADS" not in os.environ:  # else it is the user's wish
        os.environ["OMP_NUM_THREADS"] = str(threads)
        if "torch" in sys.modules:  # too late for the above
            sys.modules["torch"].set_num_threads(threads)
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
