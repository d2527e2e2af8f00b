"""Things given as text: `PATH,key=value,...`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dmc.errors import DmcError, nearest


def split_spec(spec: str, known: Sequence[str]) -> tuple[str, dict[str, str]]:
    """`PATH,key=value,...` to its parts. A path that exists as it stands has no options."""
    if not spec.strip():  # which would be the current folder
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
    """Settings that would be ignored are mistakes."""
    for key in foreign:
        if key in options:
            raise DmcError(f"{spec}: {key!r} is not a setting of {what}")
