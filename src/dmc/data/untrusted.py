"""What the data files of strangers may do: which files they name, how much they unpack to, how they call classes."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dmc.errors import DmcError

MOST_ENCODED = 2**28  # bytes of an image as it is stored, in a file or in an archive
MOST_SHRUNK = 100  # times that what holds images is smaller when it is packed: blank images shrink most
UNSPEAKABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})  # Unicode's controls, line breaks, and bytes that are not UTF-8


@dataclass(frozen=True)
class Refused:
    """Stands in for an image that is not opened; it is counted among those that cannot be read."""

    reason: str


class Below:
    """A folder, and the files below it that a data file may name: no `..`, no link and no URL leads out of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.real = folder, folder.resolve()

    def __call__(self, name: str) -> Path | Refused:
        """Give the place of the image of this name, which need not exist."""
        path = self.folder / name
        try:
            inside = "://" not in name and path.resolve().is_relative_to(self.real)
        except (OSError, ValueError, RuntimeError):  # a null byte, or links in a circle
            inside = False
        return path if inside else Refused(f"{name[:200]!r} is not a file below {self.folder}")


def require_plausible(path: Path, unpacked: int) -> None:
    """Refuse a compressed file that unpacks to so many bytes that they cannot be images."""
    if unpacked > MOST_ENCODED and unpacked > MOST_SHRUNK * path.stat().st_size:
        raise DmcError(f"cannot read {path}: it unpacks to more than {MOST_SHRUNK} times its size, as no images do")


def require_class_names(names: Sequence[object], whose: str) -> tuple[str, ...]:
    """Give class names back if all are texts of printable characters, each once."""
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise DmcError(f"{whose}: a class is named {name!r}; a name is a text that is not blank")
        if any(unicodedata.category(character) in UNSPEAKABLE for character in name):
            raise DmcError(f"{whose}: the class name {name!r} has control characters or is not UTF-8; rename it")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DmcError(f"{whose}: the class {twice[0]!r} is named twice; class names must be distinct")
    return tuple(map(str, names))
