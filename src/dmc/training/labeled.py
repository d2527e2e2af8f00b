"""Train a model of any kind on labeled images, in a run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from dmc.config import RunConfig
from dmc.cost import Cost
from dmc.data.decode import DecodeError, decoded
from dmc.data.loader import MEMORY, fits, open_loader
from dmc.data.sources import Source
from dmc.device import pick_device
from dmc.errors import DmcError
from dmc.models.model import AnyModel, Model
from dmc.precision import settled
from dmc.schedule import Schedule
from dmc.training.held_out import HeldOut
from dmc.training.loop import fit, require_trainable, step_cost
from dmc.training.objective import Objective
from dmc.training.run_folder import Run, versions


def fit_labeled(
    model: AnyModel,
    source: Source,
    objective: Objective,
    schedule: Schedule,
    *,
    seed: int = 0,
    memory: int = MEMORY,
    workers: int | None = None,
    out: str | Path | None = None,
    how: RunConfig = RunConfig(),  # noqa: B008 (frozen)
    settings: Mapping[str, Any] | None = None,
    held_out: HeldOut[AnyModel] | None = None,
) -> AnyModel:
    """Train a model, as it is, on labels of some or all of its classes; or read what the folder's run has finished.

    `settings` are what makes the objective: a resumed run must have the same. `memory` is in bytes of pixels; `workers`
    are threads that decode what does not fit.
    """
    schedule = settled(schedule)
    config = {
        "command": "train",
        "task": {"name": objective.name, **(settings or {})},
        "data": {"name": source.name, "images": len(source), "classes": list(source.classes)},
        **(held_out.config if held_out else {}),
        "held": fits(len(source), model.transform, memory),
        "model": model.settings | {"fingerprint": model.fingerprint},
        "schedule": schedule.model_dump(),
        "seed": seed,
        "versions": versions(),
    }
    with Run(out, config, how) as run:
        if run.finished:
            run.recall(objective.notes())
            return run.result(model)
        loader = open_loader(source, model.transform, memory, workers)
        if held_out:
            held_out.begin(source, loader.count)
        require_trainable(model.module, objective, loader, schedule)
        at = fit(model.module, objective, loader, schedule, run, seed, "training")
        model.provenance = {
            "made by": "dmc train",
            "data": f"{source.name} ({loader.count} images, {len(loader.skipped)} skipped)",
            "training": f"{schedule.length}, {at.images} images seen, seed {seed}, {schedule.precision}",
            **(held_out.result(model) if held_out else {}),
        }
        return run.finish(model)


def training_cost(objective: Objective, model: Model, source: Source, schedule: Schedule) -> Cost:
    """Measure what a training costs, on one batch of its images."""
    tried = decoded(source.records(seed=0), model.transform)
    images = ((record, image) for record, image in tried if not isinstance(image, DecodeError))
    framed = list(islice(images, schedule.batch_size))
    if not framed:
        raise DmcError(f"no image in {source.name} can be decoded")
    model.to(pick_device())
    batch = model.transform.batch(framed).to(pick_device())
    return Cost(*step_cost(model.module, objective, batch, settled(schedule).precision))
