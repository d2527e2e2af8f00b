"""Parts of sources, and sources put together: samples, what is held out, unlabeled images, several as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Set
from itertools import islice

import numpy as np

from dmc.classes import ClassUnion
from dmc.data.sources import UNLABELED, Record, Source, permuted
from dmc.errors import DmcError

TESTED, ENOUGH_TO_TEST = 10, 20  # one image in so many is held out, where classes have so many on average


class Unlabeled(Source):
    """The images of another source without their classes."""

    def __init__(self, source: Source) -> None:
        self.name, self.source, self.steady = source.name, source, source.steady

    def __len__(self) -> int:
        return len(self.source)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        return (record._replace(label=UNLABELED) for record in self.source.records(seed))

    def names(self) -> Iterator[str]:
        return self.source.names()


class ListedImages(Source):
    """Some records of another source on their own: whoever holds it can reach nothing else."""

    def __init__(self, source: Source, records: Iterable[Record]) -> None:
        self.name, self.classes = source.name, source.classes
        self.listed = [_detached(record) for record in records]

    def __len__(self) -> int:
        return len(self.listed)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        yield from permuted(self.listed, seed)


def at_places(source: Source, places: Container[int]) -> ListedImages:
    """The records at some places of the stored order."""
    return ListedImages(source, (record for i, record in enumerate(source.records()) if i in places))


def sampled(source: Source, count: int) -> ListedImages:
    """A fair sample, always the same; a smaller one is a part of a larger one."""
    return at_places(source, frozenset(permuted(range(len(source)), seed=0)[:count]))


def every_nth(source: Source, every: int) -> tuple[frozenset[int], Counter[int]]:
    """The places of every so many-th image of each class, and how many images each class has."""
    seen: Counter[int] = Counter()
    places = set()
    for i, label in enumerate(source.labels()):
        seen[label] += 1
        if seen[label] % every == 0:
            places.add(i)
    return frozenset(places), seen


def held_out(source: Source, every: int) -> tuple[ListedImages, ListedImages]:
    """Most images for training, and every so many-th of each class for validation."""
    places, seen = every_nth(source, every)
    for label, name in enumerate(source.classes):
        if seen[label] < every:
            raise DmcError(
                f"{source.name} has {seen[label]} images of class {name!r}; one in {every} is held out to test on"
            )
    return at_places(source, frozenset(range(len(source))) - places), at_places(source, places)


class Without(Source):
    """All images of another source but those with these names."""

    def __init__(self, source: Source, left_out: frozenset[str]) -> None:
        self.name, self.source, self.left_out, self.classes = source.name, source, left_out, source.classes

    def __len__(self) -> int:
        return len(self.source) - len(self.left_out)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        return (record for record in self.source.records(seed) if record.name not in self.left_out)

    def names(self) -> Iterator[str]:
        return (name for name in self.source.names() if name not in self.left_out)


def split_off(source: Source, count: int, seed: int) -> tuple[ListedImages, Without]:
    """A mixed sample on its own, and the rest. No more of a stream is read than mixing it takes."""
    source = source.in_lasting_names()
    taken = ListedImages(source, records=islice(source.records(seed), count))
    return taken, Without(source, frozenset(record.name for record in taken.records()))


def share_held_out(source: Source) -> tuple[Source, Source | None]:
    """The same where there are images enough, and otherwise all for training. Nothing is read, and a class that has
    few images is not tested."""
    if len(source) < ENOUGH_TO_TEST * len(source.classes):
        return source, None
    places, _ = every_nth(source, TESTED)
    rest = frozenset(range(len(source))) - places
    return source.at(rest, source.name), source.at(places, f"every {TESTED}th image of {source.name}")


class JoinedImages(Source):
    """Sources put together, all labeled or all not; classes are matched by name, in order of first appearance."""

    def __init__(self, *sources: Source, name: str | None = None) -> None:
        self.name, self.sources = name or " + ".join(s.name for s in sources), sources
        self.steady = all(s.steady for s in sources)
        self.numbered = len({s.name for s in sources}) < len(sources)  # two arrays would name their images alike
        union = ClassUnion.of([s.classes for s in sources])
        self.classes, self.new_labels = union.names, union.columns

    def __len__(self) -> int:
        return sum(map(len, self.sources))

    def records(self, seed: int | None = None) -> Iterator[Record]:
        readers = [source.records(seed) for source in self.sources]
        for i in permuted([i for i, source in enumerate(self.sources) for _ in range(len(source))], seed):
            record = next(readers[i])
            label = self.new_labels[i][record.label] if self.classes else UNLABELED
            yield record._replace(label=label, name=f"{i + 1}: {record.name}" if self.numbered else record.name)

    def at(self, places: Set[int], name: str) -> Source:
        """Of each source its own part, so that they stay well mixed."""
        parts, start = [], 0
        for source in self.sources:
            own = {i for i in range(len(source)) if start + i in places}
            parts.append(source.at(own, source.name))
            start += len(source)
        return JoinedImages(*parts, name=name)


def _detached(record: Record) -> Record:
    """A numpy row keeps the whole array alive behind it; a copy does not."""
    return record._replace(image=record.image.copy()) if isinstance(record.image, np.ndarray) else record
