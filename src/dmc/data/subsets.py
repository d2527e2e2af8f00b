"""Sources made of other sources: samples, held-out parts, images without their labels, several sources as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Set
from itertools import islice

import numpy as np

from dmc.classes import ClassUnion
from dmc.data.sources import UNLABELED, Record, Source, permuted
from dmc.errors import DmcError
from dmc.seeds import seed_for

TESTED, ENOUGH_TO_TEST = 10, 20  # every 10th image is held out, if classes have 20 or more on average


class Unlabeled(Source):
    """The images of another source without their labels; with `annotations`, what is marked in them stays."""

    def __init__(self, source: Source, annotations: bool = False) -> None:
        self.name, self.source, self.stable_names = source.name, source, source.stable_names
        self.annotations = annotations

    def __len__(self) -> int:
        return len(self.source)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        for record in self.source.records(seed):
            bare = record if self.annotations else record._replace(annotation=None, annotated_size=None)
            yield bare._replace(label=UNLABELED)

    def names(self) -> Iterator[str]:
        return self.source.names()


class Repeated(Source):
    """The images of another source several times, in another order each time."""

    def __init__(self, source: Source, times: int) -> None:
        self.name, self.classes, self.stable_names = source.name, source.classes, source.stable_names
        self.source, self.times = source, times

    def __len__(self) -> int:
        return self.times * len(self.source)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        for i in range(self.times):
            yield from self.source.records(None if seed is None else seed_for(seed, "time", i))


class ListedImages(Source):
    """Some records of another source as a list, through which no other record can be reached."""

    def __init__(self, source: Source, records: Iterable[Record]) -> None:
        self.name, self.classes = source.name, source.classes
        self.listed = [_detached(record) for record in records]

    def __len__(self) -> int:
        return len(self.listed)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        yield from permuted(self.listed, seed)


def listed_subset(source: Source, places: Container[int]) -> ListedImages:
    """List the records at some positions of the stored order."""
    return ListedImages(source, (record for i, record in enumerate(source.records()) if i in places))


def sampled(source: Source, count: int) -> ListedImages:
    """List a random sample, always the same one; a smaller sample is a part of a larger one."""
    return listed_subset(source, frozenset(permuted(range(len(source)), seed=0)[:count]))


def every_nth(source: Source, every: int) -> tuple[frozenset[int], Counter[int]]:
    """Give the positions of every `every`-th image of each class, and the number of images of each class."""
    seen: Counter[int] = Counter()
    places = set()
    for i, label in enumerate(source.labels()):
        seen[label] += 1
        if seen[label] % every == 0:
            places.add(i)
    return frozenset(places), seen


def held_out(source: Source, every: int) -> tuple[ListedImages, ListedImages]:
    """Split labeled images into two: most for training, and every `every`-th of each class to test on."""
    places, seen = every_nth(source, every)
    for label, name in enumerate(source.classes):
        if seen[label] < every:
            raise DmcError(
                f"{source.name} has {seen[label]} images of class {name!r}; one in {every} is held out to test on"
            )
    return listed_subset(source, frozenset(range(len(source))) - places), listed_subset(source, places)


class Excluding(Source):
    """All images of another source but those with some names."""

    def __init__(self, source: Source, left_out: frozenset[str]) -> None:
        self.name, self.source, self.left_out, self.classes = source.name, source, left_out, source.classes

    def __len__(self) -> int:
        return len(self.source) - len(self.left_out)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        return (record for record in self.source.records(seed) if record.name not in self.left_out)

    def names(self) -> Iterator[str]:
        return (name for name in self.source.names() if name not in self.left_out)


def split_off(source: Source, count: int, seed: int) -> tuple[ListedImages, Excluding]:
    """Split off a random sample, and give it and the rest. Of a stream, no more is read than shuffling needs."""
    source = source.with_stable_names()
    taken = ListedImages(source, records=islice(source.records(seed), count))
    return taken, Excluding(source, frozenset(record.name for record in taken.records()))


def share_held_out(source: Source) -> tuple[Source, Source | None]:
    """Hold out every 10th image of each class to test on; if images are few, give all for training, and None.

    No image is read. A class with fewer than 10 images has none to test on.
    """
    if len(source) < ENOUGH_TO_TEST * len(source.classes):
        return source, None
    places, _ = every_nth(source, TESTED)
    rest = frozenset(range(len(source))) - places
    return source.at(rest, source.name), source.at(places, f"every {TESTED}th image of {source.name}")


class JoinedImages(Source):
    """Several sources as one, all labeled or all not; classes are matched by name, in order of first appearance."""

    def __init__(self, *sources: Source, name: str | None = None) -> None:
        self.name, self.sources = name or " + ".join(s.name for s in sources), sources
        self.stable_names = all(s.stable_names for s in sources)
        self.numbered = len({s.name for s in sources}) < len(sources)  # images of two arrays would have the same names
        union = ClassUnion.of([s.classes for s in sources])
        self.classes, self.new_labels = union.names, union.columns

    def __len__(self) -> int:
        return sum(map(len, self.sources))

    def records(self, seed: int | None = None) -> Iterator[Record]:
        readers = [source.records(seed) for source in self.sources]
        for i in permuted([i for i, source in enumerate(self.sources) for _ in range(len(source))], seed):
            record = next(readers[i], None)
            if record is None:  # names that repeat, of which one was left out
                continue
            label = self.new_labels[i][record.label] if self.classes else UNLABELED
            yield record._replace(label=label, name=f"{i + 1}: {record.name}" if self.numbered else record.name)

    def at(self, places: Set[int], name: str) -> Source:
        """Take from each source its own part, so that they stay well mixed."""
        parts, start = [], 0
        for source in self.sources:
            own = {i for i in range(len(source)) if start + i in places}
            parts.append(source.at(own, source.name))
            start += len(source)
        return JoinedImages(*parts, name=name)


def _detached(record: Record) -> Record:
    """Copy pixels, since a view of a numpy array keeps the whole array in memory."""
    return record._replace(image=record.image.copy()) if isinstance(record.image, np.ndarray) else record
