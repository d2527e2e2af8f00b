"""Images with boxes, in the VOC layout (XML) or in the COCO layout (JSON).

A box that reaches beyond its image is cut at the border. If nothing of it remains, it is left out with a warning. An
annotation of an unknown category is an error. VOC counts pixels from 1, and its right and bottom pixels belong to the
box. Here the corners of a box are borders between pixels, counted from 0, so one is subtracted from VOC's left and top.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field, ValidationError

from dmc.classes import Classes, ClassUnion
from dmc.data.decode import open_image, upright_size
from dmc.data.sources import UNLABELED, Record, Source, permuted
from dmc.data.untrusted import Below, Refused, require_class_names
from dmc.errors import DmcError, first_line, reason_of
from dmc.files import read_bytes, read_text
from dmc.specs import refuse, split_spec

log = logging.getLogger("dmc")
LONGEST_SIDE = 2**20  # pixels
MOST_COCO_BYTES = 2**30  # of an annotation file; the largest of COCO's own has half of that
Box = tuple[float, float, float, float]  # left, top, right, bottom
Named = tuple[str, Box, bool]  # class name, box, difficult
Labeled = tuple[int, Box, bool]  # label, box, difficult


class Objects(NamedTuple):
    """The annotated objects of one image, in the pixels of its full size."""

    boxes_M4: npt.NDArray[np.float32]  # corners: left, top, right, bottom
    labels_M: npt.NDArray[np.int64]
    difficult_M: npt.NDArray[np.bool_]
    width: int
    height: int


@dataclass(frozen=True)
class AnnotatedImage:
    """An image (a file, pixels, or refused) and its objects; a label is a position in the source's `classes`."""

    image: Path | npt.NDArray[np.uint8] | Refused
    objects: Objects


class DetectionImages(Source):
    """Images with boxes. `keep` hides the objects of other classes, for a detector that must not know them."""

    def __init__(self, name: str, classes: Sequence[str], scenes: Sequence[AnnotatedImage]) -> None:
        self.name, self.classes, self.images = name, tuple(classes), list(scenes)

    def __len__(self) -> int:
        return len(self.images)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        for i in permuted(range(len(self)), seed):
            scene = self.images[i]
            name = str(scene.image) if isinstance(scene.image, Path) else f"{self.name}[{i}]"
            size = (scene.objects.width, scene.objects.height)
            yield Record(scene.image, UNLABELED, name, scene.objects, size)

    def keep(self, names: Iterable[str], empty: bool = False) -> DetectionImages:
        """Keep the objects of these classes, and the images that show one to learn; with `empty`, keep all images."""
        kept = Classes.of(self.classes).keep(names, self.name)
        new_label = np.full(len(self.classes), -1)
        new_label[list(kept.columns)] = np.arange(len(kept))
        scenes = []
        for scene in self.images:
            found = scene.objects
            there = new_label[found.labels_M] >= 0
            if (there & ~found.difficult_M).any() or empty:
                labels = new_label[found.labels_M[there]]
                parts = found._replace(
                    boxes_M4=found.boxes_M4[there], labels_M=labels, difficult_M=found.difficult_M[there]
                )
                scenes.append(AnnotatedImage(scene.image, parts))
        return DetectionImages(self.name, kept.names, scenes).require_objects()

    def rename(self, new_names: Mapping[str, str]) -> DetectionImages:
        if not new_names:
            return self
        union = ClassUnion.of([Classes.of(self.classes).renamed(new_names, self.name)])
        new_label = np.array(union.columns[0], dtype=np.int64)
        found = [(scene.image, scene.objects) for scene in self.images]
        scenes = [AnnotatedImage(image, seen._replace(labels_M=new_label[seen.labels_M])) for image, seen in found]
        return DetectionImages(self.name, union.names, scenes)

    def require_objects(self) -> DetectionImages:
        """Refuse images without objects, or with difficult ones only: there is nothing to learn or to test."""
        if all(scene.objects.difficult_M.all() for scene in self.images):
            whose = f" of {', '.join(self.classes)}" if self.classes else ""
            raise DmcError(f"{self.name} has no object{whose} that is not marked as difficult")
        return self


def is_annotated(path: str | Path) -> bool:
    """Tell whether a path looks like a VOC folder or a COCO file."""
    return (Path(path) / "Annotations").is_dir() or Path(path).suffix == ".json"


def open_annotated(place: str | Path | Source) -> DetectionImages:
    """Open images with boxes: a VOC folder (`VOC2007`, `VOC2007,split=test`) or a COCO file (`a.json,images=DIR`)."""
    if isinstance(place, DetectionImages):
        return place
    if isinstance(place, Source):
        raise DmcError(f"{place.name} holds no boxes, which a detector learns from")
    path, options = split_spec(str(place), ("split", "images"))
    if (Path(path) / "Annotations").is_dir():
        refuse(str(place), options, ("images",), "a VOC folder")
        return voc(Path(path), options.get("split")).require_objects()
    if Path(path).suffix == ".json" and Path(path).is_file():
        refuse(str(place), options, ("split",), "a COCO file")
        return coco(Path(path), Path(options["images"]) if "images" in options else None).require_objects()
    if not Path(path).exists():
        raise DmcError(f"no such file or folder: {path}")
    raise DmcError(
        f"{path} holds no boxes: images with boxes are a VOC folder (Annotations, JPEGImages, ImageSets/Main) "
        "or a COCO file (instances.json,images=FOLDER)"
    )


def voc(folder: Path, split: str | None) -> DetectionImages:
    """Read a VOC folder. `split` names a list in ImageSets/Main; None takes `trainval`, `train`, or all images."""
    lists = folder / "ImageSets" / "Main"
    chosen = split or next((name for name in ("trainval", "train") if (lists / f"{name}.txt").is_file()), None)
    if chosen is None:
        stems = sorted(path.stem for path in (folder / "Annotations").glob("*.xml"))
    elif (lists / f"{chosen}.txt").is_file():
        stems = _read_split(lists / f"{chosen}.txt")
    else:
        known = ", ".join(sorted(path.stem for path in lists.glob("*.txt"))) or "none"
        raise DmcError(f"{folder} has no split {chosen!r} (it has: {known})")
    annotations, images = Below(folder / "Annotations"), Below(folder / "JPEGImages")
    found = [_read_voc_file(annotations(f"{stem}.xml"), images) for stem in stems]
    classes = sorted({name for _, rows, _ in found for name, _, _ in rows})
    label_of = {name: i for i, name in enumerate(classes)}
    kept = [(path, size, [(label_of[name], box, hard) for name, box, hard in rows]) for path, rows, size in found]
    require_class_names(classes, str(folder))
    return DetectionImages(f"{folder} ({chosen or 'all'})", classes, _with_cut_boxes(kept))


def _read_split(path: Path) -> list[str]:
    """Read the names of a split's images: the first word of each line."""
    return [line.split()[0] for line in read_text(path).splitlines() if line.strip()]


class PlainTree(ElementTree.TreeBuilder):
    """A tree without a DTD, whose entities could unpack to gigabytes; no annotation has one."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise ValueError("a DTD (<!DOCTYPE ...>) is not allowed")


def _read_voc_file(path: Path | Refused, images: Below) -> tuple[Path | Refused, list[Named], tuple[int, int]]:
    """Read one annotation: its image, its objects, and the image's width and height."""
    if isinstance(path, Refused):
        raise DmcError(f"cannot read an annotation: {path.reason}")
    content = read_bytes(path)
    try:
        root = ElementTree.fromstring(content, ElementTree.XMLParser(target=PlainTree()))
        rows = []
        for item in root.iter("object"):
            corners = [float(item.findtext(f"bndbox/{side}") or "nan") for side in ("xmin", "ymin", "xmax", "ymax")]
            left, top, right, bottom = corners
            difficult = (item.findtext("difficult") or "0").strip() == "1"
            rows.append(((item.findtext("name") or "").strip(), (left - 1, top - 1, right, bottom), difficult))
        image = images(root.findtext("filename") or f"{path.stem}.jpg")
        size = (int(root.findtext("size/width") or 0), int(root.findtext("size/height") or 0))
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        raise DmcError(f"cannot read {path}: {first_line(error)}") from None
    if any(not name for name, _, _ in rows):
        raise DmcError(f"{path} has an object without a name")
    if max(size) > LONGEST_SIDE:
        raise DmcError(f"{path}: size: an image is at most {LONGEST_SIDE:,} pixels wide and high")
    return image, rows, size if min(size) > 0 else _image_size(image)


class CocoImage(BaseModel):
    id: int
    file_name: str
    width: int = Field(0, le=LONGEST_SIDE)
    height: int = Field(0, le=LONGEST_SIDE)


class CocoObject(BaseModel):
    id: int | None = None
    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]  # left, top, width, height
    iscrowd: int = 0


class CocoCategory(BaseModel):
    id: int
    name: str = Field(min_length=1)


class CocoFile(BaseModel):
    """The part of a COCO annotation file that dmc reads."""

    images: list[CocoImage]
    annotations: list[CocoObject]
    categories: list[CocoCategory]


def coco(path: Path, images: Path | None) -> DetectionImages:
    """Read a COCO annotation file. Crowds become difficult objects.

    The images are looked for in the folder `images`, or beside the file if it is None. A category without objects is
    left out: nothing could be learned of it.
    """
    content = read_coco(path)
    shown = {item.category_id for item in content.annotations}
    categories = sorted((c for c in content.categories if c.id in shown), key=lambda category: category.id)
    label_of = {category.id: i for i, category in enumerate(categories)}
    rows: dict[int, list[Labeled]] = {image.id: [] for image in content.images}
    for item in content.annotations:
        x, y, width, height = item.bbox
        rows[item.image_id].append((label_of[item.category_id], (x, y, x + width, y + height), bool(item.iscrowd)))
    found: list[tuple[Path | Refused, tuple[int, int], list[Labeled]]] = []
    below = Below(images or path.parent)
    for image in content.images:
        file = below(image.file_name)
        if not found and isinstance(file, Path) and not file.is_file():
            raise DmcError(f"there is no image {file}: say where the images are, {path},images=FOLDER")
        size = (image.width, image.height) if min(image.width, image.height) > 0 else _image_size(file)
        found.append((file, size, rows[image.id]))
    classes = require_class_names([category.name for category in categories], str(path))
    return DetectionImages(str(path), classes, _with_cut_boxes(found))


def read_coco(path: Path) -> CocoFile:
    """Read a COCO annotation file; refuse one with repeated ids, or with an object of an unknown image or category."""
    try:
        content = CocoFile.model_validate_json(read_bytes(path, MOST_COCO_BYTES))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise DmcError(f"{path} is not a COCO annotation file: {place + ': ' if place else ''}{first['msg']}") from None
    images, categories = {image.id for image in content.images}, {category.id for category in content.categories}
    for what, all_of, distinct in (("image", content.images, images), ("category", content.categories, categories)):
        if len(all_of) > len(distinct):
            raise DmcError(f"{path}: several entries have the same {what} id")
    for item in content.annotations:
        if item.category_id not in categories:
            raise DmcError(f"{path}: annotation {item.id} has the unknown category {item.category_id}")
        if item.image_id not in images:
            raise DmcError(f"{path}: annotation {item.id} is of the unknown image {item.image_id}")
    return content


def _image_size(path: Path | Refused) -> tuple[int, int]:
    """Read the width and height of an image whose annotation does not state them."""
    if isinstance(path, Refused):
        raise DmcError(f"cannot read the size of an image: {path.reason}")
    try:
        with open_image(path) as image:
            return upright_size(image)
    except Exception as error:  # broken files make PIL raise anything from SyntaxError to struct.error
        raise DmcError(f"cannot read the size of {path}: {reason_of(error)}") from None


def _with_cut_boxes(found: Sequence[tuple[Path | Refused, tuple[int, int], list[Labeled]]]) -> list[AnnotatedImage]:
    """Cut boxes at the border of their image, and leave out those of which nothing remains."""
    scenes, dropped = [], []
    for path, (width, height), rows in found:
        boxes_M4 = np.array([box for _, box, _ in rows], dtype=np.float64).reshape(-1, 4)
        cut_M4 = boxes_M4.clip(0, [width, height, width, height]).astype(np.float32)
        real_M = (cut_M4[:, 2] > cut_M4[:, 0]) & (cut_M4[:, 3] > cut_M4[:, 1]) & np.isfinite(boxes_M4).all(axis=1)
        dropped += [f"{path}: {box}" for box in boxes_M4[~real_M].tolist()]
        labels_M = np.array([label for label, _, _ in rows], dtype=np.int64)[real_M]
        difficult_M = np.array([hard for _, _, hard in rows], dtype=bool)[real_M]
        scenes.append(AnnotatedImage(path, Objects(cut_M4[real_M], labels_M, difficult_M, width, height)))
    if dropped:
        log.warning(f"{len(dropped)} boxes have no area within their image and are left out (first: {dropped[0]})")
    return scenes
