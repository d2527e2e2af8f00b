"""A path with settings, given as one text: `PATH,key=value,...`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dmc.errors import DmcError, nearest


def split_spec(spec: str, known: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Split `PATH,key=value,...` into path and settings. A text that is an existing path has no settings."""
    if not spec.strip():  # an empty path would be the current folder
        raise DmcError("the path is empty; is a variable unset?")
    if Path(spec).exists():
        return spec, {}
    path, *pairs = spec.split(",")
    options = dict(pair.partition("=")[::2] for pair in pairs)
    for key in options:
        if key not in known:
            raise DmcError(f"unknown setting {key!r} in {spec!r}: known are {', '.join(known)}{nearest(key, known)}")
    return path, options


def refuse(spec: str, options: Mapping[str, str], foreign: Sequence[str], what: str) -> None:
    """Refuse settings that `what` does not have: they would be ignored, so they are a mistake."""
    for key in foreign:
        if key in options:
            raise DmcError(f"{spec}: {key!r} is not a setting of {what}")
