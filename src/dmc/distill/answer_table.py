"""A table of answers on disk: a row for each image, an entry for each of its views.

An entry has a checksum, and is there if its checksum holds: one that was never written, or only in part, or that was
damaged, is answered again. Several processes may read and write at once. No file is ever trusted: a flipped bit in an
image's number makes the image unknown.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from filelock import FileLock
from torch import Tensor

from dmc.data.batch import Batch

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
        if self.dtype.is_floating_point:  # large numbers stay finite, and infinite ones infinite, as they will be found
            wide = answer.float()
            answer = torch.where(wide.isfinite(), wide.clamp(-LARGEST, LARGEST), wide)
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
        self.known = 0  # rows that were read
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
            self._read()

    def _read(self) -> int:
        """Read which image each row is of, as far as that is new, and give the number of rows."""
        rows, known = os.fstat(self.file).st_size // 8, self.known
        if rows > known:
            numbers = np.frombuffer(os.pread(self.file, 8 * (rows - known), 8 * known), dtype="<i8")
            self.row_of |= {number: row for row, number in enumerate(numbers.tolist(), known)}
            self.known = rows
        return rows


@dataclass
class Room:
    """The bytes that tables may still take together."""

    left: int

    def take(self, size: int) -> bool:
        """Use up some of them; tell whether there were as many."""
        self.left -= size
        return self.left >= 0


class AnswerTable:
    """The answers of one teacher, or of a group that answers together, about every stored view of some images."""

    def __init__(self, folder: Path, rows: ImageRows, parts: Sequence[Part], views: int, room: Room) -> None:
        self.folder, self.rows, self.parts, self.views, self.room = folder, rows, parts, views, room
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
        if not self.room.take(int(new.missing_N.sum()) * self.entry.itemsize):
            self._give_up("the cache is full")
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
            self._give_up(error.strerror or str(error))

    def _give_up(self, why: str) -> None:
        """Keep nothing from now on, and say so."""
        self.broken = True
        log.warning(f"the teachers' answers are no longer kept in {self.folder}: {why}")

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
        content = mmap(self.file, 0, access=ACCESS_READ) if rows else b""  # an empty file cannot be mapped
        entries: npt.NDArray[Any] = np.frombuffer(content, self.entry, rows * self.views)
        self.entries_RV = entries.reshape(rows, self.views)

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
