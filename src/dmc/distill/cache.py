"""What teachers answered about each stored view of an image, kept on disk, so that they are asked once.

DIR/images.bin        the number of each image, a hash of its pixels, in the order of the rows of all tables
DIR/KEY/layout.json   what is answered, by whom: the content of the key
DIR/KEY/answers.bin   a row for each image, an entry for each of its views

An entry has a checksum, and is there if its checksum holds: one that was never written, or only in part, or that was
damaged, is answered again. Several processes may read and write at once. No file is ever trusted: a flipped bit in a
number makes its image unknown.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from filelock import FileLock
from torch import Tensor

from dmc.data.batch import Batch
from dmc.errors import DmcError
from dmc.files import digest, write_text

SPARE = 2**28  # bytes of a disk that are left free
GROWTH = 4096  # rows that a file grows by at a time; rows that were not written take no room on disk
LARGEST = torch.finfo(torch.float16).max
log = logging.getLogger("dmc")


@dataclass(frozen=True)
class Part:
    """One tensor of an answer: its shape for one image, and its type on disk."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float16

    @property
    def words(self) -> int:
        """How many 16-bit words it takes for one image."""
        return int(np.prod(self.shape)) * self.dtype.itemsize // 2

    def packed(self, answer: Tensor) -> Tensor:
        """Round a tensor to the type on disk, and give its bits as words."""
        if self.dtype.is_floating_point:
            answer = answer.clamp(-LARGEST, LARGEST)
        return answer.to(self.dtype).flatten(1).contiguous().view(torch.int16)

    def unpacked(self, words_NW: Tensor) -> Tensor:
        """Undo `packed`, but for the rounding."""
        answer = words_NW.contiguous().view(self.dtype).view(len(words_NW), *self.shape)
        return answer.float() if self.dtype.is_floating_point else answer.long()


class ImageRows:
    """Which row of a table is of which image. All tables of a cache have the same rows."""

    def __init__(self, folder: Path, images: int) -> None:
        """Open the file of a cache, with room for so many images more than it has."""
        self.lock = FileLock(folder / ".lock")
        self.file = os.open(folder / "images.bin", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        self.row_of: dict[int, int] = {}
        self.most = self._read() + images

    def of(self, ids_N: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Give the row of each image, -1 where it has none."""
        return np.array([self.row_of.get(number, -1) for number in ids_N.tolist()], dtype=np.int64)

    def add(self, wanted: Sequence[int]) -> None:
        """Give rows to images that have none, as long as there is room."""
        if all(number in self.row_of for number in wanted):
            return
        with self.lock:
            rows = self._read()  # another process may have given them rows
            new = [number for number in dict.fromkeys(wanted) if number not in self.row_of]
            new = new[: max(0, self.most - rows)]
            os.truncate(self.file, 8 * rows)  # a process that was killed may have left half a number
            os.write(self.file, np.array(new, dtype="<i8").tobytes())
            self.row_of |= {number: row for row, number in enumerate(new, rows)}

    def _read(self) -> int:
        """Read which image each row is of, and give the number of rows."""
        rows = os.fstat(self.file).st_size // 8
        if rows > len(self.row_of):
            numbers = np.frombuffer(os.pread(self.file, 8 * rows, 0), dtype="<i8")
            self.row_of = {number: row for row, number in enumerate(numbers.tolist())}
        return rows


class AnswerTable:
    """The answers of one teacher, or of a group that answers together, about every stored view of some images."""

    def __init__(self, folder: Path, rows: ImageRows, parts: Sequence[Part], views: int) -> None:
        self.folder, self.rows, self.parts, self.views = folder, rows, parts, views
        words = sum(part.words for part in parts)
        self.entry = np.dtype([("checksum", "<u4"), ("words", "<u2", (words,))])
        self.weights_W = np.random.default_rng(0).integers(0, 2**32, words, dtype=np.uint32) | np.uint32(1)
        self.unwritten: Unwritten | None = None
        self.broken = False  # writing failed: nothing is kept from then on
        self.file = os.open(folder / "answers.bin", os.O_RDWR | os.O_CREAT, 0o666)
        self._map()

    def __call__(self, batch: Batch, ask: Callable[[], Sequence[Tensor]]) -> list[Tensor]:
        """Give the answers about a batch's view: those kept, or what `ask` answers, which is kept from now on.

        If one is missing, all of the batch is asked about: what a network answers depends, in the last bits, on the
        batch, and a resumed run must get the same. Answers are rounded as on disk from the first time on.
        """
        if batch.ids_N is None or batch.view is None:
            raise TypeError("only answers about stored views are kept")
        self.flush()
        ids_N, view, device = batch.ids_N.numpy(), batch.view, batch.images_N3HW.device
        found_NW, known_N = self.read(ids_N, view)
        words_NW = torch.from_numpy(found_NW.view(np.int16)).to(device, non_blocking=True)
        if not known_N.all():
            fresh_NW = torch.cat([part.packed(one) for part, one in zip(self.parts, ask(), strict=True)], dim=1)
            known_N1 = torch.from_numpy(known_N[:, None]).to(device, non_blocking=True)
            words_NW = torch.where(known_N1, words_NW, fresh_NW)
            self.unwritten = Unwritten(ids_N, view, ~known_N, *copied_to_host(words_NW))
        sizes = [part.words for part in self.parts]
        return [
            part.unpacked(own_NW) for part, own_NW in zip(self.parts, torch.split(words_NW, sizes, dim=1), strict=True)
        ]

    def read(self, ids_N: npt.NDArray[np.int64], view: int) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.bool_]]:
        """Read the entries of a view, and tell which of them are there."""
        rows_N = self.rows.of(ids_N)
        if rows_N.max(initial=-1) >= len(self.entries_RV):
            self._map()
        within_N = (rows_N >= 0) & (rows_N < len(self.entries_RV))
        entries_N = np.zeros(len(ids_N), self.entry)
        entries_N[within_N] = self.entries_RV[rows_N[within_N], view]
        words_NW = entries_N["words"]
        return words_NW, entries_N["checksum"] == self._checksums(ids_N, view, words_NW)

    def flush(self) -> None:
        """Write the answers to the batch before. On a full disk, say so, and keep no more."""
        new, self.unwritten = self.unwritten, None
        if new is None or self.broken:
            return
        words_NW = new.words()
        entries_N = np.zeros(len(words_NW), self.entry)
        entries_N["words"], entries_N["checksum"] = words_NW, self._checksums(new.ids_N, new.view, words_NW)
        try:
            self.rows.add(new.ids_N[new.missing_N].tolist())
            rows_N = self.rows.of(new.ids_N)
            self._grow(int(rows_N.max()) + 1)
            for i in (new.missing_N & (rows_N >= 0)).nonzero()[0].tolist():
                # Not through the memory map: on a full disk that would end the process.
                place = (int(rows_N[i]) * self.views + new.view) * self.entry.itemsize
                os.pwrite(self.file, entries_N[i].tobytes(), place)
        except OSError as error:
            self.broken = True
            log.warning(f"the teachers' answers are no longer kept in {self.folder}: {error.strerror}")

    def _grow(self, rows: int) -> None:
        """Let the file have at least so many rows."""
        wanted = -(-rows // GROWTH) * GROWTH * self.views * self.entry.itemsize
        if wanted > os.fstat(self.file).st_size:
            with self.rows.lock:  # no process may cut off what another has grown
                if wanted > os.fstat(self.file).st_size:
                    os.truncate(self.file, wanted)

    def _map(self) -> None:
        """Map the rows that the file has by now."""
        rows = os.fstat(self.file).st_size // (self.views * self.entry.itemsize)
        empty: npt.NDArray[Any] = np.zeros((0, self.views), self.entry)  # which cannot be mapped
        path = self.folder / "answers.bin"
        self.entries_RV = np.memmap(path, self.entry, "r", shape=(rows, self.views)) if rows else empty

    def _checksums(
        self, ids_N: npt.NDArray[np.int64], view: int, words_NW: npt.NDArray[np.uint16]
    ) -> npt.NDArray[np.uint32]:
        """Give a number for each entry that changes with any bit of it, its image or its view, and is never 0."""
        mixed_N = ids_N.astype(np.uint32) * np.uint32(2654435761) + np.uint32(view)
        sums_N: npt.NDArray[np.uint32] = words_NW.astype(np.uint32) @ self.weights_W + mixed_N
        return sums_N | np.uint32(1)

    def close(self) -> None:
        """Write what is left, and close the file."""
        self.flush()
        os.close(self.file)


class AnswerCache:
    """A folder of tables, as a context manager. Tables that were not used for longest make room for new ones."""

    def __init__(self, folder: Path, limit: int, views: int, images: int, seen: Mapping[str, Any]) -> None:
        """Keep answers about `views` views of so many images in `limit` bytes; `seen` tells what teachers see."""
        self.folder, self.limit, self.views, self.images, self.seen = folder, limit, views, images, seen
        self.open: list[AnswerTable] = []
        self.rows: ImageRows | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for table in self.open:
            table.close()
        if self.rows is not None:
            os.close(self.rows.file)

    def bytes_for(self, parts: Sequence[Part]) -> int:
        """Give the size of a table with all views of all images."""
        return self.images * self.views * (4 + 2 * sum(part.words for part in parts))

    def tables(self, wanted: Sequence[tuple[Mapping[str, Any], Sequence[Part]]]) -> list[AnswerTable]:
        """Open a table for each teacher: what identifies its answers, and the parts of an answer."""
        layouts = [{**key, **self.seen, "views": self.views, "parts": repr(parts)} for key, parts in wanted]
        folders = [self.folder / digest(layout) for layout in layouts]
        missing = [self.bytes_for(parts) - on_disk(folder) for (_, parts), folder in zip(wanted, folders, strict=True)]
        self._make_room(8 * self.images + sum(max(0, size) for size in missing), folders)
        self.rows = ImageRows(self.folder, self.images)
        for (_, parts), layout, folder in zip(wanted, layouts, folders, strict=True):
            write_text(folder / "layout.json", json.dumps(layout, indent=2) + "\n")  # its age is that of the last use
            self.open.append(AnswerTable(folder, self.rows, parts, self.views))
        return self.open

    def _make_room(self, needed: int, keep: Sequence[Path]) -> None:
        """Remove tables that were not used for longest until so many bytes more fit; refuse if they cannot."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tables = [path.parent for path in self.folder.glob("*/layout.json")]
        others = sorted(set(tables) - set(keep), key=lambda table: (table / "layout.json").stat().st_mtime)
        used = sum(map(on_disk, (self.folder, *tables)))
        free = shutil.disk_usage(self.folder).free - SPARE
        while others and (used + needed > self.limit or needed > free):
            size = on_disk(others[0])
            shutil.rmtree(others.pop(0), ignore_errors=True)
            used, free = used - size, free + size
        room = min(self.limit - used, free)
        if needed > room:
            raise DmcError(
                f"the teachers' answers need {needed / 2**30:.2f} GiB in {self.folder}, which has room for "
                f"{max(0, room) / 2**30:.2f}: keep fewer views, raise cache_limit, or go without a cache"
            )


class Unwritten(NamedTuple):
    """Answers on their way from the device to the disk."""

    ids_N: npt.NDArray[np.int64]
    view: int
    missing_N: npt.NDArray[np.bool_]  # which of them are to be written
    host_NW: Tensor
    copied: torch.Event | None  # when it happens, the copy is complete

    def words(self) -> npt.NDArray[np.uint16]:
        """Wait for the copy, which was begun a step ago, and give the words."""
        if self.copied is not None:
            self.copied.synchronize()
        return self.host_NW.numpy().view(np.uint16)


def copied_to_host(words_NW: Tensor) -> tuple[Tensor, torch.Event | None]:
    """Begin to copy words to the host, without waiting for the device."""
    if words_NW.device.type == "cpu":
        return words_NW, None
    host_NW = torch.empty_like(words_NW, device="cpu", pin_memory=words_NW.device.type == "cuda")
    host_NW.copy_(words_NW, non_blocking=True)
    copied = torch.Event(words_NW.device.type)
    copied.record()
    return host_NW, copied


def on_disk(folder: Path) -> int:
    """Give the bytes that a table really takes: rows that were not written take none."""
    return sum(file.stat().st_blocks * 512 for file in folder.glob("*") if file.is_file())
