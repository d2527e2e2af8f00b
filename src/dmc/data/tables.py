"""Sources that read tables: parquet files, and datasets of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from dmc.data.readers import counted, name_of
from dmc.data.sources import SHUFFLE_BUFFER, UNLABELED, Record, Source, buffer_shuffled, permuted
from dmc.data.untrusted import MOST_ENCODED, Below, Refused, require_class_names, require_plausible
from dmc.errors import DmcError, first_line, reason_of
from dmc.files import regular_size

ARCHIVES = ("zip://", "tar://", "gzip://")  # what fsspec opens within a file, and nowhere else


class ParquetImages(Source):
    """Parquet files in the hub's image format, or with a column of encoded bytes.

    `image` and `label` name columns; None takes the only one that could be meant.
    """

    def __init__(self, files: Sequence[Path], labeled: bool, image: str | None, label: str | None) -> None:
        from datasets import Features

        self.name, self.files = name_of(files), list(files)
        headers = {file: _header(file) for file in files}
        try:
            features = Features.from_arrow_schema(headers[files[0]].schema)
        except Exception as error:  # what the hub writes into a header may be of any type
            raise DmcError(f"cannot read the header of {files[0]}: {reason_of(error)}") from None
        self.rows = {file: header.rows for file, header in headers.items()}
        self.columns = Columns(features, self.name, labeled, image, label)
        for file, header in headers.items():
            missing = set(self.columns.used) - set(header.schema.names)
            if missing:
                raise DmcError(f"{file} has no column {missing.pop()!r}, which {files[0]} has")
        if labeled and not self.columns.names:
            self.columns.names = self._values()
        self.classes = self.columns.names

    def __len__(self) -> int:
        return sum(self.rows.values())

    def names(self) -> Iterator[str]:
        return (f"{file}[{i}]" for file, rows in self.rows.items() for i in range(rows))

    def _rows(self, file: Path, columns: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Give a file's rows with their names, which do not depend on the order of the files."""
        import pyarrow.parquet as pq

        i = -1
        try:
            with pq.ParquetFile(file) as parquet:
                batches = parquet.iter_batches(batch_size=256, columns=columns)
                for i, row in enumerate(row for batch in batches for row in batch.to_pylist()):
                    yield f"{file}[{i}]", row
        except Exception as error:  # damaged pages make pyarrow raise many kinds
            raise DmcError(f"cannot read {file} after row {i + 1}: {reason_of(error)}") from None
        if i + 1 != self.rows[file]:
            raise DmcError(f"{file} has {i + 1} rows, and not {self.rows[file]} as its header says")

    def _labeled_rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        return chain.from_iterable(self._rows(file, [self.columns.label]) for file in self.files)

    def _values(self) -> tuple[str, ...]:
        """Name the classes by the values in the column of labels, in order; a row without one is refused later."""
        values: set[int | str] = set()
        for name, row in self._labeled_rows():
            value = row[self.columns.label]
            if isinstance(value, int | str):
                values.add(value)
            elif value is not None:
                raise self.columns.no_class(value, name)
        return tuple(str(value) for value in sorted(values, key=lambda value: (isinstance(value, str), value)))

    def labels(self) -> Iterator[int]:
        for name, row in self._labeled_rows():
            yield self.columns.label_of(row, name)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        shards = permuted(self.files, seed)
        records = (self.columns.records(self._rows(f, self.columns.used), Below(f.parent)) for f in shards)
        yield from buffer_shuffled(chain.from_iterable(records), seed)


class Header(NamedTuple):
    """What a parquet file says that it holds."""

    rows: int
    schema: Any


def _header(file: Path) -> Header:
    """Read the header of a parquet file; refuse one with more rows than bytes, or that unpacks to absurdly much."""
    import pyarrow.parquet as pq

    try:
        size, found = regular_size(file), pq.read_metadata(file)
        unpacked = sum(found.row_group(i).total_byte_size for i in range(found.num_row_groups))
        header = Header(found.num_rows, found.schema.to_arrow_schema())
    except Exception as error:  # pyarrow raises many kinds
        raise DmcError(f"cannot read {file} as parquet: {reason_of(error)}") from None
    require_plausible(file, unpacked)
    if not 0 <= header.rows <= size:
        raise DmcError(f"cannot read {file} as parquet: its header says that {size} bytes hold {header.rows} rows")
    return header


class HubImages(Source):
    """A dataset of the Hugging Face hub (or a local folder in its layout), streamed."""

    stable_names = False  # rows of a shuffled stream come without their positions

    def __init__(
        self, repo: str, labeled: bool, image: str | None, label: str | None, split: str, config: str | None
    ) -> None:
        import datasets

        self.repo, self.name = repo, f"hf-hub:{repo},split={split}"
        try:
            stream = datasets.load_dataset(repo, config, split=split, streaming=True)
            features = stream.features or stream._resolve_features().features
        except Exception as error:  # the hub client raises a dozen unrelated kinds
            raise DmcError(f"cannot open {self.name}: {first_line(error)}") from None
        self.columns = Columns(features, self.name, labeled, image, label)
        if labeled and not self.columns.names:
            raise DmcError(f"{self.name}: column {self.columns.label!r} has no class names")
        self.classes = self.columns.names
        self.stream = stream.select_columns(self.columns.used)
        if isinstance(features[self.columns.image], datasets.Image):
            self.stream = self.stream.cast_column(self.columns.image, datasets.Image(decode=False))
        known = (stream.info.splits or {}).get(split)
        self.length = known.num_examples if known else counted(self.stream, self.name)

    def __len__(self) -> int:
        return int(self.length)

    def names(self) -> Iterator[str]:
        return (f"{self.name}[{i}]" for i in range(len(self)))

    def records(self, seed: int | None = None) -> Iterator[Record]:
        rows = self.stream if seed is None else self.stream.shuffle(seed=seed, buffer_size=SHUFFLE_BUFFER)
        try:
            yield from self.columns.records(self._named(rows, in_order=seed is None), self._file)
        except DmcError:
            raise
        except Exception as error:  # networks and damaged files fail in many ways
            raise DmcError(f"{self.name} broke off: {first_line(error)}") from None

    def labels(self) -> Iterator[int]:
        try:
            for name, row in self._named(self.stream.select_columns([self.columns.label]), in_order=True):
                yield self.columns.label_of(row, name)
        except DmcError:
            raise
        except Exception as error:
            raise DmcError(f"{self.name} broke off: {first_line(error)}") from None

    def _file(self, name: str) -> bytes | Path | Refused:
        """Give an image that a row names if it is a file of this very dataset, perhaps in an archive."""
        *archives, file = name.split("::")
        ours = file.startswith(f"hf://datasets/{self.repo}@") and ".." not in file
        if Path(self.repo).is_dir():
            place = Below(Path(self.repo))(file)
            if not archives:
                return place
            ours = isinstance(place, Path) and place.is_file()
        if not ours or not all(part.startswith(ARCHIVES) for part in archives):
            return Refused(f"{name[:200]!r} is not a file of {self.repo}")
        import fsspec

        with fsspec.open(name, "rb") as content:
            return bytes(content.read(MOST_ENCODED))

    def _named(self, rows: Iterable[dict[str, Any]], in_order: bool) -> Iterator[tuple[str, dict[str, Any]]]:
        """Name rows by position; if they are shuffled, by the file that the image was, where that is known."""
        for i, row in enumerate(rows):
            cell = row.get(self.columns.image)
            file = cell.get("path") if isinstance(cell, dict) and not in_order else None
            yield f"{self.name}[{file or i}]", row


class Columns:
    """The columns that hold image and label, and how a row becomes a record."""

    def __init__(self, features: Any, name: str, labeled: bool, image: str | None, label: str | None) -> None:
        from datasets import ClassLabel, Image, Value

        images = [c for c, f in features.items() if isinstance(f, Image)] or [
            c
            for c, f in features.items()
            if (isinstance(f, Value) and "binary" in f.dtype) or (isinstance(f, dict) and "bytes" in f)
        ]
        self.image = _choose(image, list(features), images, "image", name)
        self.label, self.names = "", ()
        if labeled:
            plain = {c: f.dtype for c, f in features.items() if isinstance(f, Value)}
            usual = [c for c, dtype in plain.items() if ("int" in dtype or "string" in dtype) and c != self.image]
            numbered = [c for c, f in features.items() if isinstance(f, ClassLabel)]
            self.label = _choose(label, list(features), numbered or usual, "label", name)
            if self.label not in numbered + usual and plain.get(self.label) != "bool":
                raise DmcError(f"{name}: column {self.label!r} holds no labels, which are whole numbers or texts")
            self.numbered = isinstance(features[self.label], ClassLabel)
            if self.numbered:
                self.names = require_class_names(features[self.label].names, f"{name}: column {self.label!r}")

    names: tuple[str, ...]

    @cached_property
    def number_of(self) -> dict[str, int]:
        """The label of each class name."""
        return {name: number for number, name in enumerate(self.names)}

    @property
    def used(self) -> list[str]:
        """The columns to read."""
        return [self.image, self.label] if self.label else [self.image]

    def records(
        self, rows: Iterable[tuple[str, dict[str, Any]]], place: Callable[[str], bytes | Path | Refused]
    ) -> Iterator[Record]:
        """Turn rows and their names into records; `place` finds an image that a row only names."""
        for name, row in rows:
            label = self.label_of(row, name) if self.label else UNLABELED
            yield Record(_content(row[self.image], place), label, name)

    def label_of(self, row: dict[str, Any], name: str) -> int:
        """Give the label of a row, and refuse one that is none of the classes."""
        value = row[self.label]
        if self.numbered and isinstance(value, int) and 0 <= value < len(self.names):
            return value
        if not self.numbered and isinstance(value, int | str) and str(value) in self.number_of:
            return self.number_of[str(value)]
        raise self.no_class(value, name)

    def no_class(self, value: Any, name: str) -> DmcError:
        """Word the error about a label that is none of the classes."""
        return DmcError(f"{name}: column {self.label!r} holds {value!r:.100}, which is none of the classes")


def _content(cell: Any, place: Callable[[str], bytes | Path | Refused]) -> bytes | Path | Refused:
    """Give an image cell's bytes, or the file that it names."""
    if isinstance(cell, dict):
        cell = cell.get("path") if cell.get("bytes") is None else cell["bytes"]
    if not cell:
        return Refused("the row has no image")
    if isinstance(cell, str):
        return place(cell)
    return cell if isinstance(cell, bytes) else Refused(f"{type(cell).__name__} is not the type of an image")


def _choose(asked: str | None, columns: list[str], found: list[str], what: str, name: str) -> str:
    """Choose the column that is asked for, or the only one found; refuse to guess."""
    if asked is not None:
        if asked not in columns:
            raise DmcError(f"{name} has no column {asked!r}; it has {', '.join(columns)}")
        return asked
    if len(found) != 1:
        problem = f"several could be ({', '.join(found)})" if found else f"none of {', '.join(columns)} is"
        raise DmcError(f"{name}: which column is the {what}? {problem}; append ',{what}=COLUMN'")
    return found[0]
