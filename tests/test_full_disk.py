"""A full disk, or one that may only be read, at any write of a training: one line, and nothing is lost."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Answer
from tests.test_refusals import only_line

Dmc = Callable[..., Answer]
SMALL = ("--arch", "cifar_resnet8", "--size", 16, "--epochs", 1, "--batch-size", 8)
# Every how many writes one fails, since a failure takes two runs. All were tried, also of bench (docs/reliability.md).
EVERY = {"train": 3, "consolidate": 5, "learn": 9}
WORDS = {errno.ENOSPC: "the disk is full", errno.EROFS: os.strerror(errno.EROFS)}


class Disk:
    """A disk on which one write fails; every file that dmc writes is synced before it takes its place."""

    def __init__(self) -> None:
        self.writes, self.fails_at, self.why = 0, -1, errno.ENOSPC

    def sync(self, _: int) -> None:
        self.writes += 1
        if self.writes - 1 == self.fails_at:
            raise OSError(self.why, os.strerror(self.why))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr("os.fsync", disk.sync)
    return disk


def files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def weights(folder: Path) -> list[str]:
    """Give the hash of every model below a folder."""
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in files(folder) if path.suffix == ".safetensors"]


def commands(models: tuple[Path, Path], labeled: Path, aux: Path) -> dict[str, tuple[object, ...]]:
    merge = ("--aux", aux, "--epochs", 1, "--batch-size", 8, "--checkpoint-every", 0, "--resume")
    return {
        "train": ("train", labeled, *SMALL, "--resume"),
        "consolidate": ("consolidate", *models, "--cache", aux.parent / "answers", *merge),
        "learn": ("learn", models[0], labeled, "--specialist-epochs", 1, *merge),
    }


@pytest.mark.parametrize("verb", list(EVERY))
def test_no_write_that_fails_loses_anything(
    verb: str, dmc: Dmc, disk: Disk, two_models: tuple[Path, Path], labeled_folder: Path, aux_folder: Path
) -> None:
    command, place = commands(two_models, labeled_folder, aux_folder)[verb], aux_folder.parent
    assert dmc(*command, "-o", place / "whole").code == 0
    writes, wanted = disk.writes, weights(place / "whole")
    assert writes > 3
    assert wanted
    for fails_at in range(EVERY[verb] // 2, writes, EVERY[verb]):
        out, why = place / f"out-{fails_at}", list(WORDS)[fails_at % 2]
        disk.writes, disk.fails_at, disk.why = 0, fails_at, why
        said = dmc(*command, "-o", out)
        if said.code:  # the cache alone may fail without ending the run
            only_line(said, "cannot write", WORDS[why])
        disk.fails_at = -1
        assert dmc(*command, "-o", out).code == 0
        assert weights(out) == wanted
        assert not [path for path in files(out) if path.suffix in (".part", ".lock")]
