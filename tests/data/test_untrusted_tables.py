"""Files of strangers: tables and arrays."""

from __future__ import annotations

import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmc.bench.readers import DownsampledImageNet
from dmc.data.open import open_images, open_labeled
from dmc.errors import DmcError
from tests.data.hostile import at_most, png, reasons


def write_table(path: Path, labels: Any, names: list[Any] | None = None) -> Path:
    """Write a table with a column of labels; with `names`, in the hub's format."""
    columns = {"image": [png()] * len(labels), "label": labels}
    table = pa.table(columns)
    if names is not None:
        feature = {"names": names, "_type": "ClassLabel"}
        info = {"info": {"features": {"image": {"_type": "Image"}, "label": feature}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, path)
    return path


@pytest.mark.parametrize(
    ("labels", "names", "words"),
    [
        ([0.5, 1.5], None, "column 'label' holds no labels, which are whole numbers or texts"),
        ([[0], [1]], None, "column 'label' holds no labels"),
        ([{"a": 1}, {"a": 2}], None, "column 'label' holds no labels"),
        ([b"a", b"b"], None, "column 'label' holds no labels"),
        ([None, None], None, "column 'label' holds no labels"),
        (["a", "b\nc"], None, r"the class name 'b\\nc' has control characters"),
        (["a", ""], None, "a class is named ''"),
        ([0, 2], ["a", "b"], r"a\.parquet\[1\]: column 'label' holds 2, which is none"),
        ([0, -1], ["a", "b"], r"a\.parquet\[1\]: column 'label' holds -1, which is none"),
        ([0, None], ["a", "b"], r"a\.parquet\[1\]: column 'label' holds None"),
        ([0, 2**62], ["a", "b"], "holds 4611686018427387904, which is none"),
        ([0.0, 1.0], ["a", "b"], "column 'label' holds no labels"),
        ([[0], [1]], ["a", "b"], "column 'label' holds no labels"),
        ([0, 1], ["a", "a"], "a.parquet"),
        ([0, 1], [1, 2], "a class is named 1"),
        ([0, 1], [None, "a"], "a class is named None"),
        ([0, 1], [["a"], ["b"]], "a.parquet"),
        ([0, 1], ["a", "\x1b[31m"], "control characters"),
    ],
)
def test_labels_of_odd_types_in_a_table(tmp_path: Path, labels: Any, names: Any, words: str) -> None:
    path = write_table(tmp_path / "a.parquet", labels, names)
    with pytest.raises(DmcError, match=words) as error:
        list(open_labeled(f"{path},image=image,label=label").records())
    assert "\n" not in str(error.value)
    assert "a.parquet" in str(error.value)


@pytest.mark.parametrize("info", ["[]", "{", '{"info": 3}', '{"info": {"features": [1]}}', "[" * 100_000, "\ud800"])
def test_a_tables_header_of_odd_types(tmp_path: Path, info: str) -> None:
    table = pa.table({"image": [png()]}).replace_schema_metadata({"huggingface": info.encode("utf-8", "surrogatepass")})
    pq.write_table(table, tmp_path / "a.parquet")
    with at_most(10):
        try:
            seen = f"{len(open_images(tmp_path / 'a.parquet'))} image"
        except DmcError as error:
            seen = str(error)
    assert re.fullmatch(r"1 image|cannot read the header of .*a\.parquet: .+", seen)


def test_cells_that_are_no_images_are_counted(tmp_path: Path) -> None:
    for cells in ([5], [[1, 2]], [True], [1.5], [{"bytes": 10**12, "path": "a"}], [{"bytes": [1], "path": "a"}], [""]):
        pq.write_table(pa.table({"image": cells}), tmp_path / "a.parquet")
        assert all(reasons(open_images(f"{tmp_path}/a.parquet,image=image")))


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"image": [os.urandom(100) for _ in range(100)]}), path, compression="zstd")
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :])
    with pytest.raises(DmcError, match=r"cannot read .*a\.parquet after row 0: .+"):
        list(open_images(path).records())


def test_a_table_of_more_rows_than_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"image": pa.nulls(1_000_000, pa.binary())}), tmp_path / "a.parquet")
    with pytest.raises(DmcError, match=r"its header says that \d+ bytes hold 1000000 rows"):
        open_images(tmp_path / "a.parquet")
    pq.write_table(pa.table({"image": [bytes(10**6)]}), tmp_path / "b.parquet", compression="zstd")
    assert len(open_images(tmp_path / "b.parquet")) == 1
    monkeypatch.setattr("dmc.data.untrusted.MOST_ENCODED", 10**5)
    with pytest.raises(DmcError, match=r"b\.parquet: it unpacks to more than 100 times its size"):
        open_images(tmp_path / "b.parquet")


def test_a_table_with_fewer_rows_than_its_header_says(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": [png()] * 3}), tmp_path / "a.parquet")
    source = open_images(tmp_path / "a.parquet")
    pq.write_table(pa.table({"image": [png()] * 2}), tmp_path / "a.parquet")
    with pytest.raises(DmcError, match=r"a\.parquet has 2 rows, and not 3 as its header says"):
        list(source.records())


def test_shards_may_not_disagree_about_labels(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", ["1", "b"])
    write_table(tmp_path / "b.parquet", [1, 2])
    with pytest.raises(DmcError, match="the class '1' is named twice"):
        open_labeled(f"{tmp_path}/*.parquet,label=label")
    write_table(tmp_path / "a.parquet", [0, 1], ["a", "b"])
    write_table(tmp_path / "b.parquet", ["a", "b"])
    with pytest.raises(DmcError, match=r"b\.parquet\[0\]: column 'label' holds 'a'"):
        list(open_labeled(f"{tmp_path}/*.parquet").labels())
    write_table(tmp_path / "a.parquet", ["1", "b"])
    write_table(tmp_path / "b.parquet", [[1], [2]])
    with pytest.raises(DmcError, match=r"b\.parquet\[0\]: column 'label' holds \[1\]"):
        open_labeled(f"{tmp_path}/*.parquet,label=label")


IMAGES = np.zeros((2, 4, 4), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"labels": [0.0, 1.0]}, "'labels' must be a list of whole numbers or texts, not float64"),
        ({"labels": [[0], [1]]}, r"'labels' must be a list .* of shape \(2, 1\)"),
        ({"labels": 1}, r"'labels' must be a list .* of shape \(\)"),
        ({"labels": np.array([None, {}], object)}, "Object arrays cannot be loaded"),
        ({"labels": [b"a", b"b"]}, "'labels' must be a list"),
        ({"labels": np.array([0, 1], "datetime64[s]")}, "'labels' must be a list"),
        ({"labels": [0, 1, 1]}, r"2 images but labels of shape \(3,\)"),
        ({"labels": [0, 2], "classes": ["a", "b"]}, "labels must lie between 0 and 1"),
        ({"labels": [0, -1], "classes": ["a", "b"]}, "labels must lie between 0 and 1"),
        ({"labels": np.array([0, 2**64 - 1], np.uint64), "classes": ["a", "b"]}, "labels must lie between 0 and 1"),
        ({"labels": [0, 1], "classes": [1, 2]}, "'classes' must be a list of texts, not int64"),
        ({"labels": [0, 1], "classes": [["a"], ["b"]]}, r"'classes' must be a list of texts, not <U1 of shape \(2, 1"),
        ({"labels": [0, 1], "classes": ["a", "a"]}, "the class 'a' is named twice"),
        ({"labels": [0, 1], "classes": ["a", "b\r"]}, "control characters"),
        ({"images": IMAGES.astype(float), "labels": [0, 1]}, "images must be uint8"),
        ({"images": np.uint8(3), "labels": [0, 1]}, "images must be uint8"),
    ],
)
def test_arrays_of_odd_types(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    np.savez(tmp_path / "a.npz", **{"images": IMAGES} | arrays)
    with pytest.raises(DmcError, match=words) as error:
        open_labeled(tmp_path / "a.npz")
    assert "a.npz" in str(error.value)
    assert "\n" not in str(error.value)


def npz(path: Path, header: str, content: bytes) -> Path:
    """Write an npz file whose array `images` has this header."""
    head = header.encode().ljust(118) + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + content)
    return path


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000, 32, 32)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 4, 4)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (100, 4, 4)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (2, 4, 4)}",
        "{'descr': 7, 'fortran_order': False, 'shape': (2, 4, 4)}",
        "{'descr': '|u1'}",
        "[" * 9000,
        "__import__('os').system('true')",
    ],
)
def test_lying_headers_of_arrays(tmp_path: Path, header: str) -> None:
    with at_most(10), pytest.raises(DmcError, match=r"cannot read .*a\.npz: .+") as error:
        open_images(npz(tmp_path / "a.npz", header, bytes(32)))
    assert "\n" not in str(error.value)


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = "{'descr': '|u1', 'fortran_order': False, 'shape': (1000, 32, 32)}"
    path = npz(tmp_path / "a.npz", header, bytes(1000 * 32 * 32))
    assert len(open_images(path)) == 1000
    monkeypatch.setattr("dmc.data.untrusted.MOST_ENCODED", 10**6)
    with pytest.raises(DmcError, match=r"a\.npz: it unpacks to more than 100 times its size"):
        open_images(path)


def test_damaged_batches_of_imagenet(tmp_path: Path) -> None:
    good = np.zeros((2, 3072), np.uint8)
    for arrays, words in (
        ({"labels": [1, 2]}, "has no array 'data'"),
        ({"labels": 1, "data": good}, "'labels' has the wrong type or shape"),
        ({"labels": ["a", "b"], "data": good}, "'labels' has the wrong type or shape"),
        ({"labels": [1, 2], "data": good[:, :5]}, "'data' has the wrong type or shape"),
        ({"labels": [1, 2, 3], "data": good}, "'data' has 2 images, fewer than there are 'labels'"),
    ):
        np.savez(tmp_path / "a.npz", **arrays)
        with pytest.raises(DmcError, match=words):
            list(DownsampledImageNet([tmp_path / "a.npz"]).records())
