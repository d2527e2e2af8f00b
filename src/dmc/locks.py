"""Locks between processes, and what killed processes leave behind."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from dmc.files import HOST

HALF_WRITTEN = re.compile(r"\..+\.(\d{1,9})@([\w-]+)\.part")  # see `dmc.files.part_of`
IDLE = 3600.0  # seconds after which no process on any machine is still writing a file


@contextmanager
def locked(path: Path, timeout: float = -1) -> Iterator[None]:
    """Hold a lock while a block runs; its file goes with it, which whoever waits for it notices."""
    with FileLock(path, timeout=timeout):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # before it is released: then it may be another's


def held(path: Path) -> bool:
    """Tell whether a process holds a lock; one that was killed leaves the file behind, but not the lock."""
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except (Timeout, OSError):  # an OSError if the file is another user's
        return True


def sweep(*folders: Path, idle: float = 0.0) -> None:
    """Remove files and folders that killed processes left half-written in folders.

    What this machine's own processes left goes at once. Only who holds a folder's lock may remove other machines' files
    at once, too: elsewhere they may be writing, and what is not as old as `idle` seconds stays.
    """
    for path in (path for folder in folders for path in folder.glob(".*.part")):
        named = HALF_WRITTEN.fullmatch(path.name)
        with suppress(OSError):  # another process may be removing it, too
            if named is None or _alive(int(named[1])):
                continue
            # Many machines are called localhost, and a file of this process's number may be one of its own.
            here = named[2] == HOST != "localhost" and int(named[1]) != os.getpid()
            if here or time.time() - path.lstat().st_mtime >= idle:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _alive(process: int) -> bool:
    """Tell whether another process of this number runs here; containers often give each process the same one."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return process != os.getpid()
