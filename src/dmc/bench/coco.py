"""The COCO images that the paper takes as auxiliary data, chosen by the annotation file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dmc.data.annotations import read_coco
from dmc.data.sources import UNLABELED, Record, Source, permuted
from dmc.data.untrusted import Below
from dmc.errors import DmcError

VOC = (
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
)
IN_COCO = {
    "aeroplane": "airplane",
    "diningtable": "dining table",
    "motorbike": "motorcycle",
    "pottedplant": "potted plant",
    "sofa": "couch",
    "tvmonitor": "tv",
}  # COCO's names, where they differ from VOC's
OURS = {IN_COCO.get(name, name) for name in VOC}  # VOC's 20 classes as COCO names them


class CocoImages(Source):
    """Unlabeled images of a COCO folder."""

    def __init__(self, name: str, folder: Path, files: Sequence[str]) -> None:
        self.name, self.folder, self.files = name, folder, list(files)

    def __len__(self) -> int:
        return len(self.files)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        below = Below(self.folder)
        for file in permuted(self.files, seed):
            yield Record(below(file), UNLABELED, str(self.folder / file))


def with_other_objects(annotations: Path, images: Path) -> CocoImages:
    """Give the images that show at least one of the 60 categories that VOC lacks; they may show VOC's as well."""
    return _chosen("COCO with other objects", annotations, images, lambda names: bool(names - OURS))


def without_voc_objects(annotations: Path, images: Path) -> CocoImages:
    """Give *exclusive* auxiliary data: images that show some object, but none of VOC's 20 classes."""
    return _chosen("COCO without VOC's objects", annotations, images, lambda names: bool(names) and not names & OURS)


def _chosen(name: str, annotations: Path, images: Path, wanted: Callable[[set[str]], bool]) -> CocoImages:
    """Give the images for whose set of category names `wanted` is true."""
    content = read_coco(annotations)
    name_of = {category.id: category.name for category in content.categories}
    absent = sorted(OURS - set(name_of.values()))
    if absent:
        raise DmcError(f"{annotations} has no category {absent[0]!r}: it is not COCO's own file")
    shown: dict[int, set[str]] = {image.id: set() for image in content.images}
    for item in content.annotations:
        shown[item.image_id].add(name_of[item.category_id])
    files = [image.file_name for image in content.images if wanted(shown[image.id])]
    if not files:
        raise DmcError(f"{annotations}: no image is left for {name}")
    return CocoImages(name, images, files)
