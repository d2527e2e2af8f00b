"""Annotations in both layouts, what is wrong with them, and how images and boxes become batches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dmc.data.annotations import DetectionImages, open_annotated
from dmc.data.detection_batch import DetectionBatch, ShorterSide
from dmc.data.loader import open_loader
from dmc.data.open import open_images, open_labeled
from dmc.data.sources import Record
from dmc.errors import DmcError
from tests.detectors import write_voc


def voc_with(folder: Path, objects: str, size: str = "<size><width>40</width><height>30</height></size>") -> Path:
    """Write a VOC folder with one image of 40 x 30 pixels, and these objects in it."""
    for part in ("Annotations", "JPEGImages"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 30)).save(folder / "JPEGImages" / "a.jpg")
    (folder / "Annotations" / "a.xml").write_text(f"<annotation><filename>a.jpg</filename>{size}{objects}</annotation>")
    return folder


def voc_object(name: str, *box: float, difficult: int = 0) -> str:
    sides = "".join(f"<{side}>{v}</{side}>" for side, v in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True))
    return f"<object><name>{name}</name><difficult>{difficult}</difficult><bndbox>{sides}</bndbox></object>"


def only(source: DetectionImages) -> Record:
    (record,) = source.records()
    return record


def test_voc_pixels_become_borders(tmp_path: Path) -> None:
    folder = voc_with(tmp_path, voc_object("cat", 1, 1, 40, 30) + voc_object("dog", 3, 5, 3, 5, difficult=1))
    source = open_annotated(folder)
    objects = only(source).annotation
    assert objects is not None
    assert source.classes == ("cat", "dog")
    assert objects.boxes_M4.tolist() == [[0, 0, 40, 30], [2, 4, 3, 5]]  # a box of one pixel is one wide
    assert objects.difficult_M.tolist() == [False, True]
    assert (objects.width, objects.height) == (40, 30)


def test_a_missing_size_is_read_from_the_image(tmp_path: Path) -> None:
    objects = only(open_annotated(voc_with(tmp_path, voc_object("cat", 1, 1, 9, 9), size=""))).annotation
    assert objects is not None
    assert (objects.width, objects.height) == (40, 30)


def test_a_size_that_is_not_the_images_is_found_out(tmp_path: Path) -> None:
    turned = "<size><width>30</width><height>40</height></size>"
    source = open_annotated(voc_with(tmp_path, voc_object("cat", 1, 1, 9, 9), size=turned))
    for transform in (ShorterSide(64), ShorterSide(64, square=True)):  # a square has no shape of its own
        with pytest.raises(DmcError, match=r"a\.jpg: it has 40x30 pixels, and its annotation is for 30x40"):
            open_loader(source, transform)
    smaller = "<size><width>20</width><height>15</height></size>"
    resized = open_annotated(voc_with(tmp_path / "smaller", voc_object("cat", 1, 1, 9, 9), size=smaller))
    batch = DetectionBatch.of(next(open_loader(resized, ShorterSide(60)).in_order(1)))
    assert batch.boxes[0].tolist() == [[0, 0, 36, 36]]  # 9 of 20 pixels are 36 of 80


def test_boxes_outside_are_cut_and_empty_ones_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    inside, outside = voc_object("cat", -4, 20, 20, 90), voc_object("cat", 60, 1, 70, 9)
    source = open_annotated(voc_with(tmp_path, inside + outside + voc_object("cat", 9, 9, 8, 20)))
    objects = only(source).annotation
    assert objects is not None
    assert objects.boxes_M4.tolist() == [[0, 19, 20, 30]]
    assert "2 boxes have no area within their image and are left out (first: " in caplog.text


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        ("<object><name>cat", "a.xml: mismatched tag"),
        (voc_object("", 1, 1, 5, 5), "a.xml has an object without a name"),
        ("<object><name>cat</name><bndbox><xmin>one</xmin></bndbox></object>", "a.xml: could not convert string"),
    ],
)
def test_bad_xml(tmp_path: Path, objects: str, words: str) -> None:
    with pytest.raises(DmcError, match=words):
        open_annotated(voc_with(tmp_path, objects))


def test_files_in_a_strange_encoding_are_named(tmp_path: Path) -> None:
    folder = voc_with(tmp_path, voc_object("cat", 1, 1, 9, 9))
    annotation = folder / "Annotations" / "a.xml"
    annotation.write_text('<?xml version="1.0" encoding="klingon"?>' + annotation.read_text())
    with pytest.raises(DmcError, match=r"cannot read .*a\.xml: unknown encoding"):
        open_annotated(folder)
    (folder / "ImageSets" / "Main").mkdir(parents=True)
    (folder / "ImageSets" / "Main" / "train.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DmcError, match=r"cannot read .*train\.txt: it is not text in UTF-8"):
        open_annotated(folder)


def test_splits(tmp_path: Path) -> None:
    write_voc(tmp_path, 3, ["red"], split="train")
    write_voc(tmp_path, 2, ["red"], split="val")
    assert (len(open_annotated(tmp_path)), len(open_annotated(f"{tmp_path},split=val"))) == (3, 2)
    with pytest.raises(DmcError, match=r"has no split 'test' \(it has: train, val\)"):
        open_annotated(f"{tmp_path},split=test")
    with pytest.raises(DmcError, match="holds no boxes"):
        open_annotated(tmp_path / "JPEGImages")
    with pytest.raises(DmcError, match=r"no such file or folder: .*gone"):
        open_annotated(tmp_path / "gone")
    with pytest.raises(DmcError, match="has boxes, which are for detectors"):
        open_labeled(tmp_path)
    with pytest.raises(DmcError, match="'images' is not a setting of a VOC folder"):
        open_annotated(f"{tmp_path},images=x")


def test_scenes_in_which_nothing_is_marked_teach_nothing(tmp_path: Path) -> None:
    with pytest.raises(DmcError, match=r"\(all\) has no object that is not marked as difficult$"):
        open_annotated(voc_with(tmp_path, ""))
    with pytest.raises(DmcError, match=r"\(all\) has no object of cat that is not"):
        open_annotated(voc_with(tmp_path, voc_object("cat", 1, 1, 9, 9, difficult=1)))
    with pytest.raises(DmcError, match=r"instances.json has no object that is not"):
        open_annotated(coco_file(tmp_path, annotations=[]))


def test_an_image_with_nothing_to_learn_is_left_out(tmp_path: Path) -> None:
    """From an image of a dog and a difficult cat, a detector of cats would learn that both are background."""
    source = open_annotated(
        voc_with(tmp_path, voc_object("dog", 1, 1, 9, 9) + voc_object("cat", 1, 1, 9, 9, difficult=1))
    )
    with pytest.raises(DmcError, match="has no object of cat that is not marked as difficult"):
        source.keep(["cat"])
    assert len(source.keep(["dog"])) == 1


def coco_file(folder: Path, **changes: object) -> Path:
    content = {
        "images": [{"id": 7, "file_name": "a.png", "width": 20, "height": 10}, {"id": 8, "file_name": "b.png"}],
        "categories": [{"id": 5, "name": "dog"}, {"id": 2, "name": "cat"}, {"id": 3, "name": "cow"}],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 5, "bbox": [2, 3, 4, 5], "iscrowd": 0},
            {"id": 2, "image_id": 7, "category_id": 2, "bbox": [0, 0, 20, 10], "iscrowd": 1},
        ],
    }
    for name in ("a.png", "b.png"):
        Image.new("RGB", (20, 10)).save(folder / name)
    path = folder / "instances.json"
    path.write_text(json.dumps(content | changes))
    return path


def test_coco(tmp_path: Path) -> None:
    source = open_annotated(coco_file(tmp_path))
    assert source.classes == ("cat", "dog")  # in the order of their ids, without the cow, which has no object
    first, second = source.records()
    assert first.annotation is not None
    assert second.annotation is not None
    assert first.annotation.boxes_M4.tolist() == [[2, 3, 6, 8], [0, 0, 20, 10]]
    assert first.annotation.labels_M.tolist() == [1, 0]
    assert first.annotation.difficult_M.tolist() == [False, True]
    assert len(second.annotation.labels_M) == 0  # images without objects are kept
    assert second.annotation.width == 20
    (tmp_path / "annotations").mkdir()
    moved = (tmp_path / "instances.json").rename(tmp_path / "annotations" / "instances.json")
    assert len(open_annotated(f"{moved},images={tmp_path}")) == 2
    with pytest.raises(DmcError, match=r"there is no image .*a\.png: say where the images are, .*json,images=FOLDER"):
        open_annotated(moved)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"annotations": [{"id": 9, "image_id": 7, "category_id": 1, "bbox": [0, 0, 1, 1]}]}, "unknown category 1"),
        ({"annotations": [{"id": 9, "image_id": 1, "category_id": 2, "bbox": [0, 0, 1, 1]}]}, "unknown image 1"),
        ({"annotations": [{"id": 9, "image_id": 7, "category_id": 2, "bbox": [0, 0]}]}, r"annotations.0.bbox.2: Field"),
        (
            {"annotations": [{"id": 9, "image_id": 7, "bbox": [0, 0, 1, 1]}]},
            "annotations.0.category_id: Field required",
        ),
        ({"annotations": None}, "annotations: Input should be a valid"),
        ({"images": [{"file_name": "a.png"}]}, "images.0.id: Field required"),
        ({"categories": [{"id": 2, "name": ""}]}, "categories.0.name: String should have at least 1 character"),
        ({"images": {}}, "images: Input should be a valid"),
        (
            {"categories": [{"id": 2, "name": "cat"}, {"id": 2, "name": "dog"}]},
            "several entries have the same category id",
        ),
    ],
)
def test_bad_coco(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(DmcError, match=words):
        open_annotated(coco_file(tmp_path, **changes))


def test_broken_json(tmp_path: Path) -> None:
    path = tmp_path / "instances.json"
    for text, words in (
        ("{", "Invalid JSON"),
        ("null", "Input should be an object"),
        ('{"images": []}', "annotations"),
    ):
        path.write_text(text)
        with pytest.raises(DmcError, match=rf"instances.json is not a COCO annotation file: {words}"):
            open_annotated(path)


def test_a_rotated_photograph_without_a_stated_size_is_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side
    folder = voc_with(tmp_path, voc_object("cat", 1, 1, 9, 9), size="")
    Image.new("RGB", (40, 30)).save(folder / "JPEGImages" / "a.jpg", exif=exif)
    objects = only(open_annotated(folder)).annotation
    assert objects is not None
    assert (objects.width, objects.height) == (30, 40)


def test_other_classes_are_hidden(squares: Path) -> None:
    everything = open_annotated(squares)
    red = everything.keep(["red"])
    assert 0 < len(red) < len(everything)
    assert all(set(r.annotation.labels_M) == {0} for r in red.records() if r.annotation is not None)
    assert len(everything.keep(["red"], empty=True)) == len(everything)


def test_the_shorter_side_is_resized_and_batches_are_padded() -> None:
    transform = ShorterSide(64)
    assert transform.shape(200, 100) == (107, 53)  # 128 would be longer than 1333/800 of the size
    assert transform.shape(90, 100) == (64, 71)
    wide, tall = (transform(Image.new("RGB", size, "white")) for size in ((96, 80), (80, 96)))
    assert (tuple(wide.shape), tuple(tall.shape)) == ((3, 64, 77), (3, 77, 64))
    batch = transform.batch([(Record(b"", -1, "w"), wide), (Record(b"", -1, "t"), tall)])
    assert tuple(batch.images_N3HW.shape) == (2, 3, 96, 96)
    assert batch.images_N3HW[0, 0].float().sum() == 255 * 64 * 77  # the rest is black
    assert batch.sizes == [(64, 77), (77, 64)]


def test_boxes_follow_their_image(squares: Path) -> None:
    """The middle of every box, resized or mirrored, has the colour of its class."""
    source = open_annotated(squares)
    torch.manual_seed(0)
    for batch in open_loader(source, ShorterSide(50)).in_order(20):
        assert isinstance(batch, DetectionBatch)
        for shown in (batch, batch.augmented(None, flip=True)):
            for image, boxes, labels in zip(shown.images_N3HW, shown.boxes, shown.labels, strict=True):
                for (left, top, right, bottom), label in zip(boxes.tolist(), labels.tolist(), strict=True):
                    middle = image[:, int((top + bottom) / 2), int((left + right) / 2)]
                    assert source.classes[label] == ("red", "green", "blue")[int(middle.argmax())]
                    inside = image[:, int(top) + 2 : int(bottom) - 1, int(left) + 2 : int(right) - 1].float()
                    assert inside.std(dim=(1, 2)).max() < 40  # nothing but the square


def test_half_of_the_images_are_mirrored(squares: Path) -> None:
    torch.manual_seed(0)
    (batch,) = open_loader(open_annotated(squares), ShorterSide(50)).in_order(60)
    assert isinstance(batch, DetectionBatch)
    moved = (batch.augmented(None, flip=True).images_N3HW != batch.images_N3HW).flatten(1).any(dim=1)
    assert 15 < int(moved.sum()) < 45
    assert batch.augmented(None, flip=False) is batch


def test_difficult_objects_are_not_trained_on(tmp_path: Path) -> None:
    folder = voc_with(tmp_path, voc_object("cat", 1, 1, 40, 30) + voc_object("cat", 3, 5, 9, 9, difficult=1))
    (batch,) = open_loader(open_annotated(folder), ShorterSide(60)).in_order(1)
    assert isinstance(batch, DetectionBatch)
    assert batch.boxes[0].tolist() == [[0, 0, 80, 60]]


def test_a_huge_jpeg_is_decoded_at_a_fraction_and_a_huge_png_is_skipped(tmp_path: Path) -> None:
    """An image of 20,000 x 16,000 pixels takes almost 1 GB as RGB, and Pillow by itself refuses to open it.

    A PNG cannot be decoded at a fraction of its size, so it is skipped, and counted, before it fills the memory.
    """
    image = Image.new("L", (20_000, 16_000), 128)
    image.save(tmp_path / "huge.jpg", quality=1)
    for i in range(19):
        Image.new("RGB", (64, 64)).save(tmp_path / f"{i}.png")
    loader = open_loader(open_images(tmp_path), ShorterSide(64))
    assert (loader.count, len(loader.skipped)) == (20, 0)
    image.save(tmp_path / "huge.png", compress_level=1)
    loader = open_loader(open_images(tmp_path), ShorterSide(64))
    assert (loader.count, [Path(name).name for name in loader.skipped.names]) == (20, ["huge.png"])


def test_images_that_do_not_fit_are_streamed(squares: Path) -> None:
    source = open_annotated(squares)
    held, streamed = open_loader(source, ShorterSide(40)), open_loader(source, ShorterSide(40), memory=1000)
    assert type(held) is not type(streamed)
    for ours, theirs in zip(held.in_order(7), streamed.in_order(7), strict=True):
        assert np.array_equal(ours.images_N3HW.numpy(), theirs.images_N3HW.numpy())


def test_images_in_order_are_padded_as_each_is_alone(tmp_path: Path) -> None:
    """What a network sees in padding must not depend on an image's neighbours."""
    for i, size in enumerate([(96, 64), (64, 96), (64, 96), (64, 96), (96, 64)]):
        Image.new("RGB", size).save(tmp_path / f"{i}.png")
    source, transform = open_images(tmp_path), ShorterSide(64)
    for loader in (open_loader(source, transform), open_loader(source, transform, memory=1000)):
        shapes = [tuple(batch.images_N3HW.shape) for batch in loader.in_order(2)]
        assert shapes == [(1, 3, 64, 96), (2, 3, 96, 64), (1, 3, 96, 64), (1, 3, 64, 96)]
