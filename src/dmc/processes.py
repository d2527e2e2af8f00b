"""The processes that train one network together, as a launcher started them: `torchrun`, `accelerate launch`.

Every process runs the same command. The first one writes; each takes its share of every batch. Without a launcher there
is one process, and nothing here is loaded.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from dmc.errors import DmcError

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup

T = TypeVar("T")
LOST = ("connection closed", "connection reset", "broken pipe", "remote process exited")  # in gloo's and NCCL's words


def is_main() -> bool:
    """Tell whether this process is the one that writes and speaks."""
    return not launched() or int(os.environ.get("RANK", "0")) == 0


def launched() -> bool:
    """Tell whether a launcher started several processes."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@cache
def together() -> Processes:
    """Join the other processes of the launcher; without one, be alone."""
    if not launched():
        return Processes()
    import torch
    from accelerate import PartialState

    try:
        state = PartialState(cpu=not torch.accelerator.is_available())
        atexit.register(torch.distributed.destroy_process_group)
        # The first process may select images for hours while the others wait; one that dies is noticed all the same.
        control: Any = torch.distributed.new_group(backend="gloo", timeout=timedelta(days=30))
    except (RuntimeError, ValueError, KeyError) as error:
        raise DmcError(f"the launcher's processes cannot find each other: {error}".splitlines()[0]) from None
    return Processes(state.process_index, state.num_processes, control)


@dataclass(frozen=True)
class Processes:
    """This process among those that work together."""

    rank: int = 0
    count: int = 1
    control: ProcessGroup | None = None  # for numbers on the CPU, so that agreeing never waits for a GPU

    @property
    def share(self) -> tuple[int, int]:
        """This process's number, and how many there are."""
        return self.rank, self.count

    def agreed(self, value: T) -> T:
        """Give the first process's value to all of them."""
        if self.count == 1:
            return value
        from torch import distributed

        values = [value]
        with lost_peers():
            distributed.broadcast_object_list(values, src=0, group=self.control)
        return values[0]

    def summed(self, *numbers: float) -> list[float]:
        """Add up numbers over all processes."""
        if self.count == 1:
            return list(numbers)
        import torch

        sums = torch.tensor(numbers, dtype=torch.float64)
        with lost_peers():
            torch.distributed.all_reduce(sums, group=self.control)
        return [float(number) for number in sums]

    def wrapped(self, module: nn.Module) -> nn.Module:
        """Wrap a module so that its gradients are the mean over all processes."""
        if self.count == 1:
            return module
        from torch.nn.parallel import DistributedDataParallel

        # Some networks have parts without gradients, such as auxiliary heads; those are the same in every step.
        return DistributedDataParallel(module, static_graph=True)


@contextmanager
def lost_peers() -> Iterator[None]:
    """Say in one line that another process has ended, instead of what its connections make of that."""
    try:
        yield
    except RuntimeError as error:
        if any(words in str(error).lower() for words in LOST):
            raise DmcError("another process of this run has ended; what it said tells why, resume goes on") from None
        raise
