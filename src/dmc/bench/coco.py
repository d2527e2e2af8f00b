"""Which COCO images the paper takes as auxiliary data: functions of the annotation file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dmc.data.sources import UNLABELED, Record, Source, permuted
from dmc.detect.annotations import read_coco
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
OTHERS = 98_495  # images of COCO's training set that the paper takes


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
    there = _categories(annotations)
    ours = {IN_COCO.get(name, name) for name in VOC}
    return _chosen("COCO with other objects", annotations, images, [i for i, names in there.items() if names - ours])


def without_voc_objects(annotations: Path, images: Path) -> CocoImages:
    """*Exclusive* auxiliary data: images that show no object of VOC's 20 classes, but some other one."""
    there = _categories(annotations)
    ours = {IN_COCO.get(name, name) for name in VOC}
    chosen = [i for i, names in there.items() if names and not names & ours]
    return _chosen("COCO without VOC's objects", annotations, images, chosen)


def _categories(annotations: Path) -> dict[int, set[str]]:
    """For each image, the names of all categories in it."""
    content = read_coco(annotations)
    name_of = {category["id"]: category["name"] for category in content["categories"]}
    absent = [name for name in (IN_COCO.get(n, n) for n in VOC) if name not in name_of.values()]
    if absent:
        raise DmcError(f"{annotations} has no category {absent[0]!r}: it is not COCO's own")
    there: dict[int, set[str]] = {image["id"]: set() for image in content["images"]}
    for item in content["annotations"]:
        there[item["image_id"]].add(name_of[item["category_id"]])
    return there


def _chosen(name: str, annotations: Path, images: Path, chosen: Sequence[int]) -> CocoImages:
    wanted = set(chosen)
    files = [images / image["file_name"] for image in read_coco(annotations)["images"] if image["id"] in wanted]
    if not files:
        raise DmcError(f"{annotations}: no image is left for {name}")
    return CocoImages(name, files)
