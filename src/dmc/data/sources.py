"""Where images come from: folders, tar shards, arrays; parquet and the hub are in `tables.py`.

All give undecoded records. Decoding comes later, in `decode.py`, so that skipping ahead in a stream costs
reading and nothing more.
"""

from __future__ import annotations

import random
import tarfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from dmc.classes import Classes, ClassUnion
from dmc.errors import DmcError, first_line
from dmc.progress import progress

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
SHUFFLE_BUFFER = 2048  # undecoded records
SHUFFLE_BYTES = 256 * 2**20  # and what they may weigh together
UNLABELED = -1
T = TypeVar("T")


class Objects(NamedTuple):
    """What is in an image, in its own pixels."""

    boxes_M4: npt.NDArray[np.float32]  # corners: left, top, right, bottom
    labels_M: npt.NDArray[np.int64]
    difficult_M: npt.NDArray[np.bool_]
    width: int
    height: int


class Record(NamedTuple):
    """One image as it is stored: encoded bytes, a file, or pixels (HW or HWC, uint8)."""

    image: bytes | Path | npt.NDArray[np.uint8]
    label: int
    name: str
    objects: Objects | None = None  # in images with boxes
    part: tuple[int, int, int, int] | None = None  # the corners of what is looked at, where that is not all of it


class Source(ABC):
    """A countable set of images that can be read again and again, in an order given by a seed."""

    name: str
    classes: tuple[str, ...] = ()  # empty where the images carry no labels

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def records(self, seed: int | None = None) -> Iterator[Record]:
        """All records; in stored order without a seed, well mixed with one."""

    def labels(self) -> Iterator[int]:
        """The label of each image, in stored order."""
        return (record.label for record in self.records())

    def keep(self, names: Iterable[str]) -> Source:
        """Only the images of these classes."""
        return Kept(self, names)

    def rename(self, new_names: Mapping[str, str]) -> Source:
        """The same images under other class names; classes that get the same name become one."""
        return Renamed(self, new_names) if new_names else self


class Kept(Source):
    """The images of some classes of a labeled source."""

    def __init__(self, source: Source, names: Iterable[str]) -> None:
        kept = Classes.of(source.classes).keep(names, source.name)
        self.name, self.source, self.classes = source.name, source, kept.names
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


class Renamed(Source):
    """The images of a labeled source under other class names."""

    def __init__(self, source: Source, new_names: Mapping[str, str]) -> None:
        union = ClassUnion.of([Classes.of(source.classes).renamed(new_names, source.name)])
        self.name, self.source, self.classes, self.new_label = source.name, source, union.names, union.columns[0]

    def __len__(self) -> int:
        return len(self.source)

    def labels(self) -> Iterator[int]:
        return (self.new_label[label] for label in self.source.labels())

    def records(self, seed: int | None = None) -> Iterator[Record]:
        return (record._replace(label=self.new_label[record.label]) for record in self.source.records(seed))


class Unlabeled(Source):
    """The images of another source without their classes."""

    def __init__(self, source: Source) -> None:
        self.name, self.source = source.name, source

    def __len__(self) -> int:
        return len(self.source)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        return (record._replace(label=UNLABELED) for record in self.source.records(seed))


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


def held_out(source: Source, every: int) -> tuple[ListedImages, ListedImages]:
    """Most images for training, and every so many-th of each class for validation."""
    seen: Counter[int] = Counter()
    places = set()
    for i, label in enumerate(source.labels()):
        seen[label] += 1
        if seen[label] % every == 0:
            places.add(i)
    for label, name in enumerate(source.classes):
        if seen[label] < every:
            raise DmcError(
                f"{source.name} has {seen[label]} images of class {name!r}; one in {every} is held out to test on"
            )
    return at_places(source, frozenset(range(len(source))) - places), at_places(source, places)


class Without(Source):
    """All images of another source but those with these names."""

    def __init__(self, source: Source, names: frozenset[str]) -> None:
        self.name, self.source, self.names, self.classes = source.name, source, names, source.classes

    def __len__(self) -> int:
        return len(self.source) - len(self.names)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        return (record for record in self.source.records(seed) if record.name not in self.names)


def split_off(source: Source, count: int, seed: int) -> tuple[ListedImages, Without]:
    """A mixed sample on its own, and the rest. No more of a stream is read than mixing it takes."""
    taken = ListedImages(source, records=islice(source.records(seed), count))
    return taken, Without(source, frozenset(record.name for record in taken.records()))


class JoinedImages(Source):
    """Labeled sources put together; classes are matched by name, in order of first appearance."""

    def __init__(self, *sources: Source) -> None:
        self.name, self.sources = " + ".join(s.name for s in sources), sources
        union = ClassUnion.of([s.classes for s in sources])
        self.classes, self.new_labels = union.names, union.columns

    def __len__(self) -> int:
        return sum(map(len, self.sources))

    def records(self, seed: int | None = None) -> Iterator[Record]:
        readers = [source.records(seed) for source in self.sources]
        for i in permuted([i for i, source in enumerate(self.sources) for _ in range(len(source))], seed):
            record = next(readers[i])
            yield record._replace(label=self.new_labels[i][record.label])


class FolderImages(Source):
    """Image files below a folder; labeled by its immediate subfolders when asked."""

    def __init__(self, folder: Path, labeled: bool) -> None:
        self.name = str(folder)
        if labeled:
            found = {p.name: image_files(p) for p in sorted(folder.iterdir()) if p.is_dir() and p.name[0] != "."}
            self.classes = tuple(name for name, files in found.items() if files)
            self.files = [(path, label) for label, name in enumerate(self.classes) for path in found[name]]
        else:
            self.files = [(path, UNLABELED) for path in image_files(folder)]

    def __len__(self) -> int:
        return len(self.files)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        for path, label in permuted(self.files, seed):
            yield Record(path, label, str(path))


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


def image_files(folder: Path) -> list[Path]:
    """All images below a folder, without hidden ones (macOS puts a `._photo.jpg` beside each photo)."""
    files = (p for p in folder.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
    return sorted(p for p in files if not any(part.startswith(".") for part in p.relative_to(folder).parts))


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
