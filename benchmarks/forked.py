"""Commands of dmc as processes that begin at once: each is forked from this one, which has loaded torch."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

LOADED = (
    "torch",
    "torchvision",
    "timm",
    "datasets",
    "pyarrow.parquet",
    "matplotlib.pyplot",
    "sklearn.datasets",
    "onnxruntime",
    "transformers",
)


class Ended(NamedTuple):
    """How a command ended."""

    status: int  # negative: the signal that ended it
    seconds: float
    megabytes: float  # the most that was resident


def preload() -> None:
    """Load what commands load, with one thread: a process with several must not be forked."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in (*LOADED, "dmc.cli", "dmc.api", "dmc.bench.runner", "dmc.demos", "dmc.models.retinanet"):
        import_module(name)
    import_module("torch").set_num_threads(1)


class Command:
    """A running `dmc ARGUMENTS` in a folder; what it says on stderr is added to a file."""

    def __init__(
        self, arguments: Sequence[str], folder: Path, log: Path, before: Callable[[], None] | None = None
    ) -> None:
        self.began, self.ended = time.monotonic(), None  # type: float, Ended | None
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _become(arguments, folder, log, before)
        with suppress(OSError):  # the child does the same; whoever comes first
            os.setpgid(self.pid, self.pid)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def megabytes(self) -> float:
        """What is resident now."""
        with suppress(OSError, IndexError):
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        return 0.0

    def poll(self, wait: bool = False) -> Ended | None:
        """Tell how it ended; None while it runs."""
        if self.ended is None:
            pid, status, used = os.wait4(self.pid, 0 if wait else os.WNOHANG)
            if pid:
                self.ended = Ended(os.waitstatus_to_exitcode(status), self.seconds, used.ru_maxrss / 1024)
        return self.ended

    def kill(self) -> Ended:
        """Send SIGKILL to it and to all that it started."""
        os.killpg(self.pid, signal.SIGKILL)
        ended = self.poll(wait=True)
        assert ended is not None
        return ended


def _become(arguments: Sequence[str], folder: Path, log: Path, before: Callable[[], None] | None) -> None:
    """Be the command from now on; does not return."""
    status = 1
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if before:
            before()
        sys.argv = ["dmc", *arguments]
        import_module("dmc.cli").main()
    except SystemExit as stop:
        status = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
