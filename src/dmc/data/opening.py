"""From what a user typed, or passed, to a source of images."""

from __future__ import annotations

import glob
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from dmc.data.sources import IMAGE_SUFFIXES, ArrayImages, FolderImages, Source, TarImages
from dmc.data.tables import HubImages, ParquetImages
from dmc.errors import DmcError, first_line
from dmc.specs import refuse, split_spec


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
    if len(source) == 0 and labeled and isinstance(source, FolderImages):
        raise DmcError(f"{source.name} has no folder with images in it; labeled data has a folder for each class")
    if len(source) == 0:
        raise DmcError(f"{source.name} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))}, parquet, tar or npz)")
    return source


def _open_path(spec: str, labeled: bool) -> Source:
    path, options = split_spec(spec, ("image", "label", "split", "config"))
    image, label = options.get("image"), options.get("label")
    if path.startswith("hf-hub:"):
        split = options.get("split", "train")
        return HubImages(path.removeprefix("hf-hub:"), labeled, image, label, split, options.get("config"))
    refuse(spec, options, ("split", "config"), f"{path}; they are for hf-hub:OWNER/NAME")
    if labeled and ((Path(path) / "Annotations").is_dir() or path.endswith(".json")):
        raise DmcError(
            f"{path} has boxes, which are for detectors; a classifier wants a folder per class, parquet or npz"
        )
    files = [Path(path)] if Path(path).exists() else sorted(map(Path, glob.glob(path)))
    if not files:
        raise DmcError(f"no such file or folder: {path}")
    if len(files) == 1 and files[0].is_dir():
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
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise DmcError(f"cannot read {path}: {first_line(error)}") from None
    if "images" not in content:
        raise DmcError(f"{path} has no array 'images' (it has: {', '.join(content) or 'nothing'})")
    labels = content.get("labels")
    classes = [str(name) for name in content.get("classes", [])]
    if labels is not None and (not classes or labels.dtype.kind in "US"):
        values, labels = np.unique(labels, return_inverse=True)
        classes = [str(value) for value in values]
    return ArrayImages(content["images"], labels, classes, str(path))
