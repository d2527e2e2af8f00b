"""What a source of images is: undecoded records that can be read again and again, in part, or with classes renamed.

Decoding comes later, in `decode.py`, so that skipping ahead in a stream costs reading and nothing more. The sources
that read files are in `readers.py` and `tables.py`.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from dmc.classes import Classes, ClassUnion
from dmc.data.untrusted import Refused
from dmc.errors import DmcError

SHUFFLE_BUFFER = 2048  # undecoded records that are held at once to shuffle a stream
SHUFFLE_BYTES = 256 * 2**20  # and the memory that they may take together
UNLABELED = -1
T = TypeVar("T")
if TYPE_CHECKING:
    from PIL.Image import Image


class Record(NamedTuple):
    """One image as it is stored: encoded bytes, a file, pixels (HW or HWC, uint8), a user's PIL image, or refused."""

    image: bytes | Path | npt.NDArray[np.uint8] | Image | Refused
    label: int
    name: str
    annotation: Any = None  # its annotation, in the form of its kind of model: `Objects` for detectors
    annotated_size: tuple[int, int] | None = None  # width and height that the annotation was made for
    part: tuple[int, int, int, int] | None = None  # left, top, right, bottom of the part to look at; None: all of it


class Source(ABC):
    """A countable set of images that can be read again and again, in an order given by a seed."""

    name: str
    classes: tuple[str, ...] = ()  # empty where the images carry no labels
    stable_names = True  # whether an image has the same name in whatever order the images come

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def records(self, seed: int | None = None) -> Iterator[Record]:
        """Give all records: in stored order without a seed, well mixed with one."""

    def labels(self) -> Iterator[int]:
        """Give the label of each image, in stored order."""
        return (record.label for record in self.records())

    def names(self) -> Iterator[str]:
        """Give the name of each image, in stored order."""
        return (record.name for record in self.records())

    def keep(self, names: Iterable[str]) -> Source:
        """Give the images of these classes only."""
        return ClassSubset(self, names)

    def rename(self, new_names: Mapping[str, str]) -> Source:
        """Give the same images under other class names; classes that get the same name become one."""
        return Renamed(self, new_names) if new_names else self

    def at(self, places: Set[int], name: str) -> Source:
        """Give only the images at these positions of the stored order, read when they are wanted."""
        return Subset(self.with_stable_names(), places, name)

    def with_stable_names(self) -> Source:
        """Give the same images, under names that do not depend on the order in which they are read."""
        return self if self.stable_names else InStoredOrder(self)


class ClassSubset(Source):
    """The images of some classes of a labeled source."""

    def __init__(self, source: Source, names: Iterable[str]) -> None:
        kept = Classes.of(source.classes).keep(names, source.name)
        self.name, self.source, self.classes = source.name, source, kept.names
        self.stable_names = source.stable_names
        self.new_label = {old: new for new, old in enumerate(kept.columns)}
        images_of = Counter(source.labels())
        for old, new in self.new_label.items():
            if not images_of[old]:
                raise DmcError(f"{source.name} has no image of class {self.classes[new]!r}")
        self.length = sum(images_of[old] for old in self.new_label)

    def __len__(self) -> int:
        return self.length

    def records(self, seed: int | None = None) -> Iterator[Record]:
        for record in self.source.records(seed):
            if record.label in self.new_label:
                yield record._replace(label=self.new_label[record.label])

    def labels(self) -> Iterator[int]:
        return (self.new_label[label] for label in self.source.labels() if label in self.new_label)

    def names(self) -> Iterator[str]:
        both = zip(self.source.names(), self.source.labels(), strict=True)
        return (name for name, label in both if label in self.new_label)


class Subset(Source):
    """Some images of another source. Only their names are held in memory."""

    def __init__(self, source: Source, places: Set[int], name: str) -> None:
        self.name, self.source, self.classes = name, source, source.classes
        self.chosen = frozenset(called for i, called in enumerate(source.names()) if i in places)
        if len(self.chosen) < len(places):
            raise DmcError(f"images of {source.name} have the same name, so a part of them cannot be chosen")

    def __len__(self) -> int:
        return len(self.chosen)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        left = set(self.chosen)  # an image that was not chosen may have the same name
        for record in self.source.records(seed):
            if record.name in left:
                left.remove(record.name)
                yield record

    def names(self) -> Iterator[str]:
        return (name for name in self.source.names() if name in self.chosen)


class InStoredOrder(Source):
    """A source whose names last only in stored order, read in that order and shuffled through a buffer."""

    def __init__(self, source: Source) -> None:
        self.name, self.source, self.classes = source.name, source, source.classes

    def __len__(self) -> int:
        return len(self.source)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        yield from buffer_shuffled(self.source.records(), seed)

    def names(self) -> Iterator[str]:
        return self.source.names()


class Renamed(Source):
    """The images of a labeled source under other class names."""

    def __init__(self, source: Source, new_names: Mapping[str, str]) -> None:
        union = ClassUnion.of([Classes.of(source.classes).renamed(new_names, source.name)])
        self.name, self.source, self.classes, self.new_label = source.name, source, union.names, union.columns[0]
        self.stable_names = source.stable_names

    def __len__(self) -> int:
        return len(self.source)

    def labels(self) -> Iterator[int]:
        return (self.new_label[label] for label in self.source.labels())

    def records(self, seed: int | None = None) -> Iterator[Record]:
        return (record._replace(label=self.new_label[record.label]) for record in self.source.records(seed))

    def names(self) -> Iterator[str]:
        return self.source.names()


def permuted(items: Sequence[T], seed: int | None) -> Sequence[T]:
    """Shuffle items; without a seed, give them as they are."""
    return items if seed is None else random.Random(seed).sample(items, len(items))


def buffer_shuffled(records: Iterable[Record], seed: int | None) -> Iterator[Record]:
    """Shuffle a stream nearly at random, holding a bounded number of records and bytes; without a seed, not at all."""
    if seed is None:
        yield from records
        return
    draw = random.Random(seed)
    buffer: list[Record] = []
    held = 0
    for record in records:
        buffer.append(record)
        held += _bytes_held(record)
        while len(buffer) > SHUFFLE_BUFFER or (held > SHUFFLE_BYTES and len(buffer) > 1):
            i = draw.randrange(len(buffer))
            buffer[i], buffer[-1] = buffer[-1], buffer[i]
            held -= _bytes_held(buffer[-1])
            yield buffer.pop()
    draw.shuffle(buffer)
    yield from buffer


def _bytes_held(record: Record) -> int:
    """Give the size of a record's encoded image; a file is not read yet, and pixels are in memory anyway."""
    return len(record.image) if isinstance(record.image, bytes) else 0
