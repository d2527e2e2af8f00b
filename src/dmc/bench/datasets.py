"""The data sets of the paper: find their files below the data root, and download them; `readers.py` reads them.

What a data set holds, how large it is and where it comes from is data, in recipes/datasets.yaml.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict

from dmc.bench import readers
from dmc.bench.coco import with_other_objects, without_voc_objects
from dmc.data.annotations import open_annotated
from dmc.data.readers import FolderImages, TarImages
from dmc.data.subsets import JoinedImages
from dmc.data.tables import ParquetImages
from dmc.errors import DmcError, first_line

log = logging.getLogger("dmc")


class Archive(BaseModel):
    """A file to download, and the folder below the data root to unpack it into."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    md5: str | None  # None: not checked
    into: str = "."


class About(BaseModel):
    """What a user needs to know about a data set: what it holds, its size, and where to get it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    images: str  # how many, of what
    size: str
    page: str
    archives: tuple[Archive, ...]
    hub: str | None  # the Hugging Face repository of a parquet copy


@dataclass(frozen=True)
class Layout:
    """One way in which the files of a data set may lie below the data root, or below its folder `aux`."""

    patterns: tuple[str, ...]  # each must match at least one file
    read: Callable[..., readers.Splits]  # takes a list of matching files for each pattern

    def found(self, root: Path) -> list[list[Path]] | None:
        """Give the files that match each pattern; None if any pattern matches nothing."""
        for base in (root, root / "aux"):
            matches = [_of_one_folder(sorted(base.glob(pattern)), base) for pattern in self.patterns]
            if all(matches):
                return matches
        return None


def _of_one_folder(matches: list[Path], base: Path) -> list[Path]:
    """Keep the files of the first folder: `dtd*` may match two copies of a data set."""
    return [path for path in matches if path.relative_to(base).parts[0] == matches[0].relative_to(base).parts[0]]


def open_dataset(name: str, root: Path | None) -> readers.Splits:
    """Open a data set; where it is missing, say which files it needs and where to get them."""
    for layout in LAYOUTS[name]:
        matches = layout.found(root) if root else None
        if matches:
            return layout.read(*matches)
    raise DmcError(missing(name, root))


def described(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Say of each data set what it holds, how large it is and where it comes from."""
    about = {name: DATASETS[name] for name in names}
    return {name: {"what": a.images, "size": a.size, "from": a.page} for name, a in about.items()}


def missing(name: str, root: Path | None) -> str:
    """Word the error about a missing data set: which files to put where, and where to get them."""
    about = DATASETS[name]
    wanted = " or ".join(" and ".join(layout.patterns) for layout in LAYOUTS[name]).replace("**/", "")
    where = f"under {root}" if root else "under a data root (none is given)"
    hub = f"; parquet copy: hf-hub {about.hub}" if about.hub else ""
    fetch = "; it can be downloaded" if about.archives or about.hub else ""
    return f"{about.title} is missing: put {wanted} {where} ({about.size}, from {about.page}{hub}){fetch}"


def require(names: Iterable[str], root: Path | None) -> None:
    """Refuse to go on without these data sets; one error names all that are missing."""
    absent = [missing(name, root) for name in names if root is None or not _there(name, root)]
    if absent:
        raise DmcError("; ".join(dict.fromkeys(absent)))


def download(names: Iterable[str], root: Path | None) -> None:
    """Download the data sets that are missing: the official archives, or the hub's copy where there are none."""
    from torchvision.datasets.utils import download_and_extract_archive, download_url

    if root is None:
        raise DmcError("a download needs a data root, and none is given")
    for name in names:
        about = DATASETS[name]
        if _there(name, root):
            continue
        log.info(f"fetching {about.title}, {about.size}, into {root}")
        try:
            for archive in about.archives:
                single_file = archive.url.endswith(".mat")
                get = download_url if single_file else download_and_extract_archive
                get(archive.url, str(root / archive.into), md5=archive.md5)
            if not about.archives and about.hub:
                from huggingface_hub import snapshot_download

                snapshot_download(
                    about.hub, repo_type="dataset", local_dir=root / name, allow_patterns=["*.parquet", "**/*.parquet"]
                )
        except Exception as error:  # networks, servers and archives fail in many ways
            raise DmcError(f"cannot fetch {about.title}: {first_line(error)}; {missing(name, root)}") from None


def _there(name: str, root: Path) -> bool:
    return any(layout.found(root) for layout in LAYOUTS[name])


def _voc(folder: str, *splits: str) -> Layout:
    """Describe a VOC folder; `splits` are the lists of its training and of its test images."""

    def read(*lists: list[Path]) -> readers.Splits:
        return readers.Splits(*(open_annotated(f"{path.parents[2]},split={path.stem}") for (path,) in lists))

    return Layout(tuple(f"{folder}/ImageSets/Main/{split}.txt" for split in splits), read)


COCO = ("coco/annotations/instances_train2017.json", "coco/train2017")
LAYOUTS: dict[str, tuple[Layout, ...]] = {
    "cifar100": (
        Layout(("cifar100/**/train*.parquet", "cifar100/**/test*.parquet"), readers.table("fine_label")),
        Layout(
            tuple(f"cifar-100-binary/{f}" for f in ("train.bin", "test.bin", "fine_label_names.txt")),
            readers.cifar_binary,
        ),
    ),
    "imagenet32": (
        Layout(
            ("Imagenet32_train_npz/train_data_batch_*.npz",),
            lambda batches: readers.Splits(readers.DownsampledImageNet(batches)),
        ),
        Layout(("imagenet32/**/train*.parquet",), readers.imagenet_table),
    ),
    "tiny-imagenet": (
        Layout(
            ("tiny?imagenet/**/train*.parquet",), lambda s: readers.tiny_imagenet(ParquetImages(s, True, None, None))
        ),
        Layout(("tiny-imagenet-200/train",), lambda train: readers.tiny_imagenet(FolderImages(train[0], labeled=True))),
    ),
    "tiny-imagenet-more": (
        Layout(
            ("tiny?imagenet/**/train*.parquet", "tiny?imagenet?more/**/train*.parquet"),
            lambda some, more: readers.tiny_imagenet(
                JoinedImages(*(ParquetImages(files, True, None, None) for files in (some, more)))
            ),
        ),
    ),
    "mnist": (
        Layout(("mnist/**/train*.parquet",), readers.unlabeled_table),
        Layout(("mnist/train-images-idx3-ubyte",), readers.mnist),
        Layout(("mnist/train-images-idx3-ubyte.gz",), readers.mnist),
    ),
    "svhn": (
        Layout(("svhn/train*.parquet",), readers.unlabeled_table),
        Layout(("svhn/cropped_digits/train*.parquet",), readers.unlabeled_table),
        Layout(("svhn/train_32x32.mat",), readers.svhn),
    ),
    "dtd": (
        Layout(("dtd/images",), lambda images: readers.Splits(FolderImages(images[0], labeled=False))),
        Layout(("dtd*/**/train*.parquet",), readers.unlabeled_table),
    ),
    "places365": (
        Layout(("data_256*",), lambda images: readers.Splits(FolderImages(images[0], labeled=False))),
        Layout(("places365_standard/train",), lambda train: readers.Splits(FolderImages(train[0], labeled=False))),
        Layout(("places365/**/train*.parquet",), readers.unlabeled_table),
    ),
    "cub200": (
        Layout(("CUB_200_2011/classes.txt",), readers.cub),
        Layout(("cub200*/**/train*.parquet", "cub200*/**/test*.parquet"), readers.cub_table),
    ),
    "birdsnap": (
        Layout(("birdsnap/download/images",), lambda images: readers.birdsnap(FolderImages(images[0], labeled=True))),
        Layout(
            ("birdsnap/**/train*.parquet",), lambda shards: readers.birdsnap(ParquetImages(shards, True, None, None))
        ),
    ),
    "voc2007": (_voc("VOCdevkit/VOC2007", "trainval", "test"),),
    "voc-small": (_voc("voc2012_lite", "train", "val"),),
    "coco-others": (Layout(COCO, lambda file, images: readers.Splits(with_other_objects(file[0], images[0]))),),
    "coco-exclusive": (Layout(COCO, lambda file, images: readers.Splits(without_voc_objects(file[0], images[0]))),),
    "coco-small": (Layout(("coco/coco-*.tar",), lambda shards: readers.Splits(TarImages(shards))),),
    "coco-more": (
        Layout(
            ("coco/coco-*.tar", "coco_more/coco-*.tar"),
            lambda some, more: readers.Splits(JoinedImages(TarImages(some), TarImages(more))),
        ),
    ),
}

DATASETS: dict[str, About] = {
    name: About.model_validate(entry)
    for name, entry in yaml.safe_load((files("dmc.recipes") / "datasets.yaml").read_text(encoding="utf-8")).items()
}
