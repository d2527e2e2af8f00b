"""Sources that read tables: parquet files, and datasets of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from dmc.data.readers import counted, name_of
from dmc.data.sources import SHUFFLE_BUFFER, UNLABELED, Record, Source, buffer_shuffled, permuted
from dmc.errors import DmcError, first_line


class ParquetImages(Source):
    """Parquet files in the hub's image format, or with a column of encoded bytes.

    `image` and `label` name columns; None takes the only one that could be meant.
    """

    def __init__(self, files: Sequence[Path], labeled: bool, image: str | None, label: str | None) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq
        from datasets import Features

        self.name, self.files = name_of(files), list(files)
        try:
            metadata = [pq.read_metadata(file) for file in files]
            features = Features.from_arrow_schema(pq.read_schema(files[0]))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DmcError(f"cannot read {self.name} as parquet: {first_line(error)}") from None
        self.rows = [int(m.num_rows) for m in metadata]
        self.columns = Columns(features, self.name, labeled, image, label)
        for file, part in zip(files, metadata, strict=True):
            missing = set(self.columns.used) - set(part.schema.to_arrow_schema().names)
            if missing:
                raise DmcError(f"{file} has no column {missing.pop()!r}, which {files[0]} has")
        if labeled and not self.columns.names:
            values = {row[self.columns.label] for _, row in self._rows(self.files, [self.columns.label])}
            self.columns.names = tuple(str(value) for value in sorted(values - {None}))
        self.classes = self.columns.names

    def __len__(self) -> int:
        return sum(self.rows)

    def names(self) -> Iterator[str]:
        return (f"{file}[{i}]" for file, rows in zip(self.files, self.rows, strict=True) for i in range(rows))

    def _rows(self, files: Iterable[Path], columns: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Give rows with their names, which do not depend on the order of the files."""
        import pyarrow.parquet as pq

        for file in files:
            with pq.ParquetFile(file) as parquet:
                batches = parquet.iter_batches(batch_size=256, columns=columns)
                for i, row in enumerate(row for batch in batches for row in batch.to_pylist()):
                    yield f"{file}[{i}]", row

    def labels(self) -> Iterator[int]:
        for name, row in self._rows(self.files, [self.columns.label]):
            yield self.columns.label_of(row, name)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        rows = self._rows(permuted(self.files, seed), self.columns.used)
        yield from buffer_shuffled(self.columns.records(rows), seed)


class HubImages(Source):
    """A dataset of the Hugging Face hub (or a local folder in its layout), streamed."""

    stable_names = False  # rows of a shuffled stream come without their positions

    def __init__(
        self, repo: str, labeled: bool, image: str | None, label: str | None, split: str, config: str | None
    ) -> None:
        import datasets

        self.name = f"hf-hub:{repo},split={split}"
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
            yield from self.columns.records(self._named(rows, in_order=seed is None))
        except OSError as error:  # what network failures become
            raise DmcError(f"{self.name} broke off: {first_line(error)}") from None

    def labels(self) -> Iterator[int]:
        try:
            for name, row in self._named(self.stream.select_columns([self.columns.label]), in_order=True):
                yield self.columns.label_of(row, name)
        except OSError as error:
            raise DmcError(f"{self.name} broke off: {first_line(error)}") from None

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
            labels = [c for c, f in features.items() if isinstance(f, ClassLabel)] or [
                c
                for c, f in features.items()
                if isinstance(f, Value) and ("int" in f.dtype or "string" in f.dtype) and c != self.image
            ]
            self.label = _choose(label, list(features), labels, "label", name)
            self.names = tuple(getattr(features[self.label], "names", ()))
            self.numbered = isinstance(features[self.label], ClassLabel)

    names: tuple[str, ...]

    @cached_property
    def number_of(self) -> dict[str, int]:
        """The label of each class name."""
        return {name: number for number, name in enumerate(self.names)}

    @property
    def used(self) -> list[str]:
        """The columns to read."""
        return [self.image, self.label] if self.label else [self.image]

    def records(self, rows: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[Record]:
        """Turn rows and their names into records."""
        for name, row in rows:
            label = self.label_of(row, name) if self.label else UNLABELED
            yield Record(_content(row[self.image]), label, name)

    def label_of(self, row: dict[str, Any], name: str) -> int:
        """Give the label of a row, and refuse one that is none of the classes."""
        value = row[self.label]
        if self.numbered and value is not None and 0 <= value < len(self.names):
            return int(value)
        if not self.numbered and str(value) in self.number_of:
            return self.number_of[str(value)]
        raise DmcError(f"{name}: column {self.label!r} holds {value!r}, which is none of the classes")


def _content(cell: Any) -> bytes | Path:
    """Give an image cell's bytes or file; an empty cell gives bytes that cannot be decoded."""
    if not isinstance(cell, dict):
        return cell or b""
    if cell.get("bytes") is not None:
        return bytes(cell["bytes"])
    path = cell.get("path") or ""
    if "://" not in path:
        return Path(path) if path else b""
    import fsspec

    with fsspec.open(path, "rb") as file:  # inside an archive, or on the hub
        return bytes(file.read())


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
