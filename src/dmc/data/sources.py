"""Where images come from: a folder, parquet, tar shards, the hub, arrays. All give undecoded records.

Decoding comes later, in `decode.py`, so that skipping ahead in a stream costs reading and nothing more.
"""

from __future__ import annotations

import glob
import random
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from dmc.classes import Classes
from dmc.errors import DmcError

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
SHUFFLE_BUFFER = 8192  # undecoded records: about 1 GB of large photographs, a few MB of thumbnails
UNLABELED = -1
T = TypeVar("T")


class Record(NamedTuple):
    """One image as it is stored: encoded bytes, a file, or pixels (HW or HWC, uint8)."""

    image: bytes | Path | npt.NDArray[np.uint8]
    label: int
    name: str


class Source(ABC):
    """A countable set of images that can be read again and again, in an order given by a seed."""

    name: str
    classes: tuple[str, ...] = ()  # empty where the images carry no labels

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def records(self, seed: int | None = None) -> Iterator[Record]:
        """All records; in stored order without a seed, well mixed with one."""

    def keep(self, names: Iterable[str]) -> Source:
        """Only the images of these classes."""
        return Kept(self, names)


class Kept(Source):
    """The images of some classes of a labeled source."""

    def __init__(self, source: Source, names: Iterable[str]) -> None:
        kept = Classes.of(source.classes).keep(names)
        self.name, self.source, self.classes = source.name, source, kept.names
        self.new_label = {old: new for new, old in enumerate(kept.columns)}
        self.length = sum(1 for _ in self.records())

    def __len__(self) -> int:
        return self.length

    def records(self, seed: int | None = None) -> Iterator[Record]:
        for record in self.source.records(seed):
            if record.label in self.new_label:
                yield record._replace(label=self.new_label[record.label])


class FolderImages(Source):
    """Image files below a folder; labeled by its immediate subfolders when asked."""

    def __init__(self, folder: Path, labeled: bool) -> None:
        self.name = str(folder)
        if labeled:
            self.classes = tuple(sorted(p.name for p in folder.iterdir() if p.is_dir() and image_files(p)))
            roots = [(folder / name, label) for label, name in enumerate(self.classes)]
        else:
            roots = [(folder, UNLABELED)]
        self.files = [(path, label) for root, label in roots for path in image_files(root)]

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
        self.name, self.images, self.classes = name, images, tuple(classes)
        self.labels = np.full(len(images), UNLABELED) if labels is None else np.asarray(labels)
        if self.labels.shape != (len(images),):
            raise DmcError(f"{name}: {len(images)} images but labels of shape {self.labels.shape}")
        if self.classes and len(images) and not 0 <= self.labels.min() <= self.labels.max() < len(self.classes):
            raise DmcError(f"{name}: labels must lie between 0 and {len(self.classes) - 1}")

    def __len__(self) -> int:
        return len(self.images)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        for i in permuted(range(len(self)), seed):
            yield Record(self.images[i], int(self.labels[i]), f"{self.name}[{i}]")


class ParquetImages(Source):
    """Parquet files in the hub's image format, or with a column of encoded bytes."""

    def __init__(self, files: Sequence[Path], labeled: bool, image: str | None, label: str | None) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq
        from datasets import Features

        self.name, self.files = _name_of(files), list(files)
        try:
            metadata = [pq.read_metadata(file) for file in files]
            features = Features.from_arrow_schema(pq.read_schema(files[0]))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DmcError(f"cannot read {self.name} as parquet: {_first_line(error)}") from None
        self.length = int(sum(m.num_rows for m in metadata))
        self.columns = Columns(features, self.name, labeled, image, label)
        if labeled and not self.columns.names:
            values = {row[self.columns.label] for row in self._rows(self.files, [self.columns.label])}
            self.columns.names = tuple(str(value) for value in sorted(values))
        self.classes = self.columns.names

    def __len__(self) -> int:
        return self.length

    def _rows(self, files: Iterable[Path], columns: list[str]) -> Iterator[dict[str, Any]]:
        import pyarrow.parquet as pq

        for file in files:
            with pq.ParquetFile(file) as parquet:
                for batch in parquet.iter_batches(batch_size=256, columns=columns):
                    yield from batch.to_pylist()

    def records(self, seed: int | None = None) -> Iterator[Record]:
        rows = self._rows(permuted(self.files, seed), self.columns.used)
        yield from buffer_shuffled(self.columns.records(rows, self.name), seed)


class HubImages(Source):
    """A dataset of the Hugging Face hub (or a local folder in its layout), streamed."""

    def __init__(
        self, repo: str, labeled: bool, image: str | None, label: str | None, split: str, config: str | None
    ) -> None:
        import datasets

        self.name = f"hf-hub:{repo}"
        try:
            stream = datasets.load_dataset(repo, config, split=split, streaming=True)
            features = stream.features or stream._resolve_features().features
        except Exception as error:  # the hub client raises a dozen unrelated kinds
            raise DmcError(f"cannot open {self.name} (split {split}): {_first_line(error)}") from None
        self.columns = Columns(features, self.name, labeled, image, label)
        if labeled and not self.columns.names:
            raise DmcError(f"{self.name}: column {self.columns.label!r} has no class names")
        self.classes = self.columns.names
        self.stream = stream.select_columns(self.columns.used)
        if isinstance(features[self.columns.image], datasets.Image):
            self.stream = self.stream.cast_column(self.columns.image, datasets.Image(decode=False))
        known = (stream.info.splits or {}).get(split)
        self.length = known.num_examples if known else sum(1 for _ in self.stream)

    def __len__(self) -> int:
        return int(self.length)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        rows = self.stream if seed is None else self.stream.shuffle(seed=seed, buffer_size=SHUFFLE_BUFFER)
        yield from self.columns.records(rows, self.name)


class TarImages(Source):
    """Tar shards, read front to back; every image file in them is one image."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.name, self.files = _name_of(files), list(files)
        self.length = sum(1 for _ in self._members(self.files, read=False))

    def __len__(self) -> int:
        return self.length

    def _members(self, files: Iterable[Path], read: bool) -> Iterator[Record]:
        for file in files:
            try:
                with tarfile.open(file, "r|*") as tar:
                    for member in tar:
                        if member.isfile() and Path(member.name).suffix.lower() in IMAGE_SUFFIXES:
                            content = tar.extractfile(member) if read else None
                            yield Record(content.read() if content else b"", UNLABELED, f"{file}:{member.name}")
            except (tarfile.TarError, OSError, EOFError) as error:
                raise DmcError(f"cannot read the tar shard {file}: {_first_line(error)}") from None

    def records(self, seed: int | None = None) -> Iterator[Record]:
        yield from buffer_shuffled(self._members(permuted(self.files, seed), read=True), seed)


class Columns:
    """Which column holds the image and which the label, and how a row becomes a record."""

    def __init__(self, features: Any, name: str, labeled: bool, image: str | None, label: str | None) -> None:
        from datasets import ClassLabel, Image, Value

        images = [c for c, f in features.items() if isinstance(f, Image)] or [
            c for c, f in features.items() if f == Value("binary") or (isinstance(f, dict) and "bytes" in f)
        ]
        self.image = _choose(image, list(features), images, "image", name)
        self.label, self.names = "", ()
        if labeled:
            labels = [c for c, f in features.items() if isinstance(f, ClassLabel)] or [
                c
                for c, f in features.items()
                if isinstance(f, Value) and f.dtype in ("int64", "int32", "string") and c != self.image
            ]
            self.label = _choose(label, list(features), labels, "label", name)
            self.names = tuple(getattr(features[self.label], "names", ()))
            self.numbered = isinstance(features[self.label], ClassLabel)

    names: tuple[str, ...]

    @property
    def used(self) -> list[str]:
        return [self.image, self.label] if self.label else [self.image]

    def records(self, rows: Iterable[dict[str, Any]], name: str) -> Iterator[Record]:
        place = {text: i for i, text in enumerate(self.names)}
        for i, row in enumerate(rows):
            cell = row[self.image]
            encoded = cell["bytes"] if isinstance(cell, dict) else cell
            image = encoded if encoded is not None else Path(cell["path"])
            label = UNLABELED
            if self.label:
                value = row[self.label]
                label = int(value) if self.numbered else place[str(value)]
            yield Record(image, label, f"{name}[{i}]")


def open_images(spec: str | Path | Source | npt.NDArray[np.uint8]) -> Source:
    """Unlabeled images: a folder, parquet or tar files (a glob will do), `hf-hub:OWNER/NAME`, an array."""
    return _open(spec, labeled=False)


def open_labeled(spec: str | Path | Source) -> Source:
    """Labeled images: a folder with a folder for each class, parquet, `.npz`, `hf-hub:OWNER/NAME`.

    `FILE,label=COLUMN` and `FILE,image=COLUMN` choose columns; `hf-hub:OWNER/NAME,split=test` a split.
    """
    source = _open(spec, labeled=True)
    if not source.classes:
        raise DmcError(f"{source.name} has no class labels; labeled data is a folder per class, parquet or npz")
    return source


def _open(spec: str | Path | Source | npt.NDArray[np.uint8], labeled: bool) -> Source:
    if isinstance(spec, Source):
        source = spec
    elif isinstance(spec, np.ndarray):
        source = ArrayImages(spec)
    else:
        source = _open_path(str(spec), labeled)
    if len(source) == 0:
        raise DmcError(f"{source.name} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))}, parquet, tar or npz)")
    return source


def _open_path(spec: str, labeled: bool) -> Source:
    path, options = split_spec(spec, ("image", "label", "split", "config"))
    image, label = options.get("image"), options.get("label")
    if path.startswith("hf-hub:"):
        split = options.get("split", "train")
        return HubImages(path.removeprefix("hf-hub:"), labeled, image, label, split, options.get("config"))
    files = sorted(Path(p) for p in glob.glob(path)) if glob.has_magic(path) else [Path(path)]
    if not files or not all(file.exists() for file in files):
        raise DmcError(f"no such file or folder: {path}")
    if len(files) == 1 and files[0].is_dir():
        folder = FolderImages(files[0], labeled)
        shards = [f for suffix in (".parquet", ".tar") for f in sorted(files[0].rglob(f"*{suffix}"))]
        if len(folder) or not shards:
            return folder
        if labeled and len(shards) > 1:  # they may well be the training and the test set
            raise DmcError(f"{path} holds {len(shards)} files: name one, or give a glob such as '{shards[0]}'")
        files = shards
    suffixes = {file.suffix.lower() for file in files}
    if suffixes == {".parquet"}:
        return ParquetImages(files, labeled, image, label)
    if suffixes <= {".tar", ".tgz", ".gz"} and not labeled:
        return TarImages(files)
    if suffixes == {".npz"} and len(files) == 1:
        return _npz(files[0])
    kinds = "a folder per class, parquet or npz" if labeled else "a folder, parquet, tar shards or npz"
    raise DmcError(f"cannot read images from {path}: expected {kinds}")


def _npz(path: Path) -> ArrayImages:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            content = dict(arrays)
    except (OSError, ValueError) as error:
        raise DmcError(f"cannot read {path}: {_first_line(error)}") from None
    if "images" not in content:
        raise DmcError(f"{path} has no array 'images' (it has: {', '.join(content) or 'nothing'})")
    labels = content.get("labels")
    classes = [str(name) for name in content.get("classes", [])]
    if labels is not None and not classes:
        values, labels = np.unique(labels, return_inverse=True)
        classes = [str(value) for value in values]
    return ArrayImages(content["images"], labels, classes, str(path))


def split_spec(spec: str, known: Sequence[str]) -> tuple[str, dict[str, str]]:
    """`PATH,key=value,...` to its parts. A path that exists as it stands has no options."""
    if Path(spec).exists():
        return spec, {}
    path, *pairs = spec.split(",")
    options = dict(pair.partition("=")[::2] for pair in pairs)
    for key in options:
        if key not in known:
            raise DmcError(f"unknown setting {key!r} in {spec!r}: known are {', '.join(known)}")
    return path, options


def image_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())


def permuted(items: Sequence[T], seed: int | None) -> Sequence[T]:
    return items if seed is None else random.Random(seed).sample(items, len(items))


def buffer_shuffled(items: Iterable[T], seed: int | None) -> Iterator[T]:
    """A stream in nearly random order, holding SHUFFLE_BUFFER items at a time."""
    if seed is None:
        yield from items
        return
    draw = random.Random(seed)
    buffer: list[T] = []
    for item in items:
        if len(buffer) < SHUFFLE_BUFFER:
            buffer.append(item)
        else:
            i = draw.randrange(SHUFFLE_BUFFER)
            item, buffer[i] = buffer[i], item
            yield item
    draw.shuffle(buffer)
    yield from buffer


def _choose(asked: str | None, columns: list[str], found: list[str], what: str, name: str) -> str:
    if asked is not None:
        if asked not in columns:
            raise DmcError(f"{name} has no column {asked!r}; it has {', '.join(columns)}")
        return asked
    if len(found) != 1:
        problem = f"several could be ({', '.join(found)})" if found else f"none of {', '.join(columns)} is"
        raise DmcError(f"{name}: which column is the {what}? {problem}; append ',{what}=COLUMN'")
    return found[0]


def _name_of(files: Sequence[Path]) -> str:
    return str(files[0]) if len(files) == 1 else f"{files[0].parent} ({len(files)} files)"


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]
