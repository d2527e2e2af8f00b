"""The one training loop. It owns the network, through which an objective turns a batch into losses."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from dmc.config import Schedule
from dmc.data.batch import Batch
from dmc.data.loader import ImageLoader
from dmc.device import pick_device
from dmc.errors import DmcError
from dmc.progress import training_progress
from dmc.seeds import seed_for
from dmc.training.optimizer import clip_gradients, optimizer_for
from dmc.training.run_folder import Position, Run
from dmc.training.stopping import Stopped, StopSignals


class Objective(ABC):
    """What is minimised. The two hooks serve methods that accumulate something along the way."""

    name: ClassVar[str]  # in run.json: a run can be resumed only with the objective that it began with

    @abstractmethod
    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Compute the losses of a batch through the network that is trained, which the loop may have wrapped.

        `loss` is minimised; the other losses in the dict are only recorded. Nothing may wait for the device here.
        """

    def require_sound(self) -> None:  # noqa: B027 (optional)
        """Refuse answers that nobody could learn from. Waits for the device, so it is not called at each step."""

    def gradients_ready(self) -> None:  # noqa: B027 (optional)
        """Act on the gradients of `loss`, before the optimizer changes the weights."""

    def weights_stepped(self) -> None:  # noqa: B027 (optional)
        """Act on the weights that the optimizer has just changed."""

    def notes(self) -> dict[str, Tensor]:
        """Give the tensors that a resumed run needs besides the weights; resuming fills them in place."""
        return {}


def fit(
    module: nn.Module,
    objective: Objective,
    loader: ImageLoader,
    schedule: Schedule,
    run: Run,
    seed: int,
    what: str,
    views: int | None = None,
) -> Position:
    """Train a network, from the run's checkpoint on if it has one; `what` is the name of the work in messages.

    With `views`, pass i sees the stored view i (modulo `views`) of each image; without, augmentation is drawn anew.
    On a CPU the weights depend on the arguments alone, bit for bit, however often the run was killed.
    """
    device = pick_device()
    network = module.to(device).to(memory_format=torch.channels_last).train()
    optimizer = optimizer_for(schedule, network)
    steps_per_epoch = loader.steps(schedule.batch_size)
    last_step = schedule.epochs * steps_per_epoch
    at = run.restore(network, optimizer, objective.notes())
    batches = loader.batches(seed, schedule.batch_size, at.step)
    total = schedule.epochs * loader.count

    def note() -> str:
        return f"epoch {-(-at.step // steps_per_epoch)} of {schedule.epochs}, loss {at.mean_loss:.4g}"

    with (
        training_progress(total, what, at.images, note) as stepped,
        torch.random.fork_rng(devices=[]),
        StopSignals() as stop,
    ):
        started = time.monotonic()
        while at.step < last_step:
            torch.manual_seed(seed_for(seed, "step", at.step))
            batch = next(batches)
            if views is not None:
                batch = batch.in_view(at.step // steps_per_epoch % views)
            batch = batch.to(device).augmented(schedule.pad, schedule.flip)
            lr = schedule.lr_at(at.step, steps_per_epoch)
            for group in optimizer.param_groups:
                group["lr"] = lr

            losses = objective.losses(network, batch)
            optimizer.zero_grad()
            losses["loss"].backward()  # type: ignore[no-untyped-call]
            objective.gradients_ready()
            clip_gradients(schedule, network)
            optimizer.step()
            objective.weights_stepped()

            at.add(losses, len(batch))
            epoch = -(-at.step // steps_per_epoch)
            stepped(len(batch))
            due = run.checkpoint_due or at.step == last_step or stop.asked is not None
            epoch_ends = at.step % steps_per_epoch == 0
            if due or epoch_ends:  # losses are not read at each step, since that waits for the device
                objective.require_sound()
                require_finite(at, network if due else None)
                at.seconds += time.monotonic() - started  # by now the device has done all of it
            if epoch_ends:
                run.log(epoch=epoch, lr=lr, **at.end_epoch())
            if due:
                run.checkpoint(network, optimizer, objective.notes(), at)
            if due or epoch_ends:
                started = time.monotonic()
            if stop.asked is not None and at.step < last_step:
                raise Stopped(stop.asked, f"{what} stopped in epoch {epoch} of {schedule.epochs}")
    network.eval()
    return at


def require_finite(at: Position, module: nn.Module | None) -> None:
    """Stop if a loss or (with a module) a weight is not finite, before that overwrites the last good checkpoint."""
    broken = [name for name, total in at.loss_sums.items() if not math.isfinite(float(total))]
    if module and not all(bool(part.isfinite().all()) for part in module.state_dict().values()):
        broken.append("a weight")
    if broken:
        raise DmcError(f"training diverged: {broken[0]} is not finite by step {at.step}; lower the learning rate")


def images_per_second(module: nn.Module, objective: Objective, batch: Batch) -> float:
    """Time a step on a batch, and leave the network as it was."""
    rate = 0.0
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module.train()
    for _ in range(2):  # the first one warms up
        started = time.monotonic()
        loss = objective.losses(module, batch)["loss"]
        loss.backward()  # type: ignore[no-untyped-call]
        loss.item()  # waits for the device
        rate = len(batch) / (time.monotonic() - started)
    objective.require_sound()
    module.load_state_dict(before)  # undoes what batch norm has seen
    module.zero_grad()
    return rate
