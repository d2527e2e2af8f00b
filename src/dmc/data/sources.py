"""Where images come from: folders, tar shards, arrays; parquet and the hub are in `tables.py`.

All give undecoded records. Decoding comes later, in `decode.py`, so that skipping ahead in a stream costs
reading and nothing more.
"""

from __future__ import annotations

import random
import tarfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from dmc.classes import Classes, ClassUnion
from dmc.errors import DmcError, first_line
from dmc.progress import progress

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
SHUFFLE_BUFFER = 2048  # undecoded records
SHUFFLE_BYTES = 256 * 2**20  # and what they may weigh together
UNLABELED = -1
TESTED, ENOUGH_TO_TEST = 10, 20  # one image in so many is held out, where classes have so many on average
T = TypeVar("T")


class Objects(NamedTuple):
    """What is in an image, in its own pixels."""

    boxes_M4: npt.NDArray[np.float32]  # corners: left, top, right, bottom
    labels_M: npt.NDArray[np.int64]
    difficult_M: npt.NDArray[np.bool_]
    width: int
    height: int


class Record(NamedTuple):
    """One image as it is stored: encoded bytes, a file, or pixels (HW or HWC, uint8); or a user's own."""

    image: bytes | Path | npt.NDArray[np.uint8] | Image
    label: int
    name: str
    objects: Objects | None = None  # in images with boxes
    part: tuple[int, int, int, int] | None = None  # the corners of what is looked at, where that is not all of it


class Source(ABC):
    """A countable set of images that can be read again and again, in an order given by a seed."""

    name: str
    classes: tuple[str, ...] = ()  # empty where the images carry no labels
    steady = True  # an image has one name, in whatever order they come

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def records(self, seed: int | None = None) -> Iterator[Record]:
        """All records; in stored order without a seed, well mixed with one."""

    def labels(self) -> Iterator[int]:
        """The label of each image, in stored order."""
        return (record.label for record in self.records())

    def names(self) -> Iterator[str]:
        """The name of each image, in stored order."""
        return (record.name for record in self.records())

    def keep(self, names: Iterable[str]) -> Source:
        """Only the images of these classes."""
        return Kept(self, names)

    def rename(self, new_names: Mapping[str, str]) -> Source:
        """The same images under other class names; classes that get the same name become one."""
        return Renamed(self, new_names) if new_names else self

    def at(self, places: Set[int], name: str) -> Source:
        """Only the images at these places of the stored order, read when they are wanted."""
        return Chosen(self.in_lasting_names(), places, name)

    def in_lasting_names(self) -> Source:
        """The same images, under names that do not depend on the order in which they are read."""
        return self if self.steady else InStoredOrder(self)


class Kept(Source):
    """The images of some classes of a labeled source."""

    def __init__(self, source: Source, names: Iterable[str]) -> None:
        kept = Classes.of(source.classes).keep(names, source.name)
        self.name, self.source, self.classes = source.name, source, kept.names
        self.steady = source.steady
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


class Chosen(Source):
    """Some images of another source, of which nothing is held but the names."""

    def __init__(self, source: Source, places: Set[int], name: str) -> None:
        self.name, self.source, self.classes = name, source, source.classes
        self.chosen = frozenset(called for i, called in enumerate(source.names()) if i in places)
        if len(self.chosen) < len(places):
            raise DmcError(f"images of {source.name} have the same name, so that no part of them can be chosen")

    def __len__(self) -> int:
        return len(self.chosen)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        left = set(self.chosen)  # a name may come again among those that were not chosen
        for record in self.source.records(seed):
            if record.name in left:
                left.remove(record.name)
                yield record

    def names(self) -> Iterator[str]:
        return (name for name in self.source.names() if name in self.chosen)


class InStoredOrder(Source):
    """A source whose images have lasting names only in stored order: it is read in that, and mixed by a buffer."""

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
        self.steady = source.steady

    def __len__(self) -> int:
        return len(self.source)

    def labels(self) -> Iterator[int]:
        return (self.new_label[label] for label in self.source.labels())

    def records(self, seed: int | None = None) -> Iterator[Record]:
        return (record._replace(label=self.new_label[record.label]) for record in self.source.records(seed))

    def names(self) -> Iterator[str]:
        return self.source.names()


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


class FileImages(Source):
    """Image files."""

    def __init__(self, name: str, files: Iterable[Path]) -> None:
        self.name, self.files = name, [(path, UNLABELED) for path in files]

    def __len__(self) -> int:
        return len(self.files)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        for path, label in permuted(self.files, seed):
            yield Record(path, label, str(path))


class FolderImages(FileImages):
    """Image files below a folder; labeled by its immediate subfolders when asked."""

    def __init__(self, folder: Path, labeled: bool) -> None:
        super().__init__(str(folder), [] if labeled else image_files(folder))
        if labeled:
            found = {p.name: image_files(p) for p in subfolders(folder)}
            self.classes = tuple(name for name, files in found.items() if files)
            self.files = [(path, label) for label, name in enumerate(self.classes) for path in found[name]]


class ArrayImages(Source):
    """Images already in memory: uint8, N x H x W or N x H x W x 3."""

    def __init__(
        self,
        images: npt.NDArray[np.uint8],
        labels: Sequence[int] | npt.NDArray[np.int64] | None = None,
        classes: Sequence[str] = (),
        name: str = "array",
    ) -> None:
        if images.dtype != np.uint8 or images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] != 3):
            raise DmcError(
                f"{name}: images must be uint8 of shape N x H x W or N x H x W x 3, "
                f"not {images.dtype} of shape {images.shape}"
            )
        self.name, self.images, self.classes = name, images, tuple(map(str, classes))
        self.label_of = np.full(len(images), UNLABELED) if labels is None else np.asarray(labels)
        if self.label_of.shape != (len(images),):
            raise DmcError(f"{name}: {len(images)} images but labels of shape {self.label_of.shape}")
        if self.classes and len(images) and not 0 <= self.label_of.min() <= self.label_of.max() < len(self.classes):
            raise DmcError(f"{name}: labels must lie between 0 and {len(self.classes) - 1}")

    def __len__(self) -> int:
        return len(self.images)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        for i in permuted(range(len(self)), seed):
            yield Record(self.images[i], int(self.label_of[i]), f"{self.name}[{i}]")


class StrictHeader(tarfile.TarInfo):
    """A damaged header is an error. tarfile takes it for the end of the archive, and what follows would be lost."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tar)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"damaged after byte {tar.offset}: {error}") from None


class TarImages(Source):
    """Tar shards, read front to back; every image file in them is one image."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.name, self.files = name_of(files), list(files)
        self.length = counted(self._members(self.files, read=False), self.name)

    def __len__(self) -> int:
        return self.length

    def _members(self, files: Iterable[Path], read: bool) -> Iterator[Record]:
        for file in files:
            try:
                with tarfile.open(file, "r|*", tarinfo=StrictHeader) as tar:
                    for member in tar:
                        if member.isfile() and Path(member.name).suffix.lower() in IMAGE_SUFFIXES:
                            content = tar.extractfile(member) if read else None
                            yield Record(content.read() if content else b"", UNLABELED, f"{file}:{member.name}")
            except (tarfile.TarError, OSError, EOFError) as error:
                raise DmcError(f"cannot read the tar shard {file}: {first_line(error)}") from None

    def records(self, seed: int | None = None) -> Iterator[Record]:
        yield from buffer_shuffled(self._members(permuted(self.files, seed), read=True), seed)

    def names(self) -> Iterator[str]:
        return (record.name for record in self._members(self.files, read=False))


def subfolders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def images_below(folder: Path) -> Iterator[Path]:
    """All images below a folder, without hidden ones (macOS puts a `._photo.jpg` beside each photo)."""
    files = (p for p in folder.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
    return (p for p in files if not any(part.startswith(".") for part in p.relative_to(folder).parts))


def image_files(folder: Path) -> list[Path]:
    return sorted(images_below(folder))


def permuted(items: Sequence[T], seed: int | None) -> Sequence[T]:
    return items if seed is None else random.Random(seed).sample(items, len(items))


def buffer_shuffled(records: Iterable[Record], seed: int | None) -> Iterator[Record]:
    """A stream in nearly random order, holding a bounded number of records and bytes at a time."""
    if seed is None:
        yield from records
        return
    draw = random.Random(seed)
    buffer: list[Record] = []
    held = 0
    for record in records:
        buffer.append(record)
        held += _weight(record)
        while len(buffer) > SHUFFLE_BUFFER or (held > SHUFFLE_BYTES and len(buffer) > 1):
            i = draw.randrange(len(buffer))
            buffer[i], buffer[-1] = buffer[-1], buffer[i]
            held -= _weight(buffer[-1])
            yield buffer.pop()
    draw.shuffle(buffer)
    yield from buffer


def _detached(record: Record) -> Record:
    """A numpy row keeps the whole array alive behind it; a copy does not."""
    return record._replace(image=record.image.copy()) if isinstance(record.image, np.ndarray) else record


def _weight(record: Record) -> int:
    return len(record.image) if isinstance(record.image, bytes) else 0


def counted(records: Iterable[object], name: str) -> int:
    count = 0
    with progress(None, f"counting {name}") as bar:
        for _ in records:
            count += 1
            bar.update()
    return count


def name_of(files: Sequence[Path]) -> str:
    return str(files[0]) if len(files) == 1 else f"{files[0].parent} ({len(files)} files)"
