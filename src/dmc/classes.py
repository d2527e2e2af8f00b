"""Class names as data: which output of which model means what. Knows nothing of tensors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dmc.errors import DmcError, nearest
from dmc.files import read_text
from dmc.text import one_line

WORDNET_ID = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class Classes:
    """The names a model answers with, and the model output (column) that each one reads.

    A subset leaves columns out; the model itself is untouched and keeps its `width` outputs.
    """

    names: tuple[str, ...]
    columns: tuple[int, ...]
    width: int

    @classmethod
    def of(cls, names: Iterable[str]) -> Classes:
        """Name every output of a model, in order."""
        names = tuple(map(str, names))
        return cls(names, tuple(range(len(names))), len(names))

    def __post_init__(self) -> None:
        if not self.names:
            raise DmcError("a model needs at least one class name")
        twice = [name for name, count in Counter(self.names).items() if count > 1]
        if twice:
            raise DmcError(f"class {twice[0]!r} is named twice in one model: class names must be distinct")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def whole(self) -> bool:
        """Whether every output has a name, and the names are in the order of the outputs."""
        return self.columns == tuple(range(self.width))

    def meant_by(self, name: str) -> list[int]:
        """Find the positions of the classes that a typed name may mean.

        The class of exactly that name comes first. Next, ignoring case, come classes with that name or that synonym:
        `tabby` is 'tabby, tabby cat'. Last comes the ImageNet class with that WordNet id.
        """
        if name in self.names:
            return [self.names.index(name)]
        found = self._meanings.get(_synonyms(name), [])
        if not found and WORDNET_ID.fullmatch(name):
            from dmc.imagenet import name_of  # its import of timm takes seconds

            found = [i for i, known in enumerate(self.names) if known == name_of(name)]
        return found

    @cached_property
    def _meanings(self) -> dict[tuple[str, ...], list[int]]:
        meanings: dict[tuple[str, ...], list[int]] = {}
        for i, name in enumerate(self.names):
            synonyms = _synonyms(name)
            for text in {synonyms, *((synonym,) for synonym in synonyms)}:
                meanings.setdefault(text, []).append(i)
        return meanings

    def require(self, name: str, whose: str = "the model") -> int:
        """Give the position of the one class that a typed name means; refuse an unknown or ambiguous name."""
        found = self.meant_by(name)
        if not found:
            raise DmcError(f"{whose} has no class {name!r}{nearest(name, self.names)}")
        if len(found) > 1:
            several = " or ".join(repr(self.names[i]) for i in found)
            raise DmcError(f"{whose} has {len(found)} classes that {name!r} may mean: {several}; write the whole name")
        return found[0]

    def listed(self, text: str, whose: str = "the model") -> list[int]:
        """Give the positions of classes in a comma-separated list. Names may hold commas: the longest match counts."""
        if text in self.names:
            return [self.names.index(text)]
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not parts:
            raise DmcError(f"{text!r} names no class; {whose} knows {listed(self.names)}")
        most = 1 + max(name.count(",") for name in self.names)
        found = []
        while parts:
            lengths = range(min(most, len(parts)), 1, -1)
            length = next((n for n in lengths if self.meant_by(", ".join(parts[:n]))), 1)
            found.append(self.require(", ".join(parts[:length]), whose))
            parts = parts[length:]
        return found

    def keep(self, names: Iterable[str], whose: str = "the model") -> Classes:
        """Keep only these classes, in their present order; each text is one name, or several separated by commas."""
        positions = sorted({i for text in names for i in self.listed(text, whose)})
        return Classes(tuple(self.names[i] for i in positions), tuple(self.columns[i] for i in positions), self.width)

    def rename(self, new_names: Mapping[str, str], whose: str = "the model") -> Classes:
        """Give the same outputs other names: `{"automobile": "car"}`."""
        return Classes(self.renamed(new_names, whose), self.columns, self.width)

    def renamed(self, new_names: Mapping[str, str], whose: str) -> tuple[str, ...]:
        """Give the class names after renaming. For data, unlike for models, two classes may get the same name."""
        names = list(self.names)
        for old, new in new_names.items():
            if not new.strip():
                raise DmcError(f"the new name of class {old!r} of {whose} is empty: give it one")
            names[self.require(old, whose)] = new
        return tuple(names)


@dataclass(frozen=True)
class ClassUnion:
    """All classes of several models in order of first appearance; `columns[i]`: the positions of model i's classes."""

    names: tuple[str, ...]
    columns: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, parts: Sequence[Sequence[str]]) -> ClassUnion:
        """Unite the class names of several models."""
        names = tuple(dict.fromkeys(name for part in parts for name in part))
        place = {name: j for j, name in enumerate(names)}
        return cls(names, tuple(tuple(place[name] for name in part) for part in parts))

    @cached_property
    def teachers_per_class(self) -> tuple[int, ...]:
        """The number of models that know each class."""
        counts = Counter(column for part in self.columns for column in part)
        return tuple(counts[j] for j in range(len(self.names)))

    @cached_property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """The positions of the classes, in one block for each set of models that know the same classes."""
        knowers = [tuple(i for i, part in enumerate(self.columns) if j in part) for j in range(len(self.names))]
        order = dict.fromkeys(knowers)
        return tuple(tuple(j for j, known_by in enumerate(knowers) if known_by == who) for who in order)

    @property
    def shared(self) -> tuple[str, ...]:
        """The classes that more than one model knows."""
        return tuple(name for name, n in zip(self.names, self.teachers_per_class, strict=True) if n > 1)


def _synonyms(name: str) -> tuple[str, ...]:
    """Split a name at its commas, in lower case: whoever types it need not care for upper case."""
    return tuple(part.strip().lower() for part in name.split(","))


def counted(names: Sequence[str]) -> str:
    """Say how many classes there are: `10 classes`, or `1 class`, which a detector may have."""
    return f"{len(names)} class{'' if len(names) == 1 else 'es'}"


def listed(names: Sequence[str], most: int = 12) -> str:
    """Join names for a message: at most `most` of them, and how many more there are."""
    rest = len(names) - most
    return "; ".join(map(one_line, names[:most])) + (f"; ... and {rest} more" if rest > 0 else "")


def read_names(path: Path) -> tuple[str, ...]:
    """Read a class list from a file with one name on each line."""
    text = read_text(path).removeprefix("\ufeff")  # the byte order mark that some editors write
    return tuple(line.strip() for line in text.splitlines() if line.strip())
