"""Match the classes of labeled data with those of a model, by name."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TypedDict

from dmc.classes import Classes, counted
from dmc.data.sources import Source
from dmc.errors import DmcError, nearest

log = logging.getLogger("dmc")


class ClassChoice(TypedDict, total=False):
    """Which classes of labeled data to look at, and under which names."""

    keep: Sequence[str] | None  # classes of the data to look at; None: all
    known: bool  # leave out the classes that the model does not know
    rename: Mapping[str, str] | None  # names of the data to the model's names, several to one if need be


def map_class_names(source: Source, classes: Classes, model: str, rename: Mapping[str, str]) -> dict[str, str]:
    """Map names of the data to the model's: those in `rename`, and those that the model has under another name."""
    asked = {source.classes[Classes.of(source.classes).require(old, source.name)]: new for old, new in rename.items()}
    found = {old: classes.names[classes.require(new, model)] for old, new in asked.items()}
    meant = {name: classes.meant_by(name) for name in source.classes if name not in (*asked, *classes.names)}
    alike = {name: classes.names[places[0]] for name, places in meant.items() if len(places) == 1}
    if alike:
        first = next(iter(alike))
        log.info(
            f"{model} has other names for {counted(list(alike))} of {source.name}, "
            f"such as {alike[first]!r} for {first!r}"
        )
    return found | alike


def known_names(source: Source, classes: Classes, model: str) -> list[str]:
    """Give the classes of the data that the model knows; refuse data of which it knows none."""
    found = [name for name in source.classes if name in classes.names]
    if not found:
        require_known_classes(source, classes, model, left_out=True)
    return found


def log_left_out(what: str, whole: Source, rest: Source, model: str) -> None:
    """Log which classes of the whole are not in the rest, since the model does not know them."""
    names = [name for name in whole.classes if name not in rest.classes]
    if names:
        log.info(f"{what} of {counted(names)} that {model} does not know are left out, such as {names[0]!r}")


def require_known_classes(source: Source, classes: Classes, model: str, left_out: bool = False) -> None:
    """Refuse data with classes that the model does not know, before any image is decoded.

    If these were to be `left_out`, nothing is left.
    """
    unknown = [name for name in source.classes if name not in classes.names]
    if unknown:
        first = ", ".join(f"{name!r}{nearest(name, classes.names, ' (', ')')}" for name in unknown[:5])
        raise DmcError(
            f"{model} does not know {len(unknown)} of the {len(source.classes)} classes in {source.name}: "
            f"{first}{', ...' if len(unknown) > 5 else ''}; {'' if left_out else 'known leaves them out, '}"
            "rename OLD=NEW gives one the name that the model has for it"
        )
