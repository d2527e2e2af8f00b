"""Sources made of other sources: joined, sampled, without labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dmc.config import ConsolidateConfig
from dmc.data.auxiliary import open_auxiliary
from dmc.data.open import open_images, open_labeled, refuse_overlap, sample_of
from dmc.data.readers import ArrayImages
from dmc.data.sources import Record
from dmc.data.subsets import JoinedImages, Unlabeled
from dmc.errors import DmcError
from tests.conftest import write_images
from tests.data.test_sources import every_kind, values


def test_joined_sources_are_mixed() -> None:
    """Each class comes from one of the sources. Both are read to the end, and neither comes first."""
    many, few = (ArrayImages(np.zeros((n, 4, 4), np.uint8), [0] * n, [name]) for n, name in ((300, "a"), (100, "b")))
    joined = JoinedImages(many, few)
    assert [r.label for r in joined.records()] == [0] * 300 + [1] * 100
    labels = [r.label for r in joined.records(seed=0)]
    assert Counter(labels) == {0: 300, 1: 100}
    for quarter in range(4):
        assert 10 < sum(labels[100 * quarter : 100 * (quarter + 1)]) < 40


def test_unlabeled_images_of_every_kind_are_joined_and_sampled(tmp_path: Path) -> None:
    specs = every_kind(tmp_path)
    array = np.stack([np.full((4, 4), 50 + i, np.uint8) for i in range(10)])
    joined = open_images([*specs, array, array + 10])
    assert joined.classes == ()
    assert len(joined) == 70
    assert values(joined) == list(range(70))
    mixed = values(joined, seed=1)
    assert sorted(mixed) == list(range(70))
    assert all(len({value // 10 for value in mixed[i : i + 14]}) >= 4 for i in range(0, 70, 14))
    assert {record.label for record in joined.records()} == {-1}
    assert len({record.name for record in joined.records()}) == 70
    sample = sample_of(joined, 20, seed=0)
    found = values(sample)
    assert len(sample) == len(set(found)) == 20
    assert found == sorted(found) != list(range(20))
    assert sorted(values(sample, seed=5)) == found != values(sample, seed=5)
    assert set(values(sample_of(joined, 10, seed=0))) < set(found)
    assert values(sample_of(joined, 20, seed=1)) != found == values(sample_of(joined, 20, seed=0))


@pytest.mark.parametrize("kind", range(5))
def test_a_sample_of_any_source_is_the_same_in_every_order(tmp_path: Path, kind: int) -> None:
    source = open_images(every_kind(tmp_path)[kind])
    sample = sample_of(source, 0.4, seed=2)
    chosen = values(sample)
    assert len(sample) == len(chosen) == 4
    assert set(chosen) < set(values(source))
    orders = [values(sample, seed) for seed in range(3)]
    assert all(sorted(order) == chosen for order in orders)
    assert any(order != chosen for order in orders)
    assert values(sample_of(Unlabeled(source), 0.4, seed=2)) == chosen
    for seed in range(3):
        assert sorted(values(sample_of(Unlabeled(source), 0.4, seed=2), seed)) == chosen


def test_to_choose_images_none_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For parquet, tar and the hub, names and labels are known without reading records."""
    sources = [open_images(spec) for spec in every_kind(tmp_path)]
    labeled = open_labeled(tmp_path / "0.parquet").keep(["cat"])
    names = [[record.name for record in source.records()] for source in (*sources, labeled)]
    for source in (*sources[1:3], sources[4]):
        monkeypatch.setattr(type(source), "records", None)
    for source, known in zip((*sources, labeled), names, strict=True):
        assert list(source.names()) == known
    assert list(labeled.labels()) == [0] * 5


@pytest.mark.parametrize(
    ("limit", "count"),
    [(3, 3), ("3", 3), (0.25, 2), ("0.25", 2), ("25%", 2), ("1", 1), ("1.0", 10), ("0.1%", 1), (99, 10)],
)
def test_a_number_or_a_share(limit: int | float | str, count: int) -> None:
    """A quarter of ten, 2.5, is rounded to the even 2; a share is at least one image."""
    images = np.zeros((10, 4, 4), np.uint8)
    assert len(open_auxiliary(images, ConsolidateConfig.of({"aux_limit": limit}))) == count


@pytest.mark.parametrize("limit", [0, "0", "-1", "1.5", "101%", "many", "nan", "", "%", 0.0])
def test_what_is_neither_a_number_nor_a_share(limit: int | float | str) -> None:
    with pytest.raises(DmcError, match=r"is neither a number of images nor a share of them, such as 0\.25 or 25%"):
        ConsolidateConfig.of({"aux_limit": limit})


def test_an_image_that_is_named_twice_does_not_count_twice(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "a", 2)
    write_images(folder / "b", 2)
    for one, other in (("a", "a/b"), ("a/b", "a/"), ("*", "a"), ("a", "a")):
        with pytest.raises(DmcError, match="are named twice, and would count twice: name them once"):
            open_images([f"{tmp_path}/{one}", f"{tmp_path}/{other}"])
    write_images(tmp_path / "ab", 2)
    assert len(open_images([folder, tmp_path / "ab"])) == 6
    refuse_overlap([f"{tmp_path}/scenes.json,images={folder}", tmp_path / "ab"])  # labeled scenes, and a pool
    with pytest.raises(DmcError, match="are named twice"):
        refuse_overlap([f"{tmp_path}/scenes.json,images={folder}", folder / "b"])
    with pytest.raises(DmcError, match="no images are named"):
        open_images([])


def test_images_of_one_name_cannot_be_chosen() -> None:
    class Nameless(ArrayImages):
        def records(self, seed: int | None = None) -> Iterator[Record]:
            return (record._replace(name="") for record in super().records(seed))

    with pytest.raises(DmcError, match="images of array have the same name"):
        sample_of(Nameless(np.zeros((10, 4, 4), np.uint8)), 5, seed=0)
