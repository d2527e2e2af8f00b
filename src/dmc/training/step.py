"""One step of training: the schedule's precision and optimizer, on a batch that all processes share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from dmc.data.batch import Batch
from dmc.device import pick_device
from dmc.errors import DmcError, is_out_of_memory
from dmc.precision import autocast
from dmc.processes import lost_peers, together
from dmc.schedule import Schedule
from dmc.training.checkpoint import Stateful
from dmc.training.exchange import exchange_between
from dmc.training.objective import Objective
from dmc.training.optimizer import clip_gradients, optimizer_for
from dmc.training.synced_norm import SyncedNorm


class TooLargeError(DmcError):
    """A batch does not fit into memory."""


@contextmanager
def explained(images: int) -> Iterator[None]:
    """Say in one line that a batch of so many images is too large for the memory, or too small for batch norm."""
    try:
        yield
    except (MemoryError, RuntimeError, ValueError) as error:
        if is_out_of_memory(error):
            half = images // 2
            smaller = f"{half} may (`batch_size={half}`)" if half else "take a smaller network or smaller images"
            raise TooLargeError(f"a batch of {images} images does not fit into memory; {smaller}") from None
        if "more than 1 value per channel" in str(error):
            raise DmcError(
                "a batch has one image, of which batch norm sees one value per channel, so it cannot be trained on: "
                "take batches of 3 images or more, more images, or larger ones (`size`)"
            ) from None
        raise


class Step:
    """The network, its optimizer, and how a batch changes the weights."""

    def __init__(self, module: nn.Module, objective: Objective, schedule: Schedule) -> None:
        self.objective, self.schedule, self.device, self.processes = objective, schedule, pick_device(), together()
        self.module = module.to(self.device).to(memory_format=torch.channels_last).train()
        self.optimizer = optimizer_for(schedule, module)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=schedule.precision == "fp16")
        self.network = module

    @property
    def state(self) -> dict[str, Stateful]:
        """What a checkpoint holds of it, by name."""
        scaler = {"scaler": self.scaler} if self.scaler.is_enabled() else {}
        return {"module": self.module, "optimizer": self.optimizer, **scaler}

    def begin(self) -> None:
        """Wrap the network, which has its first weights by now."""
        self.network = self.processes.wrapped(self.module)
        if self.processes.count > 1:
            self.norm = SyncedNorm(exchange_between(self.processes, self.device))
        if self.schedule.compile:
            self.network = torch.compile(self.network)  # type: ignore[assignment]

    def __call__(self, batch: Batch, lr: float, whole: float) -> dict[str, Tensor]:
        """Change the weights once, by this share of a batch of `whole` images; give the share's mean losses."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        with ExitStack() as how:
            how.enter_context(autocast(self.schedule.precision, self.device))
            if self.processes.count > 1:
                how.enter_context(lost_peers())
                how.enter_context(self.norm)
                torch.manual_seed(torch.initial_seed() + self.processes.rank)  # dropout differs between processes
            losses = self.objective.losses(self.network, batch)
        self.optimizer.zero_grad()
        # The processes' gradients are averaged, so a loss counts as its share of all images.
        share = len(batch) * self.processes.count / whole
        with lost_peers():
            self.scaler.scale(losses["loss"] * share).backward()  # type: ignore[no-untyped-call]
        self.scaler.unscale_(self.optimizer)
        sound = not self._overflowed()  # if not, the scaler leaves this step out, and scales the next one less
        if sound:
            self.objective.gradients_ready()
            clip_gradients(self.schedule, self.module)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if sound:
            self.objective.weights_stepped()
        return losses

    def _overflowed(self) -> bool:
        """Tell whether a gradient is not finite though it was scaled; only fp16 asks, which waits for the device."""
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        return self.scaler.is_enabled() and not bool(nn.utils.get_total_norm(gradients).isfinite())
