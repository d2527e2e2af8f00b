"""Sources that read files, folders, tar shards and arrays; those of parquet and the hub are in `tables.py`."""

from __future__ import annotations

import logging
import tarfile
import zipfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dmc.data.sources import UNLABELED, Record, Source, buffer_shuffled, permuted
from dmc.data.untrusted import MOST_ENCODED, Refused, require_plausible
from dmc.errors import DmcError, reason_of
from dmc.files import regular_size
from dmc.progress import progress

log = logging.getLogger("dmc")
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
FILE_SUFFIXES = IMAGE_SUFFIXES | {".parquet", ".npz", ".tar", ".tgz", ".gz"}
EXTENSIONS = frozenset(b"LKxgX")  # types of tar headers that hold long names and the like of the next one
MOST_EXTENDED = 2**15  # bytes of one


class FileImages(Source):
    """Image files without labels."""

    def __init__(self, name: str, files: Iterable[Path]) -> None:
        self.name, self.files = name, [(path, UNLABELED) for path in files]

    def __len__(self) -> int:
        return len(self.files)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        for path, label in permuted(self.files, seed):
            yield Record(path, label, str(path))


class FolderImages(FileImages):
    """Image files below a folder; if `labeled`, each of its immediate subfolders is a class."""

    def __init__(self, folder: Path, labeled: bool) -> None:
        super().__init__(str(folder), [] if labeled else image_files(folder))
        if labeled:
            found = {p.name: image_files(p) for p in subfolders(folder)}
            self.classes = tuple(name for name, files in found.items() if files)
            empty = [name for name in found if name not in self.classes]
            if empty and self.classes:
                log.warning(f"{folder} has folders without an image, such as {empty[0]}: they are no classes")
            self.files = [(path, label) for label, name in enumerate(self.classes) for path in found[name]]


class ArrayImages(Source):
    """Images that are in memory already: uint8, N x H x W or N x H x W x 3."""

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


def read_arrays(path: Path, keys: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Read arrays of an npz file, of which the first must be there; nothing is unpickled."""
    try:
        regular_size(path)
        with zipfile.ZipFile(path) as parts:
            require_plausible(path, sum(part.file_size for part in parts.infolist()))
        with np.load(path, allow_pickle=False) as arrays:
            if keys[0] not in arrays.files:
                raise DmcError(f"{path} has no array {keys[0]!r} (it has: {', '.join(arrays.files) or 'nothing'})")
            return {key: np.asarray(arrays[key]) for key in keys if key in arrays.files}
    except DmcError:
        raise
    except Exception as error:  # a damaged file makes zipfile and numpy raise a dozen kinds
        raise DmcError(f"cannot read {path}: {reason_of(error)}") from None


class StrictHeader(tarfile.TarInfo):
    """A tar header that is an error if damaged. tarfile takes it for the end of the archive, and loses what follows."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0 or (header.type[0] in EXTENSIONS and header.size > MOST_EXTENDED):
            raise tarfile.InvalidHeaderError("impossible size")  # type: ignore[attr-defined]
        return header

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tar)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"damaged after byte {tar.offset}: {error}") from None


class TarShard:
    """A tar file, and where the images in it lie, so that no pass but the first has to read headers."""

    def __init__(self, file: Path) -> None:
        self.file, self.seekable = file, True
        try:
            regular_size(file)
        except OSError as error:
            raise self._unreadable(error) from None
        try:
            tarfile.open(file, "r:", tarinfo=StrictHeader).close()
        except Exception:  # compressed, or something that reading it will tell
            self.seekable = False
        self.offsets, self.sizes, names = array("Q"), array("Q"), list[str]()
        self.refused: dict[int, Refused] = {}
        for member, content in self._members(read=False):
            if isinstance(content, Refused):
                self.refused[len(names)] = content
            self.offsets.append(member.offset_data)
            self.sizes.append(0 if isinstance(content, Refused) else member.size)
            names.append(member.name.replace("\0", "?"))
        self.joined_names = "\0".join(names)  # a string for each would take several times the memory

    def __len__(self) -> int:
        return len(self.offsets)

    def names(self) -> Iterator[str]:
        return (f"{self.file}:{name}" for name in (self.joined_names.split("\0") if len(self) else ()))

    def contents(self) -> Iterator[bytes | Refused]:
        """Read the image files, from front to back."""
        if not self.seekable:
            yield from (content for _, content in self._members(read=True))
            return
        try:
            with self.file.open("rb") as tar:
                for i, (offset, size) in enumerate(zip(self.offsets, self.sizes, strict=True)):
                    tar.seek(offset)
                    yield self.refused.get(i) or tar.read(size)
        except OSError as error:
            raise self._unreadable(error) from None

    def _members(self, read: bool) -> Iterator[tuple[tarfile.TarInfo, bytes | Refused]]:
        """Find the image files among the members, and give their contents if `read`."""
        end = 0
        try:
            with tarfile.open(self.file, "r:" if self.seekable else "r|*", tarinfo=StrictHeader) as tar:
                while member := tar.next():
                    tar.members.clear()  # type: ignore[attr-defined]  # which would grow with the file
                    if tar.offset <= end or member.size < 0:  # which would lead round in circles
                        raise tarfile.ReadError(f"damaged after byte {end}")
                    end = tar.offset
                    if not self.seekable:
                        require_plausible(self.file, end)
                    if Path(member.name).suffix.lower() in IMAGE_SUFFIXES and not member.isdir():
                        refused = _refused(member)
                        content = tar.extractfile(member) if read and not refused else None
                        yield member, refused or (content.read() if content else b"")
        except DmcError:
            raise
        except Exception as error:  # a damaged archive makes tarfile and the unpackers raise a dozen kinds
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> DmcError:
        return DmcError(f"cannot read the tar shard {self.file}: {reason_of(error)}")


def _refused(member: tarfile.TarInfo) -> Refused | None:
    """Refuse a member that is named like an image and is none: a link, a device, or far too large."""
    if not member.isreg() or member.issparse():
        return Refused("it is not a regular file")
    return Refused(f"it has more than {MOST_ENCODED:,} bytes") if member.size > MOST_ENCODED else None


class TarImages(Source):
    """Tar shards, read from front to back; every image file in them is one image."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.name = name_of(files)
        with progress(None, f"counting {self.name}") as bar:
            self.shards = []
            for file in files:
                self.shards.append(TarShard(file))
                bar.update(len(self.shards[-1]))

    def __len__(self) -> int:
        return sum(map(len, self.shards))

    def records(self, seed: int | None = None) -> Iterator[Record]:
        both = (zip(shard.names(), shard.contents(), strict=True) for shard in permuted(self.shards, seed))
        records = (Record(content, UNLABELED, name) for shard in both for name, content in shard)
        yield from buffer_shuffled(records, seed)

    def names(self) -> Iterator[str]:
        return (name for shard in self.shards for name in shard.names())


def subfolders(folder: Path) -> list[Path]:
    """Give the immediate subfolders, sorted, without hidden ones."""
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def images_below(folder: Path) -> Iterator[Path]:
    """Find all images below a folder, without hidden ones (macOS puts a `._photo.jpg` beside each photo)."""
    files = (p for p in folder.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
    return (p for p in files if not any(part.startswith(".") for part in p.relative_to(folder).parts))


def require_undisguised(path: Path) -> None:
    """Refuse a link to a folder that is named like a file: it may lead to all that is on the disk."""
    if path.suffix.lower() in FILE_SUFFIXES and path.is_symlink() and path.is_dir():
        raise DmcError(f"{path} is named like a file, and is a link to a folder; name that folder itself")


def image_files(folder: Path) -> list[Path]:
    """Find all images below a folder, sorted."""
    return sorted(images_below(folder))


def counted(records: Iterable[object], name: str) -> int:
    """Count records by reading them, and show how far that is."""
    count = 0
    with progress(None, f"counting {name}") as bar:
        for _ in records:
            count += 1
            bar.update()
    return count


def name_of(files: Sequence[Path]) -> str:
    """Name files for messages: one by its path, several by their folder and their number."""
    return str(files[0]) if len(files) == 1 else f"{files[0].parent} ({len(files)} files)"
