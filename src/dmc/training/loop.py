"""The one training loop. A task turns a batch into losses; everything else happens here."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from dmc.data.batch import Batch
from dmc.data.loader import ImageLoader
from dmc.device import pick_device
from dmc.errors import DmcError
from dmc.progress import training_progress
from dmc.seeds import seed_for
from dmc.training.run_folder import Position, Run
from dmc.training.schedule import Schedule
from dmc.training.stopping import Stopped, StopSignals


class Objective(ABC):
    """What is being learned. The two hooks serve methods that add things up along the way."""

    module: nn.Module

    @abstractmethod
    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """`loss` is minimised; whatever else is in the dict is recorded."""

    def gradients_ready(self) -> None:  # noqa: B027 (optional)
        """Called when the gradients of `loss` are there and the weights are still the old ones."""

    def weights_stepped(self) -> None:  # noqa: B027 (optional)
        """Called when the optimizer has stepped."""

    def notes(self) -> dict[str, Tensor]:
        """Tensors beside the weights that a resumed run needs; they are written to in place."""
        return {}


def fit(task: Objective, loader: ImageLoader, schedule: Schedule, run: Run, seed: int, what: str) -> Position:
    """Train `task.module`, from the run's checkpoint if it has one.

    On CPU the weights are a function of the arguments, bit for bit, however often the run was killed.
    """
    device = pick_device()
    module = task.module.to(device).to(memory_format=torch.channels_last).train()
    optimizer = schedule.optimizer(module)
    steps_per_epoch = loader.steps(schedule.batch_size)
    last_step = schedule.epochs * steps_per_epoch
    at = run.restore(module, optimizer, task.notes())
    batches = loader.batches(seed, schedule.batch_size, at.step)
    total = schedule.epochs * loader.count
    with (
        training_progress(total, what, done=at.images) as stepped,
        torch.random.fork_rng(devices=[]),
        StopSignals() as stop,
    ):
        while at.step < last_step:
            started = time.monotonic()
            torch.manual_seed(seed_for(seed, "step", at.step))
            batch = schedule.augmented(next(batches).to(device))
            lr = schedule.lr_at(at.step, steps_per_epoch)
            for group in optimizer.param_groups:
                group["lr"] = lr

            losses = task.losses(batch)
            optimizer.zero_grad()
            losses["loss"].backward()  # type: ignore[no-untyped-call]
            task.gradients_ready()
            schedule.limit(module)
            optimizer.step()
            task.weights_stepped()

            at.add({name: loss.item() for name, loss in losses.items()}, len(batch), time.monotonic() - started)
            due = run.checkpoint_due or at.step == last_step or stop.asked is not None
            require_finite(at, module if due else None)
            epoch = (at.step - 1) // steps_per_epoch + 1
            stepped(len(batch), f"epoch {epoch} of {schedule.epochs}, loss {at.mean_loss:.4g}")
            if at.step % steps_per_epoch == 0:
                run.log(epoch=at.step // steps_per_epoch, lr=lr, **at.end_epoch())
            if due:
                run.checkpoint(module, optimizer, task.notes(), at)
            if stop.asked is not None and at.step < last_step:
                raise Stopped(stop.asked, f"{what} stopped in epoch {epoch} of {schedule.epochs}")
    module.eval()
    return at


def require_finite(at: Position, module: nn.Module | None) -> None:
    """Stop before a bad state overwrites the last good checkpoint."""
    broken = [name for name, total in at.loss_sums.items() if not math.isfinite(total)]
    if module and not all(bool(part.isfinite().all()) for part in module.state_dict().values()):
        broken.append("a weight")
    if broken:
        raise DmcError(f"training diverged: {broken[0]} is not finite at step {at.step}; lower the learning rate")


def images_per_second(task: Objective, batch: Batch) -> float:
    """Time a step on a batch, leaving the network as it was."""
    module, rate = task.module, 0.0
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module.train()
    for _ in range(2):  # the first one warms up
        started = time.monotonic()
        loss = task.losses(batch)["loss"]
        loss.backward()  # type: ignore[no-untyped-call]
        loss.item()  # waits for the device
        rate = len(batch) / (time.monotonic() - started)
    module.load_state_dict(before)  # batch norm has seen the batch
    module.zero_grad()
    return rate
