"""Data files from strangers: nothing is opened that the user did not name, and what is wrong is told in one line."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmc.bench.coco import CocoImages
from dmc.bench.readers import CubImages
from dmc.data.annotations import open_annotated
from dmc.data.decode import CenterCrop
from dmc.data.loader import StreamLoader, open_loader
from dmc.data.open import open_images, open_labeled
from dmc.data.tables import HubImages
from dmc.data.untrusted import Below, Refused
from dmc.errors import DmcError
from tests.conftest import write_images
from tests.data.hostile import GOOD, assert_only_good, at_most, hostile, png, reasons
from tests.data.test_untrusted_annotations import coco_file, voc_xml
from tests.data.test_untrusted_tables import write_table


@pytest.mark.parametrize("struct", [True, False])
def test_a_table_names_only_files_below_it(folder: Path, struct: bool, watched: Callable[[], Any]) -> None:
    names = [*GOOD, *hostile(folder)]
    cells = [{"bytes": None, "path": name} for name in names] if struct else names
    pq.write_table(pa.table({"image": cells}), folder / "a.parquet")
    source = open_images(f"{folder / 'a.parquet'},image=image")
    assert_only_good(source, folder, watched)
    assert f"'../outside.png' is not a file below {folder}" in reasons(source)
    with pytest.raises(DmcError, match=r"18 of 21 .*\(first: .*a\.parquet\[3\]: 'http://127.0.0.1:9/a.png' is not a"):
        open_loader(source, CenterCrop(4))


def test_a_voc_file_names_only_files_below_its_folder(tmp_path: Path, folder: Path, watched: Callable[[], Any]) -> None:
    voc = tmp_path / "voc"
    (voc / "Annotations").mkdir(parents=True)
    folder.rename(voc / "JPEGImages")
    names = [name for name in [*GOOD, *hostile(voc / "JPEGImages")] if "\0" not in name]
    (tmp_path / "data").symlink_to(voc)
    (voc / "outside.png").write_bytes(png())
    for i, name in enumerate(names):
        (voc / "Annotations" / f"{i:02}.xml").write_text(voc_xml(name))
    source = open_annotated(voc)
    with watched() as files, at_most(5):
        found = reasons(source)
    assert [bool(reason) for reason in found] == [name not in GOOD for name in names]
    assert {Path(file).resolve() for file in files if file.endswith(".png")} == {voc / "JPEGImages/deep/good.png"}
    (voc / "Annotations" / "00.xml").write_text(voc_xml("../outside.png", size=""))
    with pytest.raises(DmcError, match=r"cannot read the size of an image: '\.\./outside.png' is not a file below"):
        open_annotated(voc)


def test_a_voc_list_names_only_annotations_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "voc" / "Annotations").mkdir(parents=True)
    (tmp_path / "voc" / "ImageSets" / "Main").mkdir(parents=True)
    (tmp_path / "outside.xml").write_text(voc_xml("a.png"))
    (tmp_path / "voc" / "ImageSets" / "Main" / "train.txt").write_text("../../outside")
    with pytest.raises(DmcError, match=r"cannot read an annotation: '\.\./\.\./outside.xml' is not a file below"):
        open_annotated(tmp_path / "voc")


def test_a_coco_file_names_only_files_below_its_folder(folder: Path, watched: Callable[[], Any]) -> None:
    names = [*GOOD, *hostile(folder)]
    images = [{"id": i, "file_name": name, "width": 4, "height": 4} for i, name in enumerate(names)]
    path = coco_file(folder.parent / "a.json", images=images)
    assert_only_good(open_annotated(f"{path},images={folder}"), folder, watched)
    assert_only_good(CocoImages("coco", folder, names), folder, watched)


def test_cub_names_only_files_below_its_folder(tmp_path: Path, folder: Path, watched: Callable[[], Any]) -> None:
    folder.rename(tmp_path / "images")
    names = [name for name in hostile(tmp_path / "images") if "\0" not in name]
    files = {
        "images": ["deep/good.png", *names],
        "image_class_labels": ["1"] * (1 + len(names)),
        "bounding_boxes": ["0 0 4 4"] * (1 + len(names)),
        "train_test_split": ["1"] * (1 + len(names)),
        "classes": ["owl"],
    }
    for name, rows in files.items():
        (tmp_path / f"{name}.txt").write_text("".join(f"{i} {row}\n" for i, row in enumerate(rows)))
    source = CubImages(tmp_path, train=True)
    (tmp_path.parent / "outside.png").write_bytes(png())
    with watched(), at_most(5):
        assert [bool(reason) for reason in reasons(source)] == [False] + [True] * len(names)
    for broken in ("1 x 4 4", "0 0", "inf 0 4 4", ""):
        (tmp_path / "bounding_boxes.txt").write_text(f"0 {broken}\n")
        with pytest.raises(DmcError, match=r"the entries of image '0' do not fit together|each line must be an id"):
            CubImages(tmp_path, train=True)


def test_a_hub_dataset_names_only_its_own_files(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    asked: list[str] = []

    def fsspec_open(name: str, _: str) -> io.BytesIO:
        asked.append(name)
        return io.BytesIO(b"image")

    monkeypatch.setattr("fsspec.open", fsspec_open)
    hub = HubImages.__new__(HubImages)
    hub.repo = "owner/set"
    ours = ["hf://datasets/owner/set@1a/a.png", "zip://a.png::hf://datasets/owner/set@1a/a.zip"]
    theirs = ["hf://datasets/owner/settle@1a/a.png", "hf://datasets/owner/set@1a/../../b", "http://x::" + ours[0]]
    assert [hub._file(name) for name in ours] == [b"image", b"image"]
    assert all(isinstance(hub._file(name), Refused) for name in [*theirs, *hostile(folder)])
    assert asked == ours
    hub.repo = str(folder)
    assert [hub._file(name) for name in GOOD] == [folder / name for name in GOOD]
    assert all(isinstance(hub._file(name), Refused) for name in hostile(folder) if name not in {"fifo.png", "x" * 5000})
    assert asked == ours


def test_links_that_the_user_lists_are_followed(folder: Path) -> None:
    assert sorted(path.name for path in (r.image for r in open_images(folder).records())) == [  # type: ignore[union-attr]
        "good.png",
        "inner.png",
        "link.png",
    ]
    assert reasons(open_images(folder)) == ["", "", ""]


@pytest.mark.parametrize("name", [b"\xff", b"a\nb", b"\x1b[31m", b"a\x7f", "a\u2028b".encode()])
def test_a_class_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path, name: bytes) -> None:
    for each in (b"a", name):
        write_images(tmp_path / os.fsdecode(each), 1)
    with pytest.raises(DmcError, match=r"the class name .* has control characters or is not UTF-8; rename it") as error:
        open_labeled(tmp_path)
    assert "\n" not in str(error.value)
    str(error.value).encode()


def test_class_names_of_all_languages_are_welcome(tmp_path: Path) -> None:
    names = ("Käfer", "نیم\u200cفاصله", "犬", "👩\u200d🔬", "a b")
    for name in names:
        write_images(tmp_path / name, 1)
    assert set(open_labeled(tmp_path).classes) == set(names)


def test_image_files_may_have_any_name(tmp_path: Path) -> None:
    write_images(tmp_path, 3)
    odd = tmp_path / os.fsdecode(b"\xff\xfe\n.png")
    odd.write_bytes(png())
    source = open_images(tmp_path)
    assert open_loader(source, CenterCrop(4)).count == 4
    stream = StreamLoader(source, CenterCrop(4))
    assert sum(len(batch.labels_N) for batch, _ in zip(stream.batches(0, 2), range(4), strict=False)) == 8
    odd.write_bytes(b"broken")
    assert reasons(source).count("it is not an image") == 1


def test_below_follows_a_folder_that_is_a_link_itself(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert Below(tmp_path / "link")("a.png") == tmp_path / "link" / "a.png"
    assert isinstance(Below(tmp_path / "link")("../a.png"), Refused)


def test_hub_names_in_tables_are_those_of_the_hub(tmp_path: Path) -> None:
    """The format in which `write_table` writes class names is the one that `datasets` itself writes."""
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    theirs = json.loads(features.arrow_schema.metadata[b"huggingface"])
    write_table(tmp_path / "a.parquet", [0, 1], ["a", "b"])
    assert json.loads(pq.read_schema(tmp_path / "a.parquet").metadata[b"huggingface"]) == theirs
