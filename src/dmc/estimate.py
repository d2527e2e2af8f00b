"""What is known of a consolidation before it trains: its images, its cost, its teachers side by side."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import Tensor

from dmc.checks import Check
from dmc.consolidation import Consolidation
from dmc.cost import Cost, measured
from dmc.data.batch import Batch
from dmc.data.decode import DecodeError, Skipped, decoded
from dmc.data.loader import ENOUGH
from dmc.data.sources import Record
from dmc.device import pick_device
from dmc.precision import autocast
from dmc.training.loop import first_of, step_cost

ASKING_SECONDS = 20  # how long the teachers are asked about images before training


@dataclass(frozen=True)
class Estimate:
    """What is known about a consolidation before it trains."""

    tried: int  # images that were opened
    undecodable: Skipped  # of those
    images_per_second: float
    cost: Cost
    teachers: dict[str, Any]  # what `measure_teachers` found on some of the images


def some_batches(merge: Consolidation[Any], kept: int = 0, mixed: bool = False) -> tuple[list[Batch], int, Skipped]:
    """Give some auxiliary images in batches, how many were tried, and which of them are broken.

    Of at least ENOUGH images that are tried, the first `kept` that decode are given, and at least a batch. They come
    from all over the set if it is held in memory, or `mixed`. Too many broken ones are refused.
    """
    skipped = Skipped(merge.aux.name, named=0)  # they are named when all images are read
    framed: list[tuple[Record, Tensor]] = []
    size, tried = merge.schedule.batch_size, min(max(ENOUGH, kept), len(merge.aux))
    # To shuffle a stream, more of it has to be read.
    seed = merge.config.seed if merge.held or mixed else None
    for record, image in islice(decoded(merge.aux.records(seed), merge.transform), tried):
        if isinstance(image, DecodeError):
            skipped.add(image)
        elif len(framed) < max(kept, size):
            framed.append((record, image))
    skipped.check(len(skipped), tried)
    batches = [merge.transform.batch(framed[start : start + size]) for start in range(0, len(framed), size)]
    return batches, tried, skipped


def cost_of(merge: Consolidation[Any], batch: Batch) -> Cost:
    """Count and time a step on a batch, and the teachers' part of it; the student's weights stay as they are."""
    device = pick_device()
    batch = batch.to(device)
    merge.teachers.to(device).fold()
    network, objective, precision = merge.student.to(device).module, merge.objective(), merge.schedule.precision
    if merge.trained_on // -(-merge.trained_on // merge.schedule.batch_size) == 1:  # images in the smallest batch
        step_cost(network, objective, first_of(batch, 1), precision)

    def ask() -> None:
        with autocast(precision, device):
            merge.teachers.each(batch.images_N3HW)
        merge.teachers.require_finite()  # waits for the device

    flops, seconds = step_cost(network, objective, batch, precision)
    asking_flops, asking_seconds = measured(ask, len(batch))
    asking_seconds = min(asking_seconds, 0.95 * seconds)  # timings are noisy
    cache, kept = merge.cache, merge.teachers.kept() if merge.cache else []
    if cache:
        cache.require_room(kept)
    return Cost(
        asking_flops=asking_flops,
        student_flops=flops - asking_flops,
        asking_seconds=asking_seconds,
        student_seconds=seconds - asking_seconds,
        cache_bytes=cache.bytes_for(kept) if cache else 0,
        views=cache.views if cache else None,
    )


def selecting_seconds(merge: Consolidation[Any], cost: Cost) -> float:
    """Give the seconds that a selection takes: one process asks about every image."""
    return (len(merge.aux) - merge.held_out) * cost.asking_seconds if merge.select else 0.0


def estimated(merge: Consolidation[Any]) -> Estimate:
    """Time two steps on real images, and measure the teachers side by side."""
    started = time.monotonic()
    batches, tried, broken = some_batches(merge, merge.looked_at, mixed=True)
    decoding = tried / (time.monotonic() - started)
    cost = cost_of(merge, batches[0])
    epochs = merge.schedule.epochs
    training = epochs / cost.seconds(1, epochs)
    rate = training if merge.held else min(training, decoding)
    asked = within(ASKING_SECONDS, (batch.to(pick_device()) for batch in batches))
    return Estimate(tried, broken, rate, cost, merge.measure_teachers(asked))


def checked(merge: Consolidation[Any]) -> Check:
    """Say what can be said before anything trains: time two steps on real images, write nothing."""
    estimate = estimated(merge)
    cost, selecting = estimate.cost, selecting_seconds(merge, estimate.cost)
    passes = merge.schedule.epochs
    images = passes * merge.trained_on
    return {
        "task": merge.student.pipeline_tag,
        "teachers": [
            {"name": s.name, "parameters": s.parameter_count, **s.settings} for s in merge.teachers.specialists
        ],
        "side_by_side": estimate.teachers,
        "student": {"parameters": merge.student.parameter_count, **merge.student.settings},
        "shared": list(merge.teachers.union.shared),
        "aux": {
            "name": merge.aux.name,
            "images": len(merge.aux),
            "size": merge.transform.size,
            "held_in_memory": merge.held,
            "tried": estimate.tried,
            "undecodable": len(estimate.undecodable),
            "first_undecodable": estimate.undecodable.first,
            "held_out": merge.held_out,
            "selected": merge.select,
        },
        "cost": {
            "teachers_gflops": round(cost.asking_flops / 1e9, 3),
            "student_gflops": round(cost.student_flops / 1e9, 3),
            "gflops_per_second": round(cost.flops_per_second / 1e9, 1),
            "total_gflops": round(cost.flops(merge.trained_on, passes) / 1e9),
            "image_bytes": merge.transform.bytes_per_image * (merge.trained_on + merge.held_out),
            "cache": merge.config.cache,
            "cache_bytes": cost.cache_bytes,
            "asking_epochs": cost.asking_passes(passes),
        },
        "estimate": {
            "epochs": passes,
            "images": images,
            "images_per_second": round(estimate.images_per_second, 1),
            "seconds": round(images / estimate.images_per_second + selecting),
        },
    }


def within(seconds: float, batches: Iterable[Batch]) -> Iterator[Batch]:
    """Give as many batches as there is time for, and at least one."""
    started = time.monotonic()
    for batch in batches:
        yield batch
        if time.monotonic() - started > seconds:
            return
