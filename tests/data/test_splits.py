"""Folders of sets told from folders of classes, and what is held out where there are no sets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dmc.data.open import open_labeled, open_with_held_out
from dmc.data.readers import ArrayImages
from dmc.data.splits import find_split
from dmc.data.subsets import share_held_out
from dmc.errors import DmcError
from tests.conftest import write_images
from tests.data.test_sources import hub_table


def folder_of(root: Path, *parts: str) -> Path:
    """Write an image into each of these folders; add a hidden and an empty folder, which must be ignored."""
    for part in parts:
        write_images(root / part, 1)
    (root / "empty").mkdir()
    write_images(root / ".cache", 1)
    return root


@pytest.mark.parametrize(
    ("names", "train", "held_out"),
    [
        ("train val", "train", "val"),
        ("Training VALID", "Training", "VALID"),
        ("train validation test", "train", "validation"),
        ("train testing", "train", "testing"),
    ],
)
def test_sets_are_found_by_their_names(tmp_path: Path, names: str, train: str, held_out: str) -> None:
    folder_of(tmp_path, *(f"{name}/{kind}" for name in names.split() for kind in ("cat", "dog")))
    assert find_split(tmp_path) == (tmp_path / train, tmp_path / held_out)
    source, beside = open_with_held_out(tmp_path)
    assert source.classes == ("cat", "dog")
    assert source.name == str(tmp_path / train)
    assert beside is not None
    assert beside.name == str(tmp_path / held_out)
    with pytest.raises(DmcError, match=f"is ambiguous: it holds .*; name {tmp_path}/{train} or {tmp_path}/{held_out}"):
        open_labeled(tmp_path)


def test_a_benchmarks_folder_may_hold_auxiliary_images_and_unlabeled_ones(tmp_path: Path) -> None:
    folder_of(tmp_path, "train/cat", "val/cat", "test", "aux")
    assert find_split(tmp_path) == (tmp_path / "train", tmp_path / "val")


@pytest.mark.parametrize("parts", ["train bus car", "test cat", "cat/indoors dog", "training validated", "cat"])
def test_folders_of_classes_stay_that(tmp_path: Path, parts: str) -> None:
    """A folder `train` with images directly in it, beside other such folders, is a class."""
    folder_of(tmp_path, *parts.split())
    assert find_split(tmp_path) is None
    source, beside = open_with_held_out(tmp_path)
    assert source.classes == tuple(sorted(part.split("/")[0] for part in parts.split()))
    assert beside is None


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ("train/cat train/dog", "train/ holds classes, and there is no val/ or test/ beside it; name .*/train itself"),
        ("val/cat val/dog", "val/ holds classes, and there is no train/ beside it; name .*/val itself"),
        ("train/cat val/cat dog", "dog/ looks like a class, beside train/ and val/ with classes inside; name .*/train"),
        ("train/steam bus", "bus/ looks like a class, beside train/ with classes inside"),
        ("train val", "train/ holds images but no class folders, and could be a class or a set; put its images into"),
        ("train test bus", "train/ holds images but no class folders"),
        ("train/cat val", "val/ holds images but no class folders"),
        ("train", "train/ holds images but no class folders"),
        ("train train/cat val/cat", "train/ holds both images and folders of images"),
        ("train train/steam bus", "train/ holds both images and folders of images"),
        ("train/cat training/cat val/cat", "train/ and training/ could both be the train set; name one of them"),
        ("train/cat val/cat valid/cat", "val/ and valid/ could both be the validation set"),
        ("train/cat train/dog val/cat", "train has a class 'dog', .*val does not; make them alike, or name .*/train"),
        ("train/cat val/cat val/dog", "val has a class 'dog', .*train does not"),
    ],
)
def test_what_is_ambiguous_is_refused(tmp_path: Path, parts: str, words: str) -> None:
    folder_of(tmp_path, *parts.split())
    with pytest.raises(DmcError, match=f"{tmp_path} is ambiguous: .*{words}") as error:
        open_with_held_out(tmp_path)
    assert "\n" not in str(error.value)
    with pytest.raises(DmcError, match="is ambiguous"):
        open_labeled(tmp_path)


def test_tables_are_sets_too(tmp_path: Path) -> None:
    hub_table([0, 1, 1]).to_parquet(tmp_path / "train.parquet")
    assert open_with_held_out(tmp_path)[1] is None  # one file is the data
    hub_table([0, 1]).to_parquet(tmp_path / "Test.parquet")
    for spec in (tmp_path, f"{tmp_path},label=fine_label"):
        source, beside = open_with_held_out(spec)
        assert (len(source), len(beside or ())) == (3, 2)
    with pytest.raises(DmcError, match=r"name .*/train\.parquet or .*/Test\.parquet"):
        open_labeled(tmp_path)
    hub_table([0]).to_parquet(tmp_path / "more.parquet")
    with pytest.raises(DmcError, match="holds 3 files: name one"):
        open_with_held_out(tmp_path)


def numbered(*counts: int) -> ArrayImages:
    """Make this many images of each class, one class after the other; the grey value of an image is its position."""
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    pixels = np.arange(len(labels), dtype=np.uint8)[:, None, None] * np.ones((1, 4, 4), np.uint8)
    return ArrayImages(pixels, labels, [f"class {label}" for label in range(len(counts))], "numbered")


def places(source: object) -> list[int]:
    return [int(record.image[0, 0]) for record in source.records()]  # type: ignore[attr-defined]


def test_every_tenth_image_of_each_class_is_held_out() -> None:
    """Two classes with 31 and 9 images: the 10th, 20th and 30th of the first are held out, none of the second."""
    source, held_out = share_held_out(numbered(31, 9))
    assert held_out is not None
    assert places(held_out) == [9, 19, 29]
    assert places(source) == [i for i in range(40) if i not in (9, 19, 29)]
    assert (len(source), len(held_out)) == (37, 3)
    assert source.classes == held_out.classes == ("class 0", "class 1")
    assert Counter(r.label for r in source.records(seed=3)) == {0: 28, 1: 9}
    assert {r.name for r in source.records(seed=3)}.isdisjoint(r.name for r in held_out.records(seed=3))
    assert held_out.name == "every 10th image of numbered"


def test_where_images_are_few_none_is_held_out() -> None:
    source = numbered(31, 8)
    assert share_held_out(source) == (source, None)
    kept, held_out = share_held_out(source.keep(["class 0"]))
    assert (len(kept), len(held_out or ())) == (28, 3)
