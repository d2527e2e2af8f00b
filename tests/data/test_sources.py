"""Every kind of image source, each in the format that its owner writes."""

from __future__ import annotations

import io
import shutil
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dmc.data.decode import CenterCrop, DecodeError, decode, decode_or_skip
from dmc.data.open import open_images, open_labeled
from dmc.data.sources import Record, Source, buffer_shuffled
from dmc.errors import DmcError
from tests.conftest import write_images


def png(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (value, value, value)).save(buffer, "PNG")
    return buffer.getvalue()


def values(source: Source, seed: int | None = None) -> list[int]:
    """Give the grey value of each image, by which these tests tell images apart."""
    found = []
    for record in source.records(seed):
        found.append(int(decode(record, CenterCrop(4))[0, 0, 0]))
    return found


def hub_table(labels: list[int], start: int = 0) -> datasets.Dataset:
    features = datasets.Features({"img": datasets.Image(), "fine_label": datasets.ClassLabel(names=["cat", "dog"])})
    cells = [{"bytes": png(start + i), "path": None} for i in range(len(labels))]
    return datasets.Dataset.from_dict({"img": cells, "fine_label": labels}, features=features)


def test_a_folder_is_read_to_any_depth(tmp_path: Path) -> None:
    write_images(tmp_path / "a" / "b", 3)
    write_images(tmp_path, 2)
    (tmp_path / "notes.txt").write_text("not an image")
    source = open_images(tmp_path)
    assert len(source) == 5 == len(values(source))
    assert source.classes == ()


def test_a_labeled_folder_has_a_folder_for_each_class(tmp_path: Path) -> None:
    write_images(tmp_path / "dog", 3)
    write_images(tmp_path / "cat" / "indoors", 2)
    (tmp_path / "empty").mkdir()
    source = open_labeled(tmp_path)
    assert source.classes == ("cat", "dog")
    assert Counter(r.label for r in source.records()) == {0: 2, 1: 3}


def test_parquet_in_the_hubs_format_brings_its_class_names(tmp_path: Path) -> None:
    hub_table([1, 0, 1]).to_parquet(tmp_path / "train.parquet")
    source = open_labeled(tmp_path / "train.parquet")
    assert source.classes == ("cat", "dog")
    assert [r.label for r in source.records()] == [1, 0, 1]
    assert values(source) == [0, 1, 2]


def test_plain_parquet_with_bytes_and_text_labels(tmp_path: Path) -> None:
    table = pa.table({"picture": [png(i) for i in range(3)], "kind": ["owl", "bat", "owl"], "site": ["x", "y", "z"]})
    pq.write_table(table, tmp_path / "plain.parquet")
    with pytest.raises(DmcError, match=r"which column is the label\? several could be \(kind, site\)"):
        open_labeled(tmp_path / "plain.parquet")
    source = open_labeled(f"{tmp_path}/plain.parquet,label=kind")
    assert source.classes == ("bat", "owl")
    assert [r.label for r in source.records()] == [1, 0, 1]


def test_a_folder_of_parquet_shards_is_one_unlabeled_source(tmp_path: Path) -> None:
    for shard in range(3):
        hub_table([0] * 4, start=4 * shard).to_parquet(tmp_path / f"part-{shard}.parquet")
    source = open_images(tmp_path)
    assert values(source) == list(range(12))
    assert sorted(values(source, seed=1)) == list(range(12))
    assert values(source, seed=1) != list(range(12))
    names = {decode(r, CenterCrop(4))[0, 0, 0].item(): r.name for r in source.records()}
    assert len(set(names.values())) == 12
    for record in source.records(seed=2):  # an image has one name, in whatever order the files are read
        assert record.name == names[decode(record, CenterCrop(4))[0, 0, 0].item()]
    with pytest.raises(DmcError, match="holds 3 files: name one"):
        open_labeled(tmp_path)
    assert len(open_labeled(f"{tmp_path}/part-*.parquet")) == 12


def test_tar_shards_may_mix_formats_and_other_files(tmp_path: Path) -> None:
    for shard in range(2):
        with tarfile.open(tmp_path / f"shard-{shard}.tar", "w") as tar:
            for i in range(3):
                name = f"{i}.png" if i else "notes.json"
                content = png(10 * shard + i)
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    for spec in (str(tmp_path), f"{tmp_path}/shard-*.tar"):
        source = open_images(spec)
        assert len(source) == 4
        assert values(source) == [1, 2, 11, 12]


def test_a_hub_dataset_is_streamed(tmp_path: Path) -> None:
    """`load_dataset` takes a local folder in the hub's layout, and the same code reads the hub."""
    (tmp_path / "data").mkdir()
    hub_table([1, 0, 1, 0]).to_parquet(tmp_path / "data" / "train-00000-of-00001.parquet")
    hub_table([0, 0], start=100).to_parquet(tmp_path / "data" / "test-00000-of-00001.parquet")
    source = open_labeled(f"hf-hub:{tmp_path}")
    assert source.classes == ("cat", "dog")
    assert [r.label for r in source.records()] == list(source.labels()) == [1, 0, 1, 0]
    assert values(open_images(f"hf-hub:{tmp_path},split=test")) == [100, 101]
    assert sorted(values(source, seed=3)) == [0, 1, 2, 3]


def test_a_hub_dataset_that_cannot_be_reached_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(DmcError, match="cannot open hf-hub:nobody/nothing") as error:
        open_images("hf-hub:nobody/nothing")
    assert "\n" not in str(error.value)


def test_npz_with_and_without_class_names(tmp_path: Path) -> None:
    images = np.stack([np.full((4, 4), i, np.uint8) for i in range(3)])
    np.savez(tmp_path / "named.npz", images=images, labels=[1, 0, 1], classes=["cat", "dog"])
    np.savez(tmp_path / "numbered.npz", images=images, labels=[7, 3, 7])
    np.savez(tmp_path / "odd.npz", pixels=images)
    np.savez(tmp_path / "text.npz", images=images, labels=["owl", "bat", "owl"])
    assert open_labeled(tmp_path / "text.npz").classes == ("bat", "owl")
    assert open_labeled(tmp_path / "named.npz").classes == ("cat", "dog")
    source = open_labeled(tmp_path / "numbered.npz")
    assert source.classes == ("3", "7")
    assert [r.label for r in source.records()] == [1, 0, 1]
    assert values(source) == [0, 1, 2]
    with pytest.raises(DmcError, match=r"no array 'images' \(it has: pixels\)"):
        open_labeled(tmp_path / "odd.npz")


def test_keeping_classes_renumbers_them(tmp_path: Path) -> None:
    images = np.stack([np.full((4, 4), i, np.uint8) for i in range(4)])
    np.savez(tmp_path / "d.npz", images=images, labels=[0, 1, 2, 1], classes=["a", "b", "c"])
    kept = open_labeled(tmp_path / "d.npz").keep(["c", "b"])
    assert kept.classes == ("b", "c")
    assert len(kept) == 3
    assert [(r.label, v) for r, v in zip(kept.records(), values(kept), strict=True)] == [(0, 1), (1, 2), (0, 3)]


def test_a_seed_gives_one_order_and_another_seed_another() -> None:
    source = open_images(np.stack([np.full((4, 4), i, np.uint8) for i in range(50)]))
    assert values(source, 1) == values(source, 1)
    assert values(source, 1) != values(source, 2)
    assert sorted(values(source, 1)) == list(range(50))


def write_tar(path: Path, numbers: range) -> None:
    with tarfile.open(path, "w") as tar:
        for i in numbers:
            info = tarfile.TarInfo(f"{i}.png")
            info.size = len(png(i))
            tar.addfile(info, io.BytesIO(png(i)))


def every_kind(folder: Path) -> list[Path | str]:
    """Write sources of ten images each, whose grey values are 0 to 9, 10 to 19 and so on."""
    for i in range(10):
        (folder / "photos").mkdir(exist_ok=True)
        (folder / "photos" / f"{i}.png").write_bytes(png(i))
    for shard in range(2):
        hub_table([0] * 5, start=10 + 5 * shard).to_parquet(folder / f"{shard}.parquet")
        write_tar(folder / f"{shard}.tar", range(20 + 5 * shard, 25 + 5 * shard))
    np.savez(folder / "a.npz", images=np.stack([np.full((4, 4), 30 + i, np.uint8) for i in range(10)]), labels=[0] * 10)
    (folder / "hub" / "data").mkdir(parents=True)
    hub_table([0] * 10, start=40).to_parquet(folder / "hub" / "data" / "train-00000-of-00001.parquet")
    return [folder / "photos", f"{folder}/*.parquet", f"{folder}/*.tar", folder / "a.npz", f"hf-hub:{folder}/hub"]


def test_a_glob_may_match_different_things(tmp_path: Path) -> None:
    every_kind(tmp_path)
    shutil.rmtree(tmp_path / "hub")
    (tmp_path / "photos of another day").mkdir()
    (tmp_path / "photos of another day" / "0.png").write_bytes(png(40))
    source = open_images(f"{tmp_path}/*")
    assert sorted(values(source)) == list(range(41))
    assert source.name == f"{tmp_path}/*"
    assert values(open_images(f"{tmp_path}/photos/[3-5].png")) == [3, 4, 5]
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DmcError, match=r"cannot read images from .*/notes\.txt"):
        open_images(f"{tmp_path}/*")


def test_a_long_stream_is_mixed_through_a_bounded_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmc.data.sources.SHUFFLE_BUFFER", 10)
    taken = 0

    def numbers() -> Iterator[Record]:
        nonlocal taken
        for i in range(100):
            taken += 1
            yield Record(b"12345", i, "")

    mixed = buffer_shuffled(numbers(), seed=0)
    first = next(mixed)
    assert taken == 11
    rest = [record.label for record in mixed]
    assert rest != sorted(rest)
    assert sorted([first.label, *rest]) == list(range(100))
    monkeypatch.setattr("dmc.data.sources.SHUFFLE_BYTES", 20)  # as much as four of these records
    taken = 0
    next(buffer_shuffled(numbers(), seed=0))
    assert taken == 5


def test_rows_without_an_image_are_undecodable_and_rows_without_a_class_are_named(tmp_path: Path) -> None:
    table = pa.table({"image": [png(1), None], "label": ["a", "a"]})
    pq.write_table(table, tmp_path / "hole.parquet")
    records = list(open_labeled(tmp_path / "hole.parquet").records())
    assert [isinstance(decode_or_skip(r, CenterCrop(4)), DecodeError) for r in records] == [False, True]
    pq.write_table(pa.table({"image": [png(1), png(2)], "label": ["a", None]}), tmp_path / "null.parquet")
    with pytest.raises(DmcError, match=r"null\.parquet\[1\]: column 'label' holds None"):
        list(open_labeled(tmp_path / "null.parquet").records())
    unlabeled = hub_table([0, 1]).to_pandas()
    unlabeled["fine_label"] = [0, -1]  # the hub's sign for "no label"
    schema = hub_table([0]).data.schema.with_metadata(hub_table([0]).features.arrow_schema.metadata)
    pq.write_table(pa.Table.from_pandas(unlabeled, schema=schema), tmp_path / "minus.parquet")
    with pytest.raises(DmcError, match=r"minus\.parquet\[1\]: column 'fine_label' holds -1"):
        list(open_labeled(tmp_path / "minus.parquet").records())


def test_shards_must_have_the_same_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": [png(1)]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"picture": [png(1)]}), tmp_path / "b.parquet")
    with pytest.raises(DmcError, match=r"b\.parquet has no column 'image'"):
        open_images(tmp_path)


def test_a_hub_dataset_of_files_in_an_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "train.zip", "w") as archive:
        for i in range(3):
            archive.writestr(f"{i}.png", png(i))
    assert sorted(values(open_images(f"hf-hub:{tmp_path}"))) == [0, 1, 2]


def test_keeping_a_class_without_images_is_an_error(tmp_path: Path) -> None:
    hub_table([0, 0]).to_parquet(tmp_path / "d.parquet")
    with pytest.raises(DmcError, match="has no image of class 'dog'"):
        open_labeled(tmp_path / "d.parquet").keep(["dog"])


def test_names_that_look_like_patterns_and_hidden_files(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "photos [1]", 2)
    (folder / "._000.png").write_bytes(b"what macOS leaves behind")
    assert len(open_images(folder)) == 2
    with pytest.raises(DmcError, match="has no folder with images in it"):
        open_labeled(folder)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("missing", "no such file or folder: missing"),
        ("a.parquet,labl=x", "unknown setting 'labl'"),
        ("*.nothing", "no such file or folder"),
        ("tests,split=test", "tests,split=test: 'split' is not a setting of tests; they are for hf-hub"),
        ("tests,label=x", "'label' is not a setting of the folder tests; they are for parquet"),
    ],
)
def test_bad_specs_are_one_line(spec: str, message: str) -> None:
    with pytest.raises(DmcError, match=message):
        open_images(spec)


def test_a_damaged_shard_does_not_end_at_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for i in range(4):
            info = tarfile.TarInfo(f"{i}.png")
            info.size = len(png(i))
            tar.addfile(info, io.BytesIO(png(i)))
    assert len(open_images(path)) == 4
    whole = path.read_bytes()
    third = whole.index(b"2.png")
    path.write_bytes(whole[:third] + b"?" * 512 + whole[third + 512 :])
    with pytest.raises(DmcError, match=r"cannot read the tar shard .*a\.tar: damaged after byte"):
        open_images(path)
    path.write_bytes(whole[: third + 100])
    with pytest.raises(DmcError, match=r"a\.tar: damaged after byte"):
        open_images(path)


def test_files_that_are_not_what_they_say(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"not parquet")
    (tmp_path / "bad.tar").write_bytes(b"not tar")
    (tmp_path / "bad.npz").write_bytes(b"not npz")
    (tmp_path / "empty.npz").touch()
    for name in ("bad.parquet", "bad.tar", "bad.npz", "empty.npz"):
        with pytest.raises(DmcError, match=name) as error:
            open_images(tmp_path / name)
        assert "\n" not in str(error.value)


def test_real_cifar100_is_complete(real_data: Path) -> None:
    source = open_labeled(real_data / "cifar100" / "test.parquet")
    assert len(source.classes) == 100
    assert source.classes[:3] == ("apple", "aquarium_fish", "baby")
    assert set(Counter(r.label for r in source.records()).values()) == {100}


def test_real_coco_shards_are_read(real_data: Path) -> None:
    source = open_images(f"{real_data}/aux/coco/coco-*.tar")
    assert len(source) == 1200
    pixels = decode(next(source.records()), CenterCrop(32))
    assert pixels.shape == (3, 32, 32)
