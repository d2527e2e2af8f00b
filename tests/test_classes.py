"""Class names as data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmc.classes import Classes, ClassUnion, counted, read_names
from dmc.errors import DmcError
from dmc.imagenet import distinct

names = st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=8, unique=True)
several = st.lists(names, min_size=1, max_size=4)


def test_union_is_in_order_of_first_appearance() -> None:
    union = ClassUnion.of([("cat", "dog"), ("dog", "bird"), ("fish", "cat")])
    assert union.names == ("cat", "dog", "bird", "fish")
    assert union.columns == ((0, 1), (1, 2), (3, 0))
    assert union.teachers_per_class == (2, 2, 1, 1)
    assert union.shared == ("cat", "dog")


def test_one_class_is_not_many() -> None:
    assert (counted(["car"]), counted(["car", "bus"])) == ("1 class", "2 classes")


@given(several)
def test_every_model_finds_its_own_classes_in_the_union(parts: list[list[str]]) -> None:
    union = ClassUnion.of(parts)
    assert set(union.names) == {name for part in parts for name in part}
    assert len(set(union.names)) == len(union.names)
    for part, columns in zip(parts, union.columns, strict=True):
        assert [union.names[j] for j in columns] == part
    assert sum(union.teachers_per_class) == sum(map(len, parts))


@given(several)
def test_joining_one_by_one_or_all_at_once_gives_the_same_names(parts: list[list[str]]) -> None:
    so_far: tuple[str, ...] = ()
    for part in parts:
        so_far = ClassUnion.of([so_far, part]).names
    assert so_far == ClassUnion.of(parts).names


@given(names, st.data())
def test_a_subset_still_reads_the_outputs_it_had(all_names: list[str], data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.sampled_from(all_names), min_size=1))
    kept = Classes.of(all_names).keep(wanted)
    assert set(kept.names) == set(wanted)
    assert kept.width == len(all_names)
    assert [all_names[column] for column in kept.columns] == list(kept.names)
    assert kept.whole == (set(wanted) == set(all_names))
    assert kept.keep(kept.names) == kept


@given(names, st.data())
def test_renaming_and_back_changes_nothing(all_names: list[str], data: st.DataObject) -> None:
    old = data.draw(st.sampled_from(all_names))
    classes = Classes.of(all_names)
    renamed = classes.rename({old: "new name"})
    assert renamed.columns == classes.columns
    assert old not in renamed.names
    assert renamed.rename({"new name": old}) == classes


def test_unknown_names_come_with_the_nearest_one() -> None:
    with pytest.raises(DmcError, match=r"no class 'catt'; did you mean 'cat'\?"):
        Classes.of(["cat", "dog"]).keep(["catt"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Classes.of(["cat", "cat"]),
        lambda: Classes.of(["cat", "dog"]).rename({"dog": "cat"}),
    ],
)
def test_one_model_cannot_use_a_name_twice(make: object) -> None:
    with pytest.raises(DmcError, match="'cat' is named twice"):
        make()  # type: ignore[operator]


def test_public_label_lists_with_repetitions_become_distinct() -> None:
    assert distinct(["crane", "tench", "crane"]) == ("crane", "tench", "crane (2)")


def test_a_class_list_is_a_name_on_each_line(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("tench, Tinca tinca\n\n  goldfish \n")
    assert read_names(tmp_path / "names.txt") == ("tench, Tinca tinca", "goldfish")


IMAGENET = [
    "tabby, tabby cat",
    "zebra",
    "skunk, polecat, wood pussy",
    "polecat, fitch, foulmart",
    "Cardigan, Cardigan Welsh corgi",
    "cardigan",
    "crane",
    "crane (2)",
]


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("tabby, tabby cat", "tabby, tabby cat"),
        ("tabby", "tabby, tabby cat"),
        ("Tabby Cat", "tabby, tabby cat"),
        ("Zebra", "zebra"),
        ("TABBY,TABBY CAT", "tabby, tabby cat"),
        ("wood pussy", "skunk, polecat, wood pussy"),
        ("cardigan", "cardigan"),  # a class's own name comes before another's synonym
        ("n02123045", "tabby, tabby cat"),
        ("n02012849", "crane"),  # the bird
        ("n03126707", "crane (2)"),  # the machine, which has the same name in ImageNet
    ],
)
def test_a_class_is_found_by_what_people_call_it(typed: str, name: str) -> None:
    classes = Classes.of(IMAGENET)
    assert classes.names[classes.require(typed)] == name
    assert classes.keep([typed]).names == (name,)
    renamed = classes.rename({typed: "new"})
    assert renamed.names.index("new") == IMAGENET.index(name)
    assert len(set(renamed.names) - set(IMAGENET)) == 1


def test_a_word_that_may_mean_two_classes_is_refused() -> None:
    several = "2 classes that 'polecat' may mean: 'skunk, polecat, wood pussy' or 'polecat, fitch, foulmart'; write"
    with pytest.raises(DmcError, match=re.escape(several)):
        Classes.of(IMAGENET).keep(["polecat"])
    with pytest.raises(DmcError, match="'Cardigan, Cardigan Welsh corgi' or 'cardigan'"):
        Classes.of(IMAGENET).require("Cardigan")
    assert Classes.of(IMAGENET).keep(["polecat, fitch, foulmart"]).names == ("polecat, fitch, foulmart",)


@pytest.mark.parametrize("unknown", ["tab", "cat", "n00000000", "n02123046", "", "tabby zebra"])
def test_parts_of_words_find_nothing(unknown: str) -> None:
    with pytest.raises(DmcError, match="the model has no class"):
        Classes.of(IMAGENET).require(unknown)


def test_the_longest_name_in_a_list_is_meant() -> None:
    classes = Classes.of(["robin, American robin, Turdus migratorius", "robin, redbreast", "zebra", "jay", "owl,bird"])
    kept = classes.keep(["robin, American robin, Turdus migratorius,zebra"])
    assert kept.names == ("robin, American robin, Turdus migratorius", "zebra")
    assert classes.keep(["jay , robin,redbreast,Zebra"]).names == ("robin, redbreast", "zebra", "jay")
    assert classes.keep(["owl,bird"]).names == ("owl,bird",)
    assert Classes.of(["a, b", "a, b, c", "c", "d"]).keep(["a, b, c, d"]).names == ("a, b, c", "d")
    assert classes.keep(["owl, jay"]).names == ("jay", "owl,bird")
    with pytest.raises(DmcError, match=r"no class 'zebr'; did you mean 'zebra'\?"):
        classes.keep(["jay,zebr"])
