"""Streams: the same batches for any number of threads and processes, decoded once if the disk has room."""

from __future__ import annotations

import io
import itertools
import logging
import tarfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import dmc
from dmc.data.batch import Batch
from dmc.data.decode import CenterCrop, DecodeError, decode_or_skip, decoded
from dmc.data.loader import ALONE, Share, StreamLoader
from dmc.data.open import open_images
from dmc.data.readers import ArrayImages
from dmc.data.scratch import Scratch, room
from dmc.data.sources import Record
from dmc.data.waiting import Watched
from dmc.errors import DmcError
from dmc.seeds import seed_for
from tests.conftest import classifiers, tiny, write_images
from tests.data.test_sources import every_kind, png, write_tar


class Counting(CenterCrop):
    """A transform that counts the images it was asked for, by their first pixel."""

    seen: Counter[int]

    def __call__(self, image: Image.Image) -> torch.Tensor:
        pixels = super().__call__(image)
        self.seen[int(pixels[0, 0, 0])] += 1
        return pixels


def counting(size: int) -> Counting:
    transform = Counting(size)
    object.__setattr__(transform, "seen", Counter())
    return transform


def values(batch: Batch) -> list[int]:
    return batch.images_N3HW[:, 0, 0, 0].tolist()


def batches(
    loader: StreamLoader, batch_size: int, steps: int, first_step: int = 0, share: Share = ALONE
) -> list[Batch]:
    return list(islice(loader.batches(0, batch_size, first_step, share), steps))


@pytest.mark.parametrize("kind", range(5), ids=["folder", "parquet", "tar", "array", "hub"])
def test_processes_share_each_batch_and_the_order_is_that_of_one(
    tmp_path: Path, kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)  # five seconds after each pass
    source = open_images(every_kind(tmp_path)[kind])
    whole = [values(batch) for batch in batches(StreamLoader(source, CenterCrop(4)), 4, 6)]
    assert [len(batch) for batch in whole] == [3, 3, 4] * 2
    for one_pass in (whole[:3], whole[3:]):
        assert sorted(chain(*one_pass)) == list(range(10 * kind, 10 * kind + 10))
    for processes, first_step in itertools.product((1, 2, 3), (0, 2, 4)):
        shares = [(rank, processes) for rank in range(processes)]
        parts = [batches(StreamLoader(source, CenterCrop(4)), 4, 6 - first_step, first_step, one) for one in shares]
        joined = [list(chain(*map(values, step))) for step in zip(*parts, strict=True)]
        assert joined == whole[first_step:]


def test_a_process_decodes_nothing_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of batches of 100, the second of three processes has images 33 to 65."""
    source = ArrayImages(np.zeros((1000, 4, 4), np.uint8))
    place = {record.name: i for i, record in enumerate(source.records(seed_for(0, "order", 0)))}
    loader = StreamLoader(source, CenterCrop(4), workers=2)
    asked = [place[record.name] for record in islice(loader._own(0, 100, 4, (1, 3)), 33 * 6)]
    assert asked == [100 * step + i for step in range(4, 10) for i in range(33, 66)]
    opened: list[int] = []

    def noting(record: Record, transform: CenterCrop) -> torch.Tensor | DecodeError:
        opened.append(place[record.name])
        return decode_or_skip(record, transform)

    monkeypatch.setattr("dmc.data.decode.decode_or_skip", noting)
    assert len(batches(loader, 100, 1, share=(1, 3))[0]) == 33
    assert {33 <= i % 100 < 66 for i in opened} == {True}


def test_a_batch_that_is_too_small_for_all_processes_is_refused() -> None:
    loader = StreamLoader(ArrayImages(np.zeros((4, 4, 4), np.uint8)), CenterCrop(4))
    with pytest.raises(DmcError, match="a batch of 2 images is too small for 3 processes"):
        batches(loader, 2, 1, share=(0, 3))


@pytest.mark.parametrize("keeps", [True, False])
def test_threads_and_kept_pixels_change_no_bit(tmp_path: Path, keeps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not keeps:
        monkeypatch.setattr("dmc.data.loader.room", lambda _: 0)
    write_images(tmp_path, 60)
    (tmp_path / "001.png").write_bytes(b"broken")
    photo = Image.open(tmp_path / "002.png").resize((90, 70))
    photo.save(tmp_path / "003.jpg")
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    photo.save(tmp_path / "004.jpg", exif=exif)
    source = open_images(tmp_path)
    expected: dict[int, list[torch.Tensor]] = {}
    for workers in (1, 2, 4):
        found = batches(StreamLoader(source, CenterCrop(16), workers), 16, 12)  # three passes
        expected[workers] = [batch.images_N3HW for batch in found]
    for one, *others in zip(*expected.values(), strict=True):
        assert all(torch.equal(one, other) for other in others)
    order = list(source.records(seed_for(0, "order", 2)))[:15]  # the first batch of the third pass
    alone = [decode_or_skip(record, CenterCrop(16)) for record in order]
    assert torch.equal(expected[1][8], torch.stack([pixels for pixels in alone if isinstance(pixels, torch.Tensor)]))


def test_a_later_pass_decodes_nothing(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", range(40))
    transform = counting(4)
    first: list[int] = []
    second: list[int] = []
    with closing(StreamLoader(open_images(tmp_path), transform, 1).batches(0, 10)) as stream:  # type: ignore[type-var]
        for i, batch in enumerate(islice(stream, 40)):  # ten passes, most of them beyond what is decoded ahead
            (first if i < 4 else second).extend(values(batch))
    assert sorted(first) == list(range(40))
    assert Counter(second) == dict.fromkeys(range(40), 9)
    assert transform.seen == dict.fromkeys(range(40), 1)


def test_a_full_scratch_file_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [Record(png(i), 0, str(i)) for i in range(20)]
    transform = counting(4)
    decode = partial(decode_or_skip, transform=transform)

    def shown(scratch: Scratch) -> list[int]:
        found = [scratch.pixels(record, decode) for record in records]
        return [int(pixels[2, 3, 3]) for pixels in found if isinstance(pixels, torch.Tensor)]

    with Scratch(20, 4, most_bytes=5 * 48) as scratch:
        assert shown(scratch) == shown(scratch) == list(range(20))
        assert transform.seen == {i: 1 if i < 5 else 2 for i in range(20)}
    monkeypatch.setattr("os.pwrite", lambda *_: 47)  # of 48 bytes: the disk is full
    with Scratch(20, 4, most_bytes=10_000) as scratch:
        transform.seen.clear()
        assert shown(scratch) == shown(scratch) == list(range(20))
        assert transform.seen == dict.fromkeys(range(20), 2)


def test_a_scratch_file_leaves_most_of_the_disk_free(monkeypatch: pytest.MonkeyPatch) -> None:
    class Disk:
        free = 8_000_000

    monkeypatch.setattr("shutil.disk_usage", lambda _: Disk)
    assert (room(1), room(4)) == (2_000_000, 500_000)
    Disk.free = 10**15
    assert room(2) == 8 * 2**30
    monkeypatch.delattr("os.preadv")  # Windows
    assert room(1) == 0


def test_a_source_that_breaks_off_does_so_at_its_place() -> None:
    def records() -> Iterator[Record]:
        yield from (Record(png(i), 0, str(i)) for i in range(50))
        raise DmcError("the network is gone")

    images = decoded(records(), CenterCrop(4), workers=3)
    assert [record.name for record, _ in islice(images, 48)] == [str(i) for i in range(48)]  # in chunks of 16
    with pytest.raises(DmcError, match="the network is gone"):
        next(images)


def test_whoever_stops_taking_batches_leaves_no_thread_behind(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", range(40))
    before = threading.active_count()
    stream = StreamLoader(open_images(tmp_path), CenterCrop(4), 3).batches(0, 10)
    next(stream)
    assert threading.active_count() > before
    del stream
    assert threading.active_count() == before


def test_headers_of_a_tar_shard_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that need a header of their own, members that are no images, and compressed shards."""
    long = "x" * 150
    for name in ("plain.tar", "packed.tgz"):
        with tarfile.open(tmp_path / name, "w:gz" if name.endswith("gz") else "w") as tar:
            for i, member in enumerate(("a.png", "b.json", f"{long}.png", "d.png", "é.png")):
                info = tarfile.TarInfo(member)
                info.size, info.mtime = len(png(i)), 0.5
                tar.addfile(info, io.BytesIO(png(i)))
    plain, packed = (open_images(tmp_path / name) for name in ("plain.tar", "packed.tgz"))
    read = [[(r.name.split(":")[1], r.image) for r in source.records()] for source in (plain, packed)]
    assert (
        read[0] == read[1] == [(n, png(i)) for i, n in ((0, "a.png"), (2, f"{long}.png"), (3, "d.png"), (4, "é.png"))]
    )
    assert [record.name for record in packed.records()] == list(packed.names())
    monkeypatch.setattr(tarfile, "open", None)
    assert len(list(plain.records(seed=1))) == len(plain) == 4


def test_a_run_may_be_resumed_with_other_workers(tmp_path: Path, aux_folder: Path, labeled_folder: Path) -> None:
    one, three = (
        classifiers([tiny("ab", 1), tiny("cd", 2)], aux_folder, dmc.Schedule(epochs=1), workers=workers, memory=0)
        for workers in (1, 3)
    )
    assert one.run_json == three.run_json
    loader, _ = three.open_loaders(tmp_path)
    assert isinstance(loader, StreamLoader)
    assert loader.workers == 3
    how: Any = {"arch": "cifar_resnet8", "size": 16, "epochs": 1, "memory": 0, "val": None}
    first = dmc.train(labeled_folder, tmp_path / "m", workers=1, **how)
    again = dmc.train(labeled_folder, tmp_path / "m", workers=2, resume=True, **how)
    fresh = dmc.train(labeled_folder, workers=4, **how)
    assert first.fingerprint == again.fingerprint == fresh.fingerprint


def test_waiting_is_measured_and_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A clock that the test moves: each batch takes three seconds to come and seven to train on."""
    now = 0.0
    monkeypatch.setattr("dmc.data.waiting.time.monotonic", lambda: now)

    def slow() -> Iterator[Batch]:
        nonlocal now
        while True:
            now += 3
            yield Batch(torch.zeros(1), torch.zeros(1))

    watched = Watched(slow())
    with caplog.at_level(logging.INFO, "dmc"):
        for _ in range(2):
            for _ in islice(watched, 4):
                now += 7
            assert watched.share_waited() == pytest.approx(0.3)
        now += 100
        assert watched.share_waited() == 0
    assert caplog.messages == ["training waits for images 30% of the time: more workers may help"]
