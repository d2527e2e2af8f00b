"""Decoded pixels of a stream in a temporary file, so that later passes over the same images need not decode them."""

from __future__ import annotations

import os
import shutil
import tempfile
from array import array
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from dmc.data.sources import Record

MOST_BYTES = 16 * 2**30  # of one file
SHARE_OF_DISK = 0.25  # of what is free in the temporary folder
T = TypeVar("T")
FILLED = 2 / 3  # of the places in the table; in a fuller one, a free place is far to seek


class Scratch:
    """A file of images of one shape, each found by what it was decoded from; once it is full, it takes no more.

    The file has no name and is gone when it is closed, also if the process is killed. It is read, not mapped, so that
    no more memory is resident than a table of 12 bytes per image.
    """

    def __init__(self, images: int, side: int, most_bytes: int) -> None:
        self.side, self.bytes = side, 3 * side**2
        self.left = min(images, most_bytes // self.bytes)
        self.keys = array("Q", bytes(8 * (int(self.left / FILLED) + 1)))  # 0: nothing is there
        self.file = tempfile.TemporaryFile(prefix="dmc-", buffering=0)  # noqa: SIM115 (closed by `__exit__`)
        self.lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def pixels(self, record: Record, decode: Callable[[Record], Tensor | T]) -> Tensor | T:
        """Read a record's pixels, or decode and keep them, unless `decode` gives something else."""
        key = key_of(record)
        if key is None:
            return decode(record)
        place = self._place(key)
        if self.keys[place]:
            pixels_HW3 = np.empty((self.side, self.side, 3), np.uint8)
            os.preadv(self.file.fileno(), [pixels_HW3.data], place * self.bytes)
            return torch.from_numpy(pixels_HW3).permute(2, 0, 1)
        image = decode(record)
        if isinstance(image, Tensor) and self.left:
            self._keep(key, image.permute(1, 2, 0).contiguous())
        return image

    def _place(self, key: int) -> int:
        """Give the place of this key, or the free one where it belongs."""
        place = key % len(self.keys)
        while self.keys[place] not in (0, key):
            place = (place + 1) % len(self.keys)
        return place

    def _keep(self, key: int, pixels_HW3: Tensor) -> None:
        """Write pixels, then the key by which other threads find them."""
        with self.lock:
            place = self._place(key)
            if self.keys[place] or not self.left:  # another thread was faster
                return
            try:
                written = os.pwrite(self.file.fileno(), pixels_HW3.numpy().data, place * self.bytes)
            except OSError:
                written = 0
            if written == self.bytes:
                self.keys[place] = key
                self.left -= 1
            else:  # the disk is full
                self.left = 0


def room(processes: int) -> int:
    """Give the bytes that a scratch file may take when each of several processes has one; 0 where there can be none."""
    if not hasattr(os, "preadv"):
        return 0
    free = shutil.disk_usage(tempfile.gettempdir()).free
    return min(MOST_BYTES, int(free * SHARE_OF_DISK)) // processes


def key_of(record: Record) -> int | None:
    """Hash what an image is decoded from, its bytes or its file's name; None for pixels, which are decoded already."""
    if record.part is not None or not isinstance(record.image, bytes | Path):
        return None
    content = record.image if isinstance(record.image, bytes) else os.fsencode(record.image)
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "big") or 1
