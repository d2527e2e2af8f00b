"""Open what a user typed or passed as a source of images."""

from __future__ import annotations

import glob
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dmc.data.annotations import is_annotated
from dmc.data.readers import (
    IMAGE_SUFFIXES,
    ArrayImages,
    FileImages,
    FolderImages,
    TarImages,
    name_of,
    read_arrays,
    require_undisguised,
)
from dmc.data.sources import Source, permuted
from dmc.data.splits import find_split, require_one_set
from dmc.data.subsets import JoinedImages, Unlabeled
from dmc.data.tables import HubImages, ParquetImages
from dmc.data.untrusted import require_class_names
from dmc.errors import DmcError
from dmc.seeds import seed_for
from dmc.specs import refuse, split_spec

log = logging.getLogger("dmc")
OneSet = str | Path | Source | npt.NDArray[np.uint8]
SETTINGS = ("image", "label", "split", "config")  # of a place
KINDS = {"tar": frozenset({".tar", ".tgz", ".gz"}), "image": IMAGE_SUFFIXES}  # kinds of files, by suffix


def open_images(spec: OneSet | Sequence[OneSet]) -> Source:
    """Open unlabeled images: a folder, parquet or tar files (or a glob), `hf-hub:OWNER/NAME`, an array; or several."""
    if isinstance(spec, str | Path | Source | np.ndarray):
        return _open(spec, labeled=False)
    if not spec:
        raise DmcError("no images are named; give one place or more")
    sources = [_open(one, labeled=False) for one in spec]
    refuse_overlap(spec)
    return _joined(sources)


def sample_of(source: Source, limit: int | float, seed: int) -> Source:
    """Give a random sample: `limit` is a number of images, or a share of them (0.25, 25%).

    With the same seed, a smaller sample is a part of a larger one.
    """
    total = len(source)
    wanted = limit if isinstance(limit, int) else max(1, round(limit * total))
    if wanted > total:
        log.warning("%s has %s images, not %s: all of them are used", source.name, f"{total:,}", f"{wanted:,}")
    if wanted >= total:
        return source
    places = permuted(range(total), seed_for(seed, "sample of images"))[:wanted]
    return source.at(frozenset(places), f"a sample of {source.name}")


def open_labeled(spec: str | Path | Source) -> Source:
    """Open labeled images: a folder with a subfolder for each class, parquet, `.npz` or `hf-hub:OWNER/NAME`.

    `FILE,label=COLUMN` and `FILE,image=COLUMN` choose columns; `hf-hub:OWNER/NAME,split=test` chooses a split.
    """
    source = _open(spec, labeled=True)
    if not source.classes:
        raise DmcError(f"{source.name} has no class labels; labeled data is a folder per class, parquet or npz")
    require_class_names(source.classes, source.name)
    return source


def open_with_held_out(spec: str | Path | Source) -> tuple[Source, Source | None]:
    """Open labeled images to train on, and those to test on if a folder holds both sets (else None)."""
    path = "" if isinstance(spec, Source) else _split(str(spec))[0]
    split = find_split(Path(path)) if path and Path(path).is_dir() else None
    if split is None:
        return open_labeled(spec), None
    columns = str(spec).removeprefix(path)
    train, held_out = (open_labeled(f"{part}{columns}") for part in split)
    for one, other in ((train, held_out), (held_out, train)):
        missing = [name for name in one.classes if name not in other.classes]
        if missing:
            raise DmcError(
                f"{path} is ambiguous: {one.name} has a class {missing[0]!r}, {other.name} does not; "
                f"make them alike, or name {train.name} itself"
            )
    return train, held_out


def _joined(sources: Sequence[Source], name: str | None = None) -> Source:
    """Join sources into one without labels; a single source is given back as it is."""
    return sources[0] if len(sources) == 1 else JoinedImages(*map(Unlabeled, sources), name=name)


def each_of(images: Any) -> list[Any]:
    """Give the sets of images that are to be joined, which may be one."""
    return [*images] if isinstance(images, list | tuple) else [images]


def refuse_overlap(specs: Iterable[Any]) -> None:
    """Refuse paths of which one lies in another: an image that is named twice would count twice."""
    named = [split_spec(str(one), (*SETTINGS, "images")) for one in specs if isinstance(one, str | Path)]
    paths = [options.get("images", path) for path, options in named if not path.startswith("hf-hub:")]
    seen: set[Path] = set()
    for file in sorted((file.resolve() for path in paths for file in _matched(path)), key=lambda file: len(file.parts)):
        if seen & {file, *file.parents}:
            raise DmcError(f"the images of {file} are named twice, and would count twice: name them once")
        seen.add(file)


def refuse_trained_on(held_out: Source, source: Source) -> None:
    """Refuse to test on images that are trained on; those of the hub are not compared, since they would be read."""
    if any(one.name.startswith("hf-hub:") for one in (held_out, source)):
        return
    both = set(held_out.names()) & set(source.names())
    if both and Path(min(both).partition("[")[0]).exists():  # or else images in memory, whose names are numbers
        named = f"{len(both)} of the {len(held_out)} images of {held_out.name}, such as {min(both)}"
        raise DmcError(f"{named}, would be trained on, too: test on others")


def require_outside(out: Path, *places: Any) -> None:
    """Refuse a folder for results inside a folder of images: whoever reads that again would take them for images."""
    for spec in (one for place in places for one in each_of(place)):
        if isinstance(spec, str | Path):
            path, options = split_spec(str(spec), (*SETTINGS, "images"))
            folder = Path(options.get("images", path))
            if folder.is_dir() and folder.resolve() in (out.resolve(), *out.resolve().parents):
                raise DmcError(f"{out} lies in {folder}, which holds images: name a folder outside of it")


def _open(spec: OneSet, labeled: bool) -> Source:
    """Open one place, and refuse it if it holds no images."""
    if isinstance(spec, Source):
        source = spec
    elif isinstance(spec, np.ndarray):
        source = ArrayImages(spec)
    else:
        source = _open_path(str(spec), labeled)
    if len(source) == 0 and labeled and isinstance(source, FolderImages):
        raise DmcError(f"{source.name} has no folder with images in it; labeled data has a folder for each class")
    if len(source) == 0:
        raise DmcError(f"{source.name} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))}, parquet, tar or npz)")
    return source


def _open_path(spec: str, labeled: bool) -> Source:
    """Open a path, a glob or a dataset of the hub, with its options."""
    path, options = _split(spec)
    if path.startswith("hf-hub:"):
        image, label, config = (options.get(key) for key in ("image", "label", "config"))
        return HubImages(path.removeprefix("hf-hub:"), labeled, image, label, options.get("split", "train"), config)
    refuse(spec, options, ("split", "config"), f"{path}; they are for hf-hub:OWNER/NAME")
    if labeled and is_annotated(path):
        raise DmcError(
            f"{path} has boxes, which are for detectors; a classifier wants a folder per class, parquet or npz"
        )
    files = _matched(path)
    groups = [files] if labeled else _grouped_by_kind(files)
    return _joined([_open_files(spec, options, group, labeled) for group in groups], name=path)


def _split(spec: str) -> tuple[str, dict[str, str]]:
    return split_spec(spec, SETTINGS)


def _matched(path: str) -> list[Path]:
    """Give the file or folder of this name, or those that match it as a glob."""
    files = [Path(path)] if Path(path).exists() else sorted(map(Path, glob.glob(path)))
    if not files:
        raise DmcError(f"no such file or folder: {path}")
    for file in files:
        require_undisguised(file)
    return files


def _grouped_by_kind(files: Sequence[Path]) -> list[list[Path]]:
    """Group shards of one kind, and image files; a folder or an array is a group of its own."""
    groups: dict[str, list[Path]] = {}
    for file in files:
        suffix = file.suffix.lower()
        alone = file.is_dir() or suffix == ".npz"
        kind = next((kind for kind, suffixes in KINDS.items() if suffix in suffixes), suffix)
        groups.setdefault(str(file) if alone else kind, []).append(file)
    return list(groups.values())


def _open_files(spec: str, options: dict[str, str], files: list[Path], labeled: bool) -> Source:
    """Open a folder, or files of one kind, as one source."""
    path, image, label = name_of(files), options.get("image"), options.get("label")
    if len(files) == 1 and files[0].is_dir():
        if labeled:
            require_one_set(files[0])
        folder = FolderImages(files[0], labeled)
        shards = [] if len(folder) else sorted(f for f in files[0].rglob("*") if f.suffix in (".parquet", ".tar"))
        if not shards:
            refuse(spec, options, ("image", "label"), f"the folder {path}; they are for parquet")
            return folder
        if labeled and len(shards) > 1:  # they may well be the training and the test set
            raise DmcError(f"{path} holds {len(shards)} files: name one, or give a glob such as '{shards[0]}'")
        files = shards
    suffixes = {file.suffix.lower() for file in files}
    if suffixes == {".parquet"}:
        return ParquetImages(files, labeled, image, label)
    refuse(spec, options, ("image", "label"), f"{path}; they are for parquet")
    if suffixes <= KINDS["tar"] and not labeled:
        return TarImages(files)
    if suffixes <= KINDS["image"] and not labeled:
        return FileImages(path, files)
    if suffixes == {".npz"} and len(files) == 1:
        return _npz(files[0])
    kinds = "a folder per class, parquet or npz" if labeled else "a folder, parquet, tar shards or npz"
    raise DmcError(f"cannot read images from {path}: expected {kinds}")


def _npz(path: Path) -> ArrayImages:
    """Read the arrays `images` and, if there are any, `labels` (numbers or names) and `classes` (names)."""
    content = read_arrays(path, ("images", "labels", "classes"))
    for key, kinds, what in (("labels", "iuU", "whole numbers or texts"), ("classes", "U", "texts")):
        found = content.get(key)
        if found is not None and (found.dtype.kind not in kinds or found.ndim != 1):
            raise DmcError(f"{path}: {key!r} must be a list of {what}, not {found.dtype} of shape {found.shape}")
    labels, classes = content.get("labels"), [str(name) for name in content.get("classes", ())]
    if labels is not None and (not classes or labels.dtype.kind == "U"):
        values, labels = np.unique(labels, return_inverse=True)
        classes = [str(value) for value in values]
    return ArrayImages(content["images"], labels, classes, str(path))
