"""Class names as data: which output of which model means what. Knows nothing of tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dmc.errors import DmcError, nearest


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
        """True when every output has a name and they stand in the model's own order."""
        return self.columns == tuple(range(self.width))

    def require(self, name: str, whose: str = "the model") -> int:
        """The position of `name`, or an error with the nearest known name."""
        try:
            return self.names.index(name)
        except ValueError:
            raise DmcError(f"{whose} has no class {name!r}{nearest(name, self.names)}") from None

    def keep(self, names: Iterable[str], whose: str = "the model") -> Classes:
        """Only these classes, in the order they already have."""
        wanted = set(names)
        for name in wanted - set(self.names):
            self.require(name, whose)
        positions = [i for i, name in enumerate(self.names) if name in wanted]
        return Classes(tuple(self.names[i] for i in positions), tuple(self.columns[i] for i in positions), self.width)

    def rename(self, new_names: Mapping[str, str]) -> Classes:
        """The same outputs under other names: `{"automobile": "car"}`."""
        for name in new_names:
            self.require(name)
        return Classes(tuple(new_names.get(name, name) for name in self.names), self.columns, self.width)


@dataclass(frozen=True)
class ClassUnion:
    """All classes of several models in order of first appearance; `columns[i]` places model i's classes."""

    names: tuple[str, ...]
    columns: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, parts: Sequence[Sequence[str]]) -> ClassUnion:
        names = tuple(dict.fromkeys(name for part in parts for name in part))
        place = {name: j for j, name in enumerate(names)}
        return cls(names, tuple(tuple(place[name] for name in part) for part in parts))

    @cached_property
    def teachers_per_class(self) -> tuple[int, ...]:
        counts = Counter(column for part in self.columns for column in part)
        return tuple(counts[j] for j in range(len(self.names)))

    @cached_property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """The classes, by who knows them: a block for each model, and one for each set of models that share some."""
        knowers = [tuple(i for i, part in enumerate(self.columns) if j in part) for j in range(len(self.names))]
        order = dict.fromkeys(knowers)
        return tuple(tuple(j for j, known_by in enumerate(knowers) if known_by == who) for who in order)

    @property
    def shared(self) -> tuple[str, ...]:
        """The classes that more than one model knows."""
        return tuple(name for name, n in zip(self.names, self.teachers_per_class, strict=True) if n > 1)


def distinct(names: Iterable[str]) -> tuple[str, ...]:
    """Public label lists repeat themselves (ImageNet has two cranes): the second becomes `crane (2)`."""
    seen: Counter[str] = Counter()
    result = []
    for name in names:
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return tuple(result)


def counted(names: Sequence[str]) -> str:
    """How many classes, in words. A detector may have one."""
    return f"{len(names)} class{'' if len(names) == 1 else 'es'}"


def read_names(path: Path) -> tuple[str, ...]:
    """A class list file: one name on each line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DmcError(f"cannot read the class list {path}: {error}") from None
    return tuple(line.strip() for line in text.splitlines() if line.strip())
