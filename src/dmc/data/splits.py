"""Tell folders that hold a training set and a held-out set side by side from folders of classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from dmc.data.readers import IMAGE_SUFFIXES, images_below, subfolders
from dmc.errors import DmcError

ROLES = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}


class Split(NamedTuple):
    """The folders, or the tables, of a training set and of a held-out set."""

    train: Path
    held_out: Path


def find_split(folder: Path) -> Split | None:
    """Find the two sets in a folder; give None if it holds classes or a single set, and refuse what could be either.

    A folder `train` with images directly in it, beside other such folders, is a class (of vehicles, say).
    """
    parts = [part for part in subfolders(folder) if _holds_images(part)]
    if not parts:
        return _split_of_tables(folder)
    found = {role: [part for part in parts if part.name.lower() in names] for role, names in ROLES.items()}
    sets = [part for same in found.values() for part in same]
    if not sets:
        return None
    others = [part for part in parts if part not in sets and part.name != "aux"]  # a benchmark's auxiliary images
    for role, same in found.items():
        if len(same) > 1:
            _refuse(folder, f"{_shown(same)} could both be the {role} set", "name one of them")
    train, held_out = found["train"], found["validation"] or found["test"]
    chosen = train + held_out
    remedy = f"name {chosen[0]} itself"
    flat = [part for part in chosen if not any(map(_holds_images, subfolders(part)))]
    if flat == chosen and others and not (train and held_out):
        return None
    _require_classes(folder, chosen, flat)
    if others:
        _refuse(folder, f"{others[0].name}/ looks like a class, beside {_shown(chosen)} with classes inside", remedy)
    if not (train and held_out):
        missing = "train/" if held_out else "val/ or test/"
        _refuse(folder, f"{_shown(chosen)} holds classes, and there is no {missing} beside it", remedy)
    return Split(train[0], held_out[0])


def require_one_set(folder: Path) -> None:
    """Refuse a folder that holds both a training set and a held-out set, where one set is wanted."""
    split = find_split(folder)
    if split:
        _refuse(folder, "it holds a training set and one to test on", f"name {split.train} or {split.held_out}")


def _require_classes(folder: Path, sets: Sequence[Path], flat: Sequence[Path]) -> None:
    """Refuse a set that has images anywhere but in class folders; `flat` are the sets without class folders."""
    for part in sets:
        if part in flat:
            why = f"{part.name}/ holds images but no class folders, and could be a class or a set"
            _refuse(folder, why, "put its images into class folders, or rename it if it is a class")
        if any(_is_image(file) for file in part.iterdir()):
            why = f"{part.name}/ holds both images and folders of images, and could be a class or a set"
            _refuse(folder, why, "put all of its images into class folders, or none")


def _split_of_tables(folder: Path) -> Split | None:
    """Find `train.parquet` beside `val.parquet` or `test.parquet`; None without such a pair, or with other tables."""
    tables = {file.stem.lower(): file for file in sorted(folder.glob("*.parquet"))}
    found = {role: [tables[name] for name in names if name in tables] for role, names in ROLES.items()}
    held_out = found["validation"] or found["test"]
    if sum(map(len, found.values())) < len(tables) or any(len(same) > 1 for same in found.values()):
        return None
    return Split(found["train"][0], held_out[0]) if found["train"] and held_out else None


def _holds_images(folder: Path) -> bool:
    return next(images_below(folder), None) is not None


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".")


def _shown(folders: Sequence[Path]) -> str:
    return " and ".join(f"{folder.name}/" for folder in folders)


def _refuse(folder: Path, why: str, remedy: str) -> NoReturn:
    raise DmcError(f"{folder} is ambiguous: {why}; {remedy}")
