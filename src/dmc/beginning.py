"""Begin a student with what its teachers have learned. Not in the paper, whose students begin anew."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from statistics import fmean

import torch

from dmc.data.batch import Batch
from dmc.data.loader import ImageLoader
from dmc.data.preprocess import Preprocessing
from dmc.device import pick_device
from dmc.errors import DmcError
from dmc.models.model import AnyModel
from dmc.processes import together
from dmc.schedule import Schedule
from dmc.training.objective import Objective

log = logging.getLogger("dmc")
IMAGES, AT_ONCE = 512, 32  # that beginnings are compared on, and in a batch
# The first teacher makes no error on its own classes, which flatters it. Measured (results/best-detectors.md): 0.6 and
# 1.02 times its loss for teachers that grew from the same weights, 1.4 and more for others.
NEARLY = 1.2


def gently(schedule: Schedule) -> Schedule:
    """Halve the rate for a model that begins with what another knows: the first steps should not shake it off."""
    return schedule.changed({"lr": schedule.lr / 2})


def as_first(teacher: AnyModel, names: Sequence[str], arch: str, preprocessing: Preprocessing, seed: int) -> AnyModel:
    """Copy the first teacher, with outputs for all classes; refuse another architecture or preprocessing."""
    if (teacher.arch, teacher.preprocessing) != (arch, preprocessing) or not teacher.classes.whole:
        raise DmcError(
            f"a student that begins as its first teacher ({teacher.name}) has its architecture, its size, and all of "
            "its classes: choose these, or let it begin anew (`from_teacher=False`)"
        )
    return teacher.widened(names[len(teacher.names) :], seed)


def as_mean_if_near(student: AnyModel, teachers: Sequence[AnyModel], objective: Objective, images: ImageLoader) -> bool:
    """Let a student that begins as the first teacher begin as the mean of all; tell whether it does.

    The mean of teachers that grew from the same weights knows something of all their classes. That of others knows
    nothing, since each computes the same in other places. Their answers to some images tell which it is.
    """
    shape = (student.arch, student.preprocessing)
    alike = [one for one in teachers if (one.arch, one.preprocessing) == shape and one.classes.whole]
    if len(alike) < 2:
        return False
    device, mean = pick_device(), student.as_mean_of(alike)
    some = [batch.to(device) for batch in first_of(images)]
    losses = []
    for model in (student, mean):
        module = model.to(device).module.eval()
        with torch.no_grad():
            each = [float(objective.losses(module, batch)["loss"]) for batch in some]
        losses.append(fmean(each, [len(batch) for batch in some]))
    objective.require_sound()
    near = together().agreed(losses[1] < NEARLY * losses[0])
    if near:
        student.module.load_state_dict(mean.module.state_dict())
        log.info("the student begins as the mean of its teachers, which answers much as they do")
    return near


def first_of(images: ImageLoader) -> Iterator[Batch]:
    """Give the first images in batches, of which some are small: images of another shape begin a new one."""
    seen = 0
    for batch in images.in_order(AT_ONCE):
        yield batch
        seen += len(batch)
        if seen >= IMAGES:
            return
