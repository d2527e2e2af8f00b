"""Batches on their way to a device, on a pretended one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch

from dmc.data.batch import Batch
from dmc.data.decode import CenterCrop, Skipped
from dmc.data.detection_batch import DetectionBatch, ShorterSide
from dmc.data.loader import StreamLoader, TensorLoader, open_loader
from dmc.data.open import open_images
from dmc.data.transfer import on_device, resident
from dmc.errors import DmcError
from dmc.tasks import task_for
from tests.conftest import write_images
from tests.fake_gpu import OnGpu, gpu

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def numbered(count: int) -> list[Batch]:
    return [Batch(torch.full((2, 3, 4, 4), i, dtype=torch.uint8), torch.tensor([i, i])) for i in range(count)]


def test_batches_arrive_in_order_through_pinned_memory() -> None:
    with gpu() as pretended:
        found = list(on_device(iter(numbered(5)), CUDA))
        assert [int(batch.labels_N[0]) for batch in found] == [0, 1, 2, 3, 4]
        assert all(isinstance(t, OnGpu) for batch in found for t in (batch.images_N3HW, batch.labels_N))
        assert (found[3].images_N3HW == 3).all()
    assert len(pretended.pinned) == 5 * 2
    assert pretended.uploads.total() == 0


def test_a_cpu_gets_batches_as_they_are() -> None:
    batches = numbered(3)
    source = iter(batches)
    fed = on_device(source, CPU)
    assert next(fed) is batches[0]
    assert next(source) is batches[1]  # nothing was made ahead


def test_one_batch_is_made_ahead() -> None:
    made = [threading.Event() for _ in range(4)]

    def making() -> Iterator[Batch]:
        for event, batch in zip(made, numbered(4), strict=True):
            event.set()
            yield batch

    with gpu():
        fed = on_device(making(), CUDA)
        for i in range(3):
            next(fed)
            assert made[i + 1].wait(timeout=30)
            assert sum(event.is_set() for event in made) == i + 2
        fed.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


def test_an_error_waits_for_its_turn() -> None:
    def breaking() -> Iterator[Batch]:
        yield from numbered(2)
        raise DmcError("no more images")

    with gpu():
        fed = on_device(breaking(), CUDA)
        assert [len(batch) for batch in islice(fed, 2)] == [2, 2]
        with pytest.raises(DmcError, match="no more images"):
            next(fed)


def test_a_stream_gives_the_same_batches(tmp_path: Path) -> None:
    loader = StreamLoader(open_images(write_images(tmp_path, 6)), CenterCrop(16))
    expected = list(islice(loader.batches(seed=0, batch_size=2), 5))
    with gpu() as pretended:
        found = list(on_device(islice(loader.batches(seed=0, batch_size=2), 5), CUDA))
        assert all(torch.equal(a.images_N3HW.cpu(), b.images_N3HW) for a, b in zip(found, expected, strict=True))
    assert pretended.uploads.total() == 0


def test_boxes_travel_with_their_images(squares: Path) -> None:
    source, _ = task_for(squares, None).open_labeled(squares, None, None)
    loader = open_loader(source, ShorterSide(64))
    with gpu() as pretended:
        batch = DetectionBatch.of(next(on_device(loader.batches(seed=0, batch_size=4), CUDA)))
        assert all(isinstance(t, OnGpu) for t in (batch.images_N3HW, *batch.boxes, *batch.labels))
    assert pretended.uploads.total() == 0


def test_images_that_fit_stay_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 images of 768 bytes fit into half of 153,600 bytes, and into no less."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (100, 3, 16, 16), dtype=torch.uint8, generator=draw)
    loader = TensorLoader(images, torch.arange(100), Skipped("noise"))
    assert resident(loader, CPU, identified=False) is loader
    free = 153_600
    with gpu():
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 10 * free))
        held = resident(loader, CUDA, identified=True)
        for ours, theirs in islice(
            zip(held.batches(3, 8, 0, (1, 2)), loader.batches(3, 8, 0, (1, 2)), strict=False), 30
        ):
            assert isinstance(ours.images_N3HW, OnGpu)
            assert torch.equal(ours.images_N3HW.cpu(), theirs.images_N3HW)
            assert ours.labels_N.tolist() == theirs.labels_N.tolist()
        free -= 1
        assert resident(loader, CUDA, identified=False) is loader
