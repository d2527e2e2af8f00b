"""What a user's labeled data is for: which images to train on, and which to test on when that is done."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from dmc import evaluation
from dmc.classes import listed
from dmc.data.opening import open_labeled, open_with_held_out
from dmc.data.sources import Source, share_held_out
from dmc.detect import evaluation as of_detectors
from dmc.detect.annotations import Scenery, open_scenes
from dmc.detect.detector import Detector
from dmc.errors import DmcError
from dmc.specialist import Model, Specialist
from dmc.training.exam import Exam

log = logging.getLogger("dmc")
Place = str | Path | Source  # labeled data, or where it is
NOTHING = (None, "none")  # to test on
Names = Iterable[str] | None  # of the classes to keep; None: all


def images_and_exam(data: Place, val: Place | None, keep: Names) -> tuple[Source, Exam[Specialist]]:
    """For a classifier. `auto` tests on what lies beside the data, or on a share of it."""
    source, beside = open_with_held_out(data)
    if keep is not None:
        source = source.keep(keep)
    if val == "auto" and beside is None:
        source, held_out = share_held_out(source)
        return source, Exam(held_out, "accuracy", _accuracy)
    if val is None or val in NOTHING:
        return source, Exam(None, "accuracy", _accuracy)
    held_out = beside if beside and val == "auto" else open_labeled(val)
    shown = _shown_in(held_out, source, keep)
    return source, Exam(held_out if keep is None else held_out.keep(shown), "accuracy", _accuracy)


def scenes_and_exam(data: Place, val: Place | None, keep: Names) -> tuple[Scenery, Exam[Detector]]:
    """For a detector. `auto` tests on nothing, since most scenes show several classes."""
    source = open_scenes(data)
    if keep is not None:
        source = source.keep(keep)
    if val is None or val in (*NOTHING, "auto"):
        return source, Exam(None, "mAP", _precision)
    held_out = open_scenes(val)
    return source, Exam(held_out.keep(_shown_in(held_out, source, keep), empty=True), "mAP", _precision)


def _shown_in(held_out: Source, source: Source, keep: Names) -> list[str]:
    """The classes that are both learned and tested. Others to test are a mistake, unless they were not to be kept."""
    shown = [name for name in held_out.classes if name in source.classes]
    foreign = [name for name in held_out.classes if name not in source.classes]
    if not shown or (foreign and keep is None):
        raise DmcError(f"{held_out.name} has a class {foreign[0]!r}, {source.name} has not: test on what is learned")
    return shown


def _accuracy(model: Specialist, images: Source) -> str:
    found = evaluation.evaluate(model, images)
    return f"{found.accuracy:.1%} of {found.images:,} images"


def _precision(model: Detector, images: Source) -> str:
    found = of_detectors.evaluate(model, images)
    return f"{found.mean:.1%} on {found.images:,} images"


def require_news(old: Model, source: Source) -> None:
    """Say which classes are known already; refuse if that is all of them."""
    known = [name for name in source.classes if name in old.names]
    if len(known) == len(source.classes):
        raise DmcError(
            f"{old.name} knows {listed(known, 5)} already: there is nothing new to learn from {source.name}; train a "
            "model of its own (dmc train), and merge it (dmc consolidate, --rename where classes only share a name)"
        )
    if known:
        both = "they are taught by both models, whose mean is the target"
        log.warning("%s knows %d of the classes already (%s): %s", old.name, len(known), listed(known, 5), both)
