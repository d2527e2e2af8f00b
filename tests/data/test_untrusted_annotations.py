"""Files of strangers: annotations in VOC's and COCO's form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dmc.data.annotations import open_annotated
from dmc.errors import DmcError
from tests.data.hostile import at_most, png


def voc_xml(filename: str, name: str = "cat", box: str = "1 1 3 3", size: str = "4", before: str = "") -> str:
    sides = "".join(f"<{s}>{n}</{s}>" for s, n in zip(("xmin", "ymin", "xmax", "ymax"), box.split(), strict=False))
    shape = f"<size><width>{size}</width><height>{size}</height></size>" if size else ""
    item = f"<object><name>{name}</name><bndbox>{sides}</bndbox></object>"
    return f"{before}<annotation><filename>{filename}</filename>{shape}{item}</annotation>"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size": "9" * 400}, "a.xml: size: an image is at most"),
        ({"size": "9" * 5000}, "a.xml: Exceeds the limit"),
        ({"size": "nan"}, "a.xml: invalid literal for int"),
        ({"box": "1 1 x 3"}, "a.xml: could not convert string to float"),
        ({"name": "a&#10;b"}, r"the class name 'a\\nb' has control characters"),
        ({"before": '<!DOCTYPE a [<!ENTITY b "c">]>'}, "a.xml: a DTD"),
        ({"before": '<!DOCTYPE a SYSTEM "http://127.0.0.1:9/a.dtd">'}, "a.xml: a DTD"),
        ({"before": "<a>" * 100_000}, "a.xml: mismatched tag|a.xml: no element"),
    ],
)
def test_odd_annotations(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations" / "a.xml").write_text(voc_xml("a.jpg", **changes))
    with at_most(10), pytest.raises(DmcError, match=words) as error:
        open_annotated(tmp_path)
    assert "\n" not in str(error.value)


def test_a_billion_laughs_are_not_heard(tmp_path: Path) -> None:
    levels = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))
    (tmp_path / "Annotations").mkdir()
    path = tmp_path / "Annotations" / "a.xml"
    path.write_text(voc_xml("a.jpg", "&l9;", before=f'<!DOCTYPE a [<!ENTITY l0 "ha">{levels}]>'))
    with at_most(5), pytest.raises(DmcError, match=r"a\.xml: a DTD"):
        open_annotated(tmp_path)


def test_boxes_that_are_not_finite_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "Annotations").mkdir()
    boxes = ["1 1 3 3", "1 1 inf 3", "-inf 1 3 3", "nan 1 3 3", "1 1 3", "1 1 1e39 3"]
    for i, box in enumerate(boxes):
        (tmp_path / "Annotations" / f"{i}.xml").write_text(voc_xml("a.jpg", box=box))
    found = [scene.objects.boxes_M4.tolist() for scene in open_annotated(tmp_path).images]
    assert found == [[[0, 0, 3, 3]], [], [], [], [], [[0, 0, 4, 3]]]
    assert "4 boxes have no area within their image and are left out" in caplog.text


def coco_file(path: Path, **changes: Any) -> Path:
    content: dict[str, Any] = {
        "images": [{"id": 1, "file_name": "a.png", "width": 4, "height": 4}],
        "annotations": [{"id": 1, "image_id": 0, "category_id": 1, "bbox": [0, 0, 2, 2]}],
        "categories": [{"id": 1, "name": "cat"}],
    }
    path.write_text(json.dumps(content | changes))
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": [{"id": 0, "file_name": 5}]}, r"images\.0\.file_name: Input should be a valid string"),
        ({"images": [{"id": [], "file_name": "a"}]}, r"images\.0\.id: Input should be a valid integer"),
        ({"images": [{"id": 0, "file_name": "a", "width": 1e300}]}, r"images\.0\.width: .+"),
        ({"images": [{"id": 0, "file_name": "a", "height": 2**21}]}, r"images\.0\.height: Input should be"),
        ({"images": ["a"]}, r"images\.0: Input should be"),
        ({"annotations": [[[]]]}, r"annotations\.0: Input should be"),
        ({"annotations": [{"image_id": 0, "category_id": 1, "bbox": "1234"}]}, r"annotations\.0\.bbox: Input should"),
        ({"annotations": [{"image_id": 0, "category_id": None, "bbox": [0, 0, 1, 1]}]}, r"annotations\.0\.category_id"),
        ({"categories": [{"id": 1, "name": {}}]}, r"categories\.0\.name: Input should be a valid string"),
        ({"categories": [{"id": 1, "name": "a\nb"}]}, r"the class name 'a\\nb' has control characters"),
    ],
)
def test_a_coco_file_of_odd_types(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    images = [{"id": 0, "file_name": "a.png", "width": 4, "height": 4}]
    (tmp_path / "a.png").write_bytes(png())
    path = coco_file(tmp_path / "a.json", **{"images": images} | changes)
    with pytest.raises(DmcError, match=words) as error:
        open_annotated(path)
    assert "a.json" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["[" * 10**6, '{"images": ' + "[" * 10**6, '{"a":' * 10**5, "\0", "NaN", '"\\ud800"'])
def test_deep_and_broken_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with at_most(10), pytest.raises(DmcError, match=r"a\.json is not a COCO annotation file: .+") as error:
        open_annotated(tmp_path / "a.json")
    assert "\n" not in str(error.value)
