"""What teachers answered about each stored view of an image, kept on disk, so that they are asked once.

DIR/images.bin             the number of each image, a hash of its pixels, in the order of the rows of all tables
DIR/KEY/dmc-answers.json   what is answered, by whom, and the answers to a few images of noise
DIR/KEY/answers.bin        a row for each image, an entry for each of its views
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from pydantic import ConfigDict
from torch import Tensor

from dmc.distill.answer_table import AnswerTable, ImageRows, Part, Room
from dmc.documents import Document, read_json
from dmc.errors import DmcError
from dmc.files import digest, write_text
from dmc.locks import locked, sweep

FORMAT = 1  # changes with the meaning of a file, or of a view
MARKER, ANSWERS = "dmc-answers.json", "answers.bin"
SPARE = 2**28  # bytes of a disk that are left free
SAME = 0.02  # how far a teacher's answers to noise may be from those kept: another device rounds differently
log = logging.getLogger("dmc")


class Kept(NamedTuple):
    """What a table keeps: what identifies the teacher, the parts of an answer, and the answer to some noise."""

    key: Mapping[str, Any]
    parts: Sequence[Part]
    probe: Tensor  # tells teachers apart that have the same weights but another program

    @property
    def words(self) -> int:
        return sum(part.words for part in self.parts)


class Marker(Document):
    """dmc-answers.json: what determines a table's answers, and those to a few images of noise."""

    model_config = ConfigDict(allow_inf_nan=True)  # a teacher may answer so, which is refused elsewhere

    layout: dict[str, Any]
    probe: list[float]


class AnswerCache:
    """A folder of tables, as a context manager. Tables that were not used for longest make room for new ones."""

    def __init__(self, folder: Path, limit: int, views: int, images: int, seen: Mapping[str, Any]) -> None:
        """Keep answers about `views` views of so many images in `limit` bytes; `seen` tells what teachers see."""
        self.folder, self.limit, self.views, self.images, self.seen = folder, limit, views, images, seen
        self.open: list[AnswerTable] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for table in self.open:
            table.close()
        for rows in {id(table.rows): table.rows for table in self.open}.values():
            os.close(rows.file)
            with suppress(OSError), locked(self.folder / ".lock"):
                pass  # so that its file goes

    def layout(self, kept: Kept) -> dict[str, Any]:
        """Give all that determines the answers."""
        parts = [f"{part.shape} {part.dtype}" for part in kept.parts]
        layout = {"format": FORMAT, **kept.key, **self.seen, "views": self.views, "parts": parts}
        read_again: dict[str, Any] = json.loads(json.dumps(layout))  # in which tuples are lists
        return read_again

    def bytes_for(self, kept: Sequence[Kept]) -> int:
        """Give the size of the tables with all views of all images."""
        return self.images * (8 + sum(self.views * (4 + 2 * one.words) for one in kept))

    def require_room(self, kept: Sequence[Kept]) -> None:
        """Refuse, before anything trains, a folder that cannot be one, a limit or a disk that is too small."""
        needed, there = self.bytes_for(kept), next(p for p in (self.folder, *self.folder.parents) if p.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            raise DmcError(f"the cache cannot be in {self.folder}: {there} is no folder that can be written to")
        used = sum(on_disk(self.folder / digest(self.layout(one))) for one in kept)
        free = shutil.disk_usage(there).free - SPARE + sum(map(on_disk, tables_in(self.folder)))
        room = min(self.limit, free if needed > used else self.limit)
        if needed > room:
            raise DmcError(
                f"the teachers' answers need {gib(needed)} GiB in {self.folder}, which has room for "
                f"{gib(max(0, room))}: keep fewer views, raise `cache_limit`, or go without a cache"
            )

    def tables(self, kept: Sequence[Kept]) -> list[AnswerTable]:
        """Open a table for each of what is kept."""
        self.require_room(kept)
        with in_words(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked(self.folder / ".lock"):  # another process may be opening the same ones
                folders = [self._begun(one) for one in kept]
                sweep(*folders)
                room = Room(self._make_room(self.bytes_for(kept), folders))
            rows = ImageRows(self.folder, self.images)
            for one, folder in zip(kept, folders, strict=True):
                self.open.append(AnswerTable(folder, rows, one.parts, self.views, room))
        return self.open

    def _begun(self, kept: Kept) -> Path:
        """Give the folder of a table, and begin it anew if what it holds are another teacher's answers."""
        layout = self.layout(kept)
        folder, probe = self.folder / digest(layout), kept.probe.flatten().tolist()
        before = read_marker(folder)
        if before is not None and (before.layout != layout or not alike(before.probe, probe)):
            log.warning(f"{folder} holds answers of another program with the same weights: they are asked for anew")
            remove(folder)
        write_text(folder / MARKER, json.dumps({"layout": layout, "probe": probe}) + "\n")  # its age: the last use
        return folder

    def _make_room(self, needed: int, own: Sequence[Path]) -> int:
        """Remove tables that were not used for longest, until so many bytes fit; give how many may be written."""
        tables = tables_in(self.folder)
        used = on_disk(self.folder) + sum(map(on_disk, tables))
        needed -= sum(map(on_disk, own))
        free = shutil.disk_usage(self.folder).free - SPARE
        for other in sorted(set(tables) - set(own), key=age):
            if needed <= 0 or (used + needed <= self.limit and needed <= free):
                break
            size = on_disk(other)
            remove(other)
            used, free = used - size, free + size
        return min(self.limit - used, free)


def tables_in(cache: Path) -> list[Path]:
    """Give the folders of a cache that are tables: a user's own folders are not."""
    markers = cache.glob(f"*/{MARKER}")
    return [marker.parent for marker in markers if read_marker(marker.parent) is not None]


def read_marker(folder: Path) -> Marker | None:
    """Read what a table holds; None if the folder is no table."""
    try:
        found = read_json(folder / MARKER, Marker)
    except (OSError, DmcError):
        return None
    return found if digest(found.layout) == folder.name else None


def alike(before: Sequence[float], now: Sequence[float]) -> bool:
    """Tell whether two answers to the same noise are equal but for rounding."""
    scale = max((abs(value) for value in now), default=0.0) + 1e-6
    return len(before) == len(now) and all(
        math.isclose(a, b, abs_tol=SAME * scale) for a, b in zip(before, now, strict=True)
    )


def remove(table: Path) -> None:
    """Remove a table's own files; a process that has it open goes on with what it has."""
    for name in (ANSWERS, MARKER):
        (table / name).unlink(missing_ok=True)
    with suppress(OSError):
        table.rmdir()


def age(table: Path) -> float:
    """Give when a table was last opened."""
    with suppress(OSError):
        return (table / MARKER).stat().st_mtime
    return 0.0


def on_disk(folder: Path) -> int:
    """Give the bytes that a folder's own files really take: rows that were not written take none."""
    size = 0
    for file in folder.glob("*"):
        with suppress(OSError):  # another process may have removed it
            size += file.stat().st_blocks * 512 if file.is_file() else 0
    return size


def gib(size: float) -> str:
    return f"{size / 2**30:.2f}"


@contextmanager
def in_words(folder: Path) -> Iterator[None]:
    """Say in one line that a cache cannot be written."""
    try:
        yield
    except OSError as error:
        raise DmcError(f"the cache cannot be in {folder}: {error.strerror}") from None


def noise(side: int, device: torch.device) -> Tensor:
    """Make two images of noise, always the same, to tell teachers apart by their answers."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (2, 3, side, side), dtype=torch.uint8, generator=generator).to(device)
