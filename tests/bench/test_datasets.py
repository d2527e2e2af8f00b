"""Every reader on small files in the official format, made here."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import scipy.io
from PIL import Image

from dmc.bench import readers
from dmc.bench.datasets import DATASETS, LAYOUTS, download, open_dataset, require
from dmc.bench.readers import excluded
from dmc.data.decode import CenterCrop, decode
from dmc.data.sources import Source
from dmc.errors import DmcError
from dmc.recipes.profile import load_profile
from tests.conftest import Answer

RNG = np.random.default_rng(0)


def photo(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (12, 10)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, format="PNG")


def pixels(source: Source, place: int) -> np.ndarray:
    image = list(source.records())[place].image
    assert isinstance(image, np.ndarray)
    return image


def test_every_data_set_has_a_description_and_a_layout() -> None:
    assert set(DATASETS) == set(LAYOUTS)
    assert {"cifar100", "imagenet32", "mnist", "svhn", "dtd", "places365", "cub200", "birdsnap"} < set(DATASETS)


def test_cifar_binary(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    (folder / "fine_label_names.txt").write_text("apple\nbaby\ncrab\n")
    record = np.zeros((2, 3074), np.uint8)
    record[0, :2], record[1, :2] = (7, 2), (1, 0)
    record[0, 2 + 1024 + 33] = 200  # green, second row, second column
    record.tofile(folder / "train.bin")
    record[:1].tofile(folder / "test.bin")
    train, test = open_dataset("cifar100", tmp_path)
    assert test is not None
    assert (len(train), len(test), train.classes) == (2, 1, ("apple", "baby", "crab"))
    assert list(train.labels()) == [2, 0]
    assert pixels(train, 0)[1, 1].tolist() == [0, 200, 0]
    assert pixels(train, 0).sum() == 200
    (folder / "test.bin").write_bytes(b"123")
    with pytest.raises(DmcError, match=r"test\.bin is not CIFAR-100's binary version"):
        open_dataset("cifar100", tmp_path)


def test_imagenet32_leaves_out_the_classes_of_cifar(tmp_path: Path) -> None:
    """Labels 1 to 1000 follow the development kit's order: goldfish is 450 there, and 1 among the sorted ids."""
    rows = {row["wnid"]: row for row in excluded("imagenet_excluded.csv")}
    goldfish = rows["n01443537"]
    assert (goldfish["sorted_index"], goldfish["imagenet32_label"]) == ("1", "450")
    folder = tmp_path / "Imagenet32_train_npz"
    folder.mkdir()
    kept = next(label for label in range(1, 1001) if str(label) not in {r["imagenet32_label"] for r in rows.values()})
    for i in (1, 2):
        data = np.zeros((3, 3072), np.uint8)
        data[:, 1024 * i] = 10 * i
        labels = np.array([kept, int(goldfish["imagenet32_label"]), kept])
        np.savez(folder / f"train_data_batch_{i}.npz", data=data, labels=labels)
    source = open_dataset("imagenet32", tmp_path).train
    assert len(source) == len(list(source.records())) == 4
    assert pixels(source, 0)[0, 0].tolist() == [0, 10, 0]
    assert pixels(source, 3)[0, 0].tolist() == [0, 0, 20]
    assert sorted(r.name for r in source.records(seed=1)) == sorted(r.name for r in source.records())


def test_imagenet32_counts_against_the_paper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "Imagenet32_train_npz"
    folder.mkdir()
    np.savez(folder / "train_data_batch_1.npz", data=np.zeros((2, 3072), np.uint8), labels=np.array([2, 2]))
    open_dataset("imagenet32", tmp_path)
    assert caplog.text == ""  # the count of a part is not compared with the paper's
    monkeypatch.setattr(readers, "IMAGENET", 2)
    open_dataset("imagenet32", tmp_path)
    assert "has 2 images here, 1,082,340 in the paper" in caplog.text


def test_the_excluded_classes_are_those_of_the_lists() -> None:
    imagenet = {row["wnid"]: row["cifar100_class"] for row in excluded("imagenet_excluded.csv")}
    birds = {row["birdsnap"]: row["cub200"] for row in excluded("birdsnap_excluded.csv")}
    assert imagenet["n02129165"] == "lion"
    assert "n02123045" not in imagenet  # tabby cat: CIFAR-100 has no cats
    assert birds["Annas_Hummingbird"] == "Anna_Hummingbird"
    assert len(birds) == 169


def test_tiny_imagenets_official_folders(tmp_path: Path) -> None:
    for wnid in ("n02129165", "n02123045"):  # lion, tabby cat
        for i in range(3):
            photo(tmp_path / "tiny-imagenet-200" / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", (i, 0, 0))
    source = open_dataset("tiny-imagenet", tmp_path).train
    assert (len(source), source.classes) == (3, ("n02123045",))
    (tmp_path / "tiny-imagenet-200" / "train" / "n02129165").rename(tmp_path / "tiny-imagenet-200" / "train" / "lion")
    (tmp_path / "tiny-imagenet-200" / "train" / "n02123045").rename(tmp_path / "tiny-imagenet-200" / "train" / "tabby")
    with pytest.raises(DmcError, match="cannot be left out"):  # a lion would stay in unnoticed
        open_dataset("tiny-imagenet", tmp_path)


def test_mnist_idx(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    images = RNG.integers(0, 256, (5, 28, 28), dtype=np.uint8)
    header = np.array([2051, 5, 28, 28], dtype=">u4").tobytes()
    (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(header + images.tobytes())
    for packed in (False, True):  # as downloaded
        if packed:
            plain = tmp_path / "mnist" / "train-images-idx3-ubyte"
            plain.with_name(f"{plain.name}.gz").write_bytes(gzip.compress(plain.read_bytes()))
            plain.unlink()
        source = open_dataset("mnist", tmp_path).train
        assert len(source) == 5
        assert (pixels(source, 4) == images[4]).all()


def test_svhn_mat(tmp_path: Path) -> None:
    (tmp_path / "aux" / "svhn").mkdir(parents=True)
    images = RNG.integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    scipy.io.savemat(tmp_path / "aux" / "svhn" / "train_32x32.mat", {"X": images, "y": np.ones((4, 1))})
    source = open_dataset("svhn", tmp_path).train
    assert len(source) == 4
    assert (pixels(source, 2) == images[..., 2]).all()


def test_dtd_and_places365_are_folders(tmp_path: Path) -> None:
    photo(tmp_path / "dtd" / "images" / "banded" / "banded_0002.jpg", (1, 2, 3))
    photo(tmp_path / "data_256" / "a" / "apartment_building" / "outdoor" / "00000001.jpg", (1, 2, 3))
    photo(tmp_path / "data_256" / "a" / "airfield" / "00000001.jpg", (1, 2, 3))
    assert len(open_dataset("dtd", tmp_path).train) == 1
    assert len(open_dataset("places365", tmp_path).train) == 2


def test_cub_is_cut_to_the_birds_box(tmp_path: Path) -> None:
    folder = tmp_path / "CUB_200_2011"
    image = np.zeros((20, 30, 3), np.uint8)
    image[5:9, 10:17] = 255  # the bird, wider than tall
    (folder / "images" / "002.Wren").mkdir(parents=True)
    Image.fromarray(image).save(folder / "images" / "002.Wren" / "a.png")
    photo(folder / "images" / "001.Owl" / "b.png", (9, 9, 9))
    (folder / "classes.txt").write_text("1 001.Owl\n2 002.Wren\n")
    (folder / "images.txt").write_text("1 002.Wren/a.png\n2 001.Owl/b.png\n")
    (folder / "image_class_labels.txt").write_text("1 2\n2 1\n")
    (folder / "train_test_split.txt").write_text("1 1\n2 0\n")
    (folder / "bounding_boxes.txt").write_text("1 10.0 5.0 7.0 4.0\n2 0.0 0.0 12.0 10.0\n")
    train, test = open_dataset("cub200", tmp_path)
    assert test is not None
    assert (len(train), len(test), train.classes) == (1, 1, ("001.Owl", "002.Wren"))
    assert (list(train.labels()), list(test.labels())) == ([1], [0])
    for size in (7, 4):  # made square, so that a network's central square is all of the bird and nothing else
        assert (decode(next(train.records()), CenterCrop(size)) == 255).all()


def test_birdsnap_leaves_out_the_birds_of_cub(tmp_path: Path) -> None:
    for kind in ("Annas_Hummingbird", "Bald_Eagle", "says_phoebe"):
        photo(tmp_path / "birdsnap" / "download" / "images" / kind / "1.jpg", (1, 1, 1))
    assert open_dataset("birdsnap", tmp_path).train.classes == ("Bald_Eagle",)


def hub_table(names: list[str], count: int) -> Any:
    """Write grey images in the hub's format."""
    import datasets as hub

    png = io.BytesIO()
    Image.new("RGB", (4, 4)).save(png, format="PNG")
    features = hub.Features({"image": hub.Image(), "label": hub.ClassLabel(names=names)})
    rows = {
        "image": [{"bytes": png.getvalue(), "path": None}] * count,
        "label": [i % len(names) for i in range(count)],
    }
    return hub.Dataset.from_dict(rows, features=features)


def test_hub_copies_in_several_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "imagenet32" / "data").mkdir(parents=True)
    names = [f"class {i}" for i in range(1000)]
    for shard in range(2):
        hub_table(names, 1000).to_parquet(tmp_path / "imagenet32" / "data" / f"train-0000{shard}-of-00002.parquet")
    found = open_dataset("imagenet32", tmp_path).train
    assert len(found) == 2 * (1000 - len(excluded("imagenet_excluded.csv")))
    assert "class 1" not in found.classes
    (tmp_path / "cub200" / "data").mkdir(parents=True)
    for part, count in (("train0", 4), ("train1", 2), ("test", 3)):  # names without a dash
        hub_table(["Owl", "Wren"], count).to_parquet(tmp_path / "cub200" / "data" / f"{part}.parquet")
    train, test = open_dataset("cub200", tmp_path)
    assert test is not None
    assert (len(train), len(test), train.classes) == (6, 3, ("Owl", "Wren"))
    assert "with whole images" in caplog.text
    monkeypatch.setattr(readers, "IMAGENET", 2000)
    open_dataset("imagenet32", tmp_path)
    assert "1,082,340 in the paper" in caplog.text


def test_missing_data_says_what_where_from_and_how_large(tmp_path: Path, dmc: Callable[..., Answer]) -> None:
    with pytest.raises(DmcError) as caught:
        open_dataset("svhn", tmp_path)
    text = str(caught.value)
    for part in (
        "SVHN is missing",
        "svhn/train_32x32.mat",
        str(tmp_path),
        "182 MB",
        "ufldl.stanford.edu",
        "it can be downloaded",
    ):
        assert part in text
    with pytest.raises(DmcError, match=r"under a data root \(none is given\)"):
        open_dataset("cifar100", None)
    said = dmc("bench", "icifar100", "--data-root", tmp_path, "-o", tmp_path / "out")
    assert said.code == 2
    assert "CIFAR-100 is missing" in said.err
    assert not (tmp_path / "out").exists()


def test_a_download_unpacks_below_the_data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetch(url: str, root: str, md5: str | None) -> None:
        asked.append((url.rsplit("/", 1)[1], Path(root).relative_to(tmp_path).as_posix(), md5 is not None))

    monkeypatch.setattr("torchvision.datasets.utils.download_and_extract_archive", fetch)
    monkeypatch.setattr("torchvision.datasets.utils.download_url", fetch)
    download(["mnist", "svhn"], tmp_path)
    assert asked == [("train-images-idx3-ubyte.gz", "mnist", True), ("train_32x32.mat", "svhn", True)]
    (tmp_path / "svhn").mkdir()
    scipy.io.savemat(tmp_path / "svhn" / "train_32x32.mat", {"X": np.zeros((32, 32, 3, 1), np.uint8)})
    download(["svhn"], tmp_path)
    assert len(asked) == 2  # nothing more is fetched: the files are there
    with pytest.raises(DmcError, match="needs a data root"):
        download(["svhn"], None)


def test_of_two_copies_one_is_read(tmp_path: Path) -> None:
    for copy in ("cub200", "cub200_small"):
        for part in ("train", "test"):
            (tmp_path / copy).mkdir(exist_ok=True)
            hub_table(["Owl", "Wren"], 4).to_parquet(tmp_path / copy / f"{part}.parquet")
    assert len(open_dataset("cub200", tmp_path).train) == 4


def test_folders_are_found_where_they_are_read_from(tmp_path: Path) -> None:
    """COCO may be in aux/; then nothing is missing, and nothing is downloaded."""
    coco = tmp_path / "aux" / "coco"
    (coco / "annotations").mkdir(parents=True)
    (coco / "train2017").mkdir()
    (coco / "annotations" / "instances_train2017.json").write_text("{}")
    require(["coco-others", "coco-exclusive"], tmp_path)
    download(["coco-others", "coco-exclusive"], tmp_path)
    with pytest.raises(DmcError, match=r"instances_train2017.json is not a COCO annotation file"):
        open_dataset("coco-others", tmp_path)


def test_larger_pools_join_two_folders(tmp_path: Path) -> None:
    """Of two tables by WordNet ids, CIFAR-100's classes are left out of both; a bicycle (n02835271) is one of them."""
    for folder, count in (("tiny_imagenet", 2), ("tiny_imagenet_more", 3)):
        for wnid in ("n01629819", "n02835271"):
            for i in range(count):
                photo(tmp_path / "photos" / folder / wnid / f"{i}.png", (40 * i, 90, 10))
        table = datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "photos" / folder), split="train")
        (tmp_path / folder).mkdir()
        table.to_parquet(tmp_path / folder / "train.parquet")
    assert len(open_dataset("tiny-imagenet-more", tmp_path).train) == 5
    assert len(open_dataset("tiny-imagenet", tmp_path).train) == 2
    for folder, count in (("coco", 2), ("coco_more", 3)):
        (tmp_path / folder).mkdir()
        with tarfile.open(tmp_path / folder / "coco-0.tar", "w") as tar:
            for i in range(count):
                tar.add(tmp_path / "photos" / "tiny_imagenet_more" / "n01629819" / f"{i}.png", f"{folder}{i}.png")
    assert len(open_dataset("coco-more", tmp_path).train) == 5
    assert len(open_dataset("coco-small", tmp_path).train) == 2


def test_a_night_has_all_classes_and_the_larger_pools() -> None:
    cifar, voc = (load_profile("night", stream) for stream in ("icifar100", "voc"))
    assert (cifar.classes, cifar.aux, cifar.aux_images, cifar.arch) == (
        None, "tiny-imagenet-more", 64000, "cifar_resnet32"
    )  # fmt: skip
    assert 64000 * cifar.consolidation.epochs >= 500_000  # images seen
    assert (voc.aux, voc.arch, voc.size) == ("coco-more", load_profile("lite", "voc").arch, 128)
