"""Teach a model new classes: a specialist of them is trained on labels, then merged with what was there before."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dmc.classes import listed
from dmc.config import LearnConfig, Length, RunConfig
from dmc.consolidation import Joining
from dmc.data.auxiliary import Images
from dmc.data.open import each_of, refuse_overlap, require_outside
from dmc.data.sources import Source
from dmc.errors import DmcError
from dmc.files import require_own
from dmc.jobs import LabeledTraining, Merge
from dmc.models.load import load, load_saved
from dmc.models.model import Model
from dmc.processes import is_main
from dmc.tasks import task_of
from dmc.tasks.base import Place

log = logging.getLogger("dmc")
KEPT = "specialists"  # in the merged model's folder; the models in it are numbered by lesson


def learned(
    model: Model | str | Path,
    data: Place,
    aux: Images,
    out: str | Path | None,
    keep: Iterable[str] | None,
    val: Place | None,
    how: RunConfig,
    settings: Mapping[str, Any],
) -> Model:
    """Train the specialist and merge: the work of `dmc.learn`, whose arguments these are."""
    own, rest = LearnConfig.taken_from(settings)
    own.require_sense(Length.taken_from(rest)[0], out)
    old = load(model)
    task = task_of([old])
    if rest.get("recipe") == "best":
        own = own.changed({k: v for k, v in task.consolidate_config.best_lesson.items() if getattr(own, k) is None})
    source, held_out = task.open_labeled(data, val, keep)
    require_news(old, source)
    if out is not None and is_main():
        require_own(Path(out), how.resume)
        require_outside(Path(out), data, val, aux)
    before = kept_beside(old) if own.keep_specialists else [old]
    merge = Merge.chosen([old], aux, out, how, rest, share=0.5)
    if merge.config.cache is not None:
        require_outside(Path(merge.config.cache), data, val)
    new = task.untrained(source, merge.network, merge.alike(old), old.output, merge.config.seed)
    joining = Joining(source, own.use_labels) if own.use_new or own.use_labels else None
    if joining is not None:
        refuse_overlap([data, *each_of(aux)])
    if merge.config.from_teacher and before != [old]:
        raise DmcError(
            f"{old.name} is merged anew from the specialists that were kept, and begins as none of them: choose "
            "`from_teacher=False`, or go without `keep_specialists`"
        )
    # What fails, fails before days of training.
    planned = merge.timed(merge.with_teachers([*before, new], joining), trained=len(before))

    begins_as = old if own.from_old else None
    network = replace(merge.network, begins_as=f"{old.name}'s" if begins_as else "")
    what, length = f"specialist: {network}", _for_specialist(merge.length, own)
    training = LabeledTraining(task, source, held_out, merge.network, length, merge.config, what, begins_as)
    new = training.run(new, Path(out) / "specialist" if out is not None else None, how)

    merging = merge.with_teachers([*before, new], joining, planned.schedule)
    tested = {key: line for key, line in new.provenance.items() if key.startswith("held-out")}
    notes = {f"{key} of the new classes' own model": line for key, line in tested.items()}
    taught: Model = merging.run(out, how, f"dmc learn, new classes from {source.name}", notes)
    if own.keep_specialists and out is not None and is_main():
        for lesson, specialist in enumerate([*before, new], start=1):
            _keep(specialist, Path(out) / KEPT / str(lesson))
    return taught


def _for_specialist(length: Length, own: LearnConfig) -> Length:
    """Give the specialist its own epochs or schedule; the other changes hold for both trainings."""
    changes = {key: value for key, value in length.changes.items() if key != "epochs"}
    changes |= {} if own.specialist_epochs is None else {"epochs": own.specialist_epochs}
    return length.changed({"schedule": own.specialist_schedule, "changes": changes})


def require_news(old: Model, source: Source) -> None:
    """Warn about classes of the data that the old model already knows; refuse if it knows them all."""
    known = [name for name in source.classes if name in old.names]
    if len(known) == len(source.classes):
        raise DmcError(
            f"{old.name} knows {listed(known, 5)} already: there is nothing new to learn from {source.name}; to merge "
            "anyway, train a model on it and consolidate the two; if classes only share a name, rename one"
        )
    if known:
        both = "both models teach them, and the target is the mean of the two"
        log.warning("%s knows %d of the classes already (%s): %s", old.name, len(known), listed(known, 5), both)


def kept_beside(model: Model) -> list[Any]:
    """Load the specialists that are kept in the model's folder; without any, give the model itself.

    Of each, take the classes that the model still has: some may have been left out of it since. Refuse a specialist
    that could not be kept again.
    """
    places = sorted(Path(model.name, KEPT).glob("[0-9]*"), key=lambda place: place.name.zfill(9))
    try:
        saved = [load_saved(place, [model.arch] if model.arch else []) for place in places]
    except DmcError as error:
        raise DmcError(f"{error}; or go without `keep_specialists`") from None
    common = [[name for name in one.names if name in model.names] for one in saved]
    specialists = [one.keep(names) for one, names in zip(saved, common, strict=True) if names]
    known = {name for specialist in specialists for name in specialist.names}
    unknown = [name for name in model.names if name not in known]
    if specialists and unknown:
        raise DmcError(
            f"{Path(model.name, KEPT)} does not hold all that {model.name} was merged from: no model there knows "
            f"{listed(unknown, 5)}; to merge with {model.name} itself, go without `keep_specialists`"
        )
    unsaveable = [one.name for one in specialists or [model] if one.arch is None]
    if unsaveable:
        raise DmcError(f"{unsaveable[0]} cannot be saved beside the result: go without `keep_specialists`")
    return specialists or [model]


def _keep(specialist: Model, place: Path) -> None:
    """Save a specialist, unless it is there."""
    if not (place / "config.json").exists():  # which completes a saved model
        specialist.save(place)
