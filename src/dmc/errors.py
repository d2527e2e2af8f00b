"""Errors that a user can fix, each told in one line."""

from collections.abc import Iterable
from difflib import get_close_matches

NO_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "std::bad_alloc",
    "could not create a memory",
)


class DmcError(Exception):
    """An error that the user can fix: one line that names the culprit and says what to do.

    It names settings as Python has them, between backticks; the command line shows them as they are typed there.
    """


def require_known(what: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name that is not known; the error has the nearest one and lists all."""
    choices = list(known)
    if name not in choices:
        raise DmcError(f"unknown {what} {name!r}{nearest(name, choices)} (known: {', '.join(choices)})")


def first_line(error: Exception) -> str:
    """Give the first line of a foreign exception's message, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def reason_of(error: Exception) -> str:
    """Give what the system says of an `OSError`, without its number and path; of another error the first line."""
    return getattr(error, "strerror", None) or first_line(error)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception is Python's, torch's or a driver's word for too little memory."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(w in said for w in NO_MEMORY))


def nearest(name: str, known: Iterable[str], begin: str = "; ", end: str = "") -> str:
    """Give a hint to append to an error about an unknown name; it is empty if nothing is close."""
    plain = {choice.lower(): choice for choice in known}
    close = get_close_matches(name.lower(), plain, n=1)
    return f"{begin}did you mean {plain[close[0]]!r}?{end}" if close else ""
