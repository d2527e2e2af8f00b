"""Files that are whole or absent: written beside their place, then moved into it; and files that are read whole."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import platform
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from dmc.errors import DmcError, reason_of

OWN_FILES = (
    "run.json",
    "metrics.jsonl",
    "checkpoint.pt",
    "config.json",
    "preprocessor_config.json",
    "model.safetensors",
    "README.md",
    "report.json",
    "selected.json",
)
HOST = re.sub(r"[^\w-]", "", platform.node()) or "localhost"
MOST_BYTES = 64 * 2**20  # of a file that is read whole; callers that expect more say so


def regular_size(path: Path) -> int:
    """Give a file's size. What is not a regular file is an `OSError`: a FIFO or a device may make a reader wait."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return found.st_size


def read_bytes(path: Path, limit: int = MOST_BYTES) -> bytes:
    """Read a whole file; refuse one that is not a regular file, or has more than `limit` bytes."""
    try:
        if regular_size(path) > limit:
            raise DmcError(f"cannot read {path}: it has more than {limit:,} bytes")
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        raise DmcError(f"cannot read {path}: {reason_of(error)}") from None


def read_text(path: Path, limit: int = MOST_BYTES) -> str:
    """Read a whole text file in UTF-8, with the refusals of `read_bytes`."""
    try:
        return read_bytes(path, limit).decode()
    except UnicodeDecodeError:
        raise DmcError(f"cannot read {path}: it is not text in UTF-8") from None


def part_of(path: Path) -> Path:
    """Name the file that is written before it takes the place of `path`: several processes may write the same one."""
    return path.with_name(f".{path.name}.{os.getpid()}@{HOST}.part")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; if the block succeeds, move the file to `path` in one step."""
    temporary = part_of(path)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except Exception as error:
        why = system_reason(error)
        if why:
            raise DmcError(f"cannot write {path}: {why}") from None
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Make a folder beside `path` for files that are to be moved there, and remove it with what is left in it."""
    part = part_of(path).name  # by which the folder is known if its process dies
    temporary = Path(mkdtemp(prefix=f".{path.name}-", suffix=part.removeprefix(f".{path.name}"), dir=path.parent))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def system_reason(error: BaseException | None) -> str:
    """Say what the system did not allow, if that is what an error is about; otherwise give an empty text."""
    if isinstance(error, RuntimeError):  # torch's "unexpected pos 64 vs 0", in which the system's error ends
        error = error.__context__
    if not isinstance(error, OSError):
        return ""
    return "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all; make its folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def digest(content: Any) -> str:
    """Hash a folder's configuration to eight characters, which name the folder."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def without_nan(values: Mapping[str, float]) -> dict[str, float | None]:
    """Replace NaN, the value of a class without objects, by None: JSON has no NaN."""
    return {key: None if math.isnan(value) else value for key, value in values.items()}


def require_own(folder: Path, resume: bool) -> None:
    """Refuse a folder for a result that holds anything but a run: its files would lie among others'."""
    require_free(folder, resume)
    refuse_others(folder, "", "specialist")


def refuse_others(folder: Path, *runs: str) -> None:
    """Refuse a folder that holds files, but none of the runs in these folders of it, with which a result begins."""
    if folder.is_dir() and not any((folder / run / "run.json").exists() for run in runs):
        others = sorted(p.name for p in folder.iterdir() if not p.name.startswith(".") and p.name not in runs)
        if others:
            raise DmcError(f"{folder.resolve()} holds other files, such as {others[0]}; name a folder of its own")


def require_free(folder: Path, resume: bool) -> None:
    """Refuse a folder that holds a run already, unless it is resumed, or a user's files of the same names."""
    if folder.is_file():
        raise DmcError(f"{folder} is a file; give a folder to write to")
    taken = [name for name in OWN_FILES if (folder / name).exists()]
    if taken and not resume:
        raise DmcError(
            f"{folder} already holds {taken[0]}; choose another folder, or go on with its run (`resume=True`)"
        )
    if taken and "run.json" not in taken:
        raise DmcError(f"{folder} holds {taken[0]} but no run to resume; choose another folder")
