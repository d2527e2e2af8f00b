"""Small tensors that every process shows to all others, two for each batch norm of a step."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, distributed

from dmc.processes import Processes

Exchange = Callable[[Tensor], list[Tensor]]  # from this process's tensor to those of all, in the order of ranks

LARGEST = 3 * 8192  # numbers in a notice: three for each of the channels of a wide layer
LINE = 8  # numbers of 8 bytes in a line of the processor's cache
PATIENCE = 1000  # looks before the core is offered to others
ALIVE_EVERY = 0.2  # seconds of waiting between questions whether the others live


def exchange_between(processes: Processes, device: torch.device) -> Exchange:
    """Return the fastest way to show a tensor to all processes."""
    one_machine = os.environ.get("LOCAL_WORLD_SIZE") == str(processes.count)
    # Other processors (ARM) may let a process see the turn before the notice that it announces.
    ordered = platform.machine().lower() in ("x86_64", "amd64")
    return Board(processes) if device.type == "cpu" and one_machine and ordered else all_gathered


def all_gathered(own: Tensor) -> list[Tensor]:
    """Gather the tensors of all processes by torch's own means."""
    everyones = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(everyones, own)
    return everyones


class Board:
    """A board in shared memory on which each process of one machine pins its notice and reads the others'.

    torch's gloo wakes four threads for each message, which takes a millisecond where threads sleep deeply.
    """

    def __init__(self, processes: Processes) -> None:
        self.rank, self.turn = processes.rank, 0
        heads = LINE * processes.count
        size = heads + processes.count * LARGEST  # two notices of 4 bytes a number for each process
        path = processes.agreed(_file_of(8 * size) if self.rank == 0 else "")
        shared = torch.from_file(path, shared=True, size=size, dtype=torch.int64)
        self.notices_2PN = shared[heads:].view(torch.float32).view(2, processes.count, LARGEST)
        self.turns_P = shared[:heads:LINE].numpy()
        self.pids_P = shared[1:heads:LINE].numpy()
        self.pids_P[self.rank] = os.getpid()
        processes.summed(0)  # returns when all have opened it
        if self.rank == 0:  # the memory stays while it is in use
            Path(path).unlink()

    def __call__(self, own: Tensor) -> list[Tensor]:
        """Pin this notice, wait for those of the same turn, and copy them all.

        There are two places for each process: one that is a turn ahead leaves alone what others still read.
        """
        if own.numel() > LARGEST:
            return all_gathered(own)
        self.turn += 1
        notices_PN = self.notices_2PN[self.turn % 2, :, : own.numel()]
        notices_PN[self.rank] = own.reshape(-1)
        self.turns_P[self.rank] = self.turn
        self._wait()
        return [notice.view(own.shape) for notice in notices_PN.clone()]

    def _wait(self) -> None:
        """Return when every process has pinned its notice of this turn."""
        looks, asked = 0, time.monotonic()
        while self.turns_P.min() < self.turn:
            looks += 1
            if looks > PATIENCE:
                os.sched_yield()
                if time.monotonic() - asked > ALIVE_EVERY:
                    asked = time.monotonic()
                    self._require_all_alive()

    def _require_all_alive(self) -> None:
        """Raise what a closed connection raises if another process is gone."""
        for pid in map(int, self.pids_P):
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                raise RuntimeError(f"connection closed by process {pid}") from None


def _file_of(size: int) -> str:
    """Make a file of zeros."""
    handle, path = tempfile.mkstemp(prefix="dmc-board-")
    os.truncate(handle, size)
    os.close(handle)
    return path
