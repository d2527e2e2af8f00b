"""The one training loop. It owns the network, through which an objective turns a batch into losses."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from dmc.cost import measured
from dmc.data.batch import Batch
from dmc.data.loader import ImageLoader, Share
from dmc.data.transfer import on_device, resident
from dmc.data.waiting import Watched
from dmc.device import pick_device
from dmc.errors import DmcError
from dmc.model_config import STATISTICS
from dmc.precision import autocast
from dmc.processes import together
from dmc.progress import training_progress
from dmc.schedule import Precision, Schedule
from dmc.seeds import seed_for
from dmc.training.objective import Objective
from dmc.training.run_folder import Position, Run
from dmc.training.step import Step, TooLargeError, explained
from dmc.training.stopping import Stopped, StopSignals

DIVERGED = "training diverged"  # how the error about it begins


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
    step, processes = Step(module, objective, schedule), together()
    steps_per_epoch = loader.steps(schedule.batch_size)
    last_step = schedule.epochs * steps_per_epoch
    at = run.restore(step.state, objective.notes())
    step.begin()
    batches = Watched(augmented(loader, schedule, seed, at.step, views, step.device, processes.share))

    def note() -> str:
        return f"epoch {-(-at.step // steps_per_epoch)} of {schedule.epochs}, loss {at.mean_loss:.4g}"

    with (
        training_progress(schedule.epochs * loader.count, what, at.images, note) as stepped,
        torch.random.fork_rng(devices=[]),
        StopSignals() as stop,
    ):
        started = time.monotonic()
        while at.step < last_step:
            batch = next(batches)
            (whole,) = processes.summed(len(batch))
            lr = schedule.lr_at(at.step, steps_per_epoch)
            with explained(len(batch)):
                losses = step(batch, lr, whole)
            at.add(losses, len(batch), round(whole))

            epoch = -(-at.step // steps_per_epoch)
            stepped(round(whole))
            saving, stopping = processes.summed(run.checkpoint_due, stop.asked is not None)
            due = saving or stopping or at.step == last_step
            epoch_ends = at.step % steps_per_epoch == 0
            if due or epoch_ends:  # losses are not read at each step, since that waits for the device
                objective.require_sound()
                totals = at.gathered()
                require_finite(totals, module if due else None)
                totals.seconds += time.monotonic() - started  # by now the device has done all of it
                if epoch_ends:
                    run.log(epoch=epoch, lr=lr, waited=round(batches.share_waited(), 3), **totals.end_epoch())
                if due:
                    run.checkpoint(step.state, objective.notes(), totals)
                started = time.monotonic()
            if stopping and at.step < last_step:
                raise Stopped(stop.asked or signal.SIGTERM, f"{what} stopped in epoch {epoch} of {schedule.epochs}")
    module.eval()
    return at


def augmented(
    loader: ImageLoader,
    schedule: Schedule,
    seed: int,
    first_step: int,
    views: int | None,
    device: torch.device,
    share: Share,
) -> Iterator[Batch]:
    """Give a process's share of a training's batches, on the device and augmented; each seeds torch's generator."""
    steps = loader.steps(schedule.batch_size)
    held = resident(loader, device, identified=views is not None)

    def chosen() -> Iterator[Batch]:
        for step, batch in enumerate(held.batches(seed, schedule.batch_size, first_step, share), first_step):
            yield batch if views is None else batch.in_view(step // steps % views)

    there = on_device(chosen(), device) if held is loader else chosen()
    for step, batch in enumerate(there, first_step):
        torch.manual_seed(seed_for(seed, "step", step))
        yield batch.augmented(schedule.pad, schedule.flip)


def require_finite(at: Position, module: nn.Module | None) -> None:
    """Stop if a loss or (with a module) a weight is not finite, before that overwrites the last good checkpoint."""
    broken = [name for name, total in at.loss_sums.items() if not math.isfinite(float(total))]
    # A buffer that is no statistic may be infinite, as a mask is.
    statistics = [value for name, value in module.named_buffers() if name.endswith(STATISTICS)] if module else []
    if module and not all(bool(part.isfinite().all()) for part in (*module.parameters(), *statistics)):
        broken.append("a weight")
    if broken:
        raise DmcError(f"{DIVERGED}: {broken[0]} is not finite by step {at.step}; lower the learning rate")


def step_cost(
    module: nn.Module, objective: Objective, batch: Batch, precision: Precision = "fp32"
) -> tuple[float, float]:
    """Count the operations of a step on a batch and time it, both for one image; leave the network as it was.

    If the memory does not suffice, the error names a number of images for which it does.
    """
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module.train()

    def step(some: Batch = batch) -> None:
        with explained(len(some)):
            with autocast(precision, batch.images_N3HW.device):
                loss = objective.losses(module, some)["loss"]
            loss.backward()  # type: ignore[no-untyped-call]
            loss.item()  # waits for the device

    try:
        found = measured(step, len(batch))
    except TooLargeError:
        found = None
    if found is None:  # not above, where the exception still holds the memory of the failed step
        raise TooLargeError(f"a batch of {len(batch)} images does not fit into memory; {room_for(step, batch)}")
    objective.require_sound()
    module.load_state_dict(before)  # undoes what batch norm has seen
    module.zero_grad()
    return found


def room_for(step: Callable[[Batch], None], batch: Batch) -> str:
    """Halve a batch until its step fits into memory, and say so."""
    images = len(batch) // 2
    while images:
        with suppress(TooLargeError):
            step(first_of(batch, images))
            return f"{images} do (`batch_size={images}`)"
        images //= 2
    return "nor does one image: take a smaller network or smaller images (`size`)"


def first_of(batch: Batch, images: int) -> Batch:
    """Cut a batch down to its first images."""
    parts = {field.name: getattr(batch, field.name) for field in fields(batch)}
    cut: dict[str, Any] = {name: part[:images] for name, part in parts.items() if isinstance(part, Tensor | list)}
    return replace(batch, **cut)


def require_trainable(module: nn.Module, objective: Objective, loader: ImageLoader, schedule: Schedule) -> None:
    """Refuse, before anything is trained, a network that cannot be saved, or batches of one if its norm needs more."""
    strange = [name for name, value in module.state_dict().items() if not isinstance(value, Tensor)]
    if strange:
        raise DmcError(f"the network keeps {strange[0]!r}, which is no tensor, so that it cannot be trained and saved")
    parts = loader.arranged(torch.arange(loader.count), schedule.batch_size, torch.Generator())
    if min(map(len, parts), default=0) == 1:
        module.to(pick_device())
        step_cost(module, objective, next(loader.in_order(1)).to(pick_device()), schedule.precision)
