"""What goes wrong for a user, said in one line."""

from collections.abc import Iterable
from difflib import get_close_matches


class DmcError(Exception):
    """A mistake the user can mend: one line that names the culprit and says what to do."""


def require_one_of(what: str, value: object, known: Iterable[str]) -> None:
    """Python callers can pass anything; a misspelt setting must not silently mean another one."""
    choices = list(known)
    if value not in choices:
        raise DmcError(f"{what} {value!r} is none of {', '.join(choices)}{nearest(str(value), choices)}")


def require_known(what: str, name: str, known: Iterable[str]) -> None:
    """A name that a user typed."""
    choices = list(known)
    if name not in choices:
        raise DmcError(f"unknown {what} {name!r}{nearest(name, choices)} (known: {', '.join(choices)})")


def first_line(error: Exception) -> str:
    """What a foreign exception says, fit for a one-line message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def nearest(name: str, known: Iterable[str], begin: str = "; ", end: str = "") -> str:
    """A hint to append to an error about an unknown name; empty when nothing is close."""
    plain = {choice.lower(): choice for choice in known}
    close = get_close_matches(name.lower(), plain, n=1)
    return f"{begin}did you mean {plain[close[0]]!r}?{end}" if close else ""
