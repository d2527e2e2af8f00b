"""Which COCO images the paper takes as auxiliary data: functions of the annotation file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dmc.data.annotations import read_coco
from dmc.data.sources import UNLABELED, Record, Source, permuted
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
}  # where the names differ
OURS = {IN_COCO.get(name, name) for name in VOC}


class CocoImages(Source):
    """Unlabeled images of a COCO folder."""

    def __init__(self, name: str, paths: Sequence[Path]) -> None:
        self.name, self.paths = name, list(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        for path in permuted(self.paths, seed):
            yield Record(path, UNLABELED, str(path))


def with_other_objects(annotations: Path, images: Path) -> CocoImages:
    """Images that show at least one of the 60 categories that VOC does not have; VOC's may be there, too."""
    return _chosen("COCO with other objects", annotations, images, lambda names: bool(names - OURS))


def without_voc_objects(annotations: Path, images: Path) -> CocoImages:
    """*Exclusive* auxiliary data: images that show no object of VOC's 20 classes, but some other one."""
    return _chosen("COCO without VOC's objects", annotations, images, lambda names: bool(names) and not names & OURS)


def _chosen(name: str, annotations: Path, images: Path, wanted: Callable[[set[str]], bool]) -> CocoImages:
    """The images whose categories are wanted."""
    content = read_coco(annotations)
    name_of = {category.id: category.name for category in content.categories}
    absent = sorted(OURS - set(name_of.values()))
    if absent:
        raise DmcError(f"{annotations} has no category {absent[0]!r}: it is not COCO's own")
    there: dict[int, set[str]] = {image.id: set() for image in content.images}
    for item in content.annotations:
        there[item.image_id].add(name_of[item.category_id])
    files = [images / image.file_name for image in content.images if wanted(there[image.id])]
    if not files:
        raise DmcError(f"{annotations}: no image is left for {name}")
    return CocoImages(name, files)
