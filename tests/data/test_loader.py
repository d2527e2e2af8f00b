"""Batches from memory and from a stream: the same images, and any step can be found again."""

from __future__ import annotations

import weakref
from itertools import chain, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from dmc.data.decode import CenterCrop
from dmc.data.loader import ImageLoader, StreamLoader, TensorLoader, open_loader
from dmc.data.open import open_images
from dmc.errors import DmcError
from tests.conftest import write_images

FIFTY = np.stack([np.full((4, 4), i, np.uint8) for i in range(50)])


def both_loaders() -> list[ImageLoader]:
    """Open 50 images twice: held in memory, and streamed."""
    source = open_images(FIFTY)
    return [open_loader(source, CenterCrop(4)), open_loader(source, CenterCrop(4), memory=100)]


def content(loader: ImageLoader, steps: int, first_step: int = 0, seed: int = 0) -> list[list[int]]:
    """Give the grey values, and so the images, of each batch."""
    batches = islice(loader.batches(seed, 16, first_step), steps)
    return [batch.images_N3HW[:, 0, 0, 0].tolist() for batch in batches]


def test_what_fits_is_held_and_what_does_not_is_streamed() -> None:
    held, streamed = both_loaders()
    assert isinstance(held, TensorLoader)
    assert held.images_N3HW.dtype == torch.uint8
    assert isinstance(streamed, StreamLoader)


@pytest.mark.parametrize("kind", [0, 1])
def test_a_pass_shows_every_image_once_in_batches_of_nearly_equal_size(kind: int) -> None:
    loader = both_loaders()[kind]
    assert loader.steps(16) == 4
    first, second = content(loader, 4), content(loader, 4, first_step=4)
    assert [len(batch) for batch in first] == [12, 13, 12, 13]
    assert sorted(chain(*first)) == list(range(50)) == sorted(chain(*second))
    assert first != second


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("first_step", [1, 3, 4, 6])
def test_any_step_can_be_found_again(kind: int, first_step: int) -> None:
    loader = both_loaders()[kind]
    assert content(loader, 9 - first_step, first_step) == content(loader, 9)[first_step:]
    assert content(loader, 4, seed=1) != content(loader, 4, seed=2)


def test_evaluation_order_is_the_stored_order() -> None:
    for loader in both_loaders():
        seen = [batch.images_N3HW[:, 0, 0, 0].tolist() for batch in loader.in_order(16)]
        assert list(chain(*seen)) == list(range(50))


def test_broken_images_are_skipped_and_counted(tmp_path: Path) -> None:
    write_images(tmp_path, 39)
    (tmp_path / "broken.png").write_bytes(b"no")
    source = open_images(tmp_path)
    held, streamed = open_loader(source, CenterCrop(4)), open_loader(source, CenterCrop(4), memory=100)
    assert held.count == 39
    assert list(held.skipped.names) == [str(tmp_path / "broken.png")]
    assert sum(len(batch) for batch in islice(streamed.batches(0, 20), 2)) == 39
    assert list(streamed.skipped.names) == [str(tmp_path / "broken.png")]
    assert content(streamed, 3, first_step=1) == content(streamed, 4)[1:]


def test_the_first_broken_images_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_images(tmp_path, 60)
    for i in range(5):
        (tmp_path / f"x{i}.png").write_bytes(b"no")
    loader = open_loader(open_images(tmp_path), CenterCrop(4), memory=100)
    for _ in range(2):  # the second pass names none again
        assert sum(len(batch) for batch in loader.in_order(20)) == 60
    assert [Path(said.split(":")[0]).name for said in caplog.messages] == ["x0.png", "x1.png", "x2.png"]
    assert len(loader.skipped) == 5


def test_more_than_a_tenth_broken_stops_the_run(tmp_path: Path) -> None:
    write_images(tmp_path, 8)
    (tmp_path / "broken.png").write_bytes(b"no")
    with pytest.raises(
        DmcError, match=r"1 of 9 images .* cannot be decoded \(first: .*broken\.png: it is not an image"
    ):
        open_loader(open_images(tmp_path), CenterCrop(4))


def test_a_stream_of_broken_images_stops(tmp_path: Path) -> None:
    write_images(tmp_path, 100)
    for i in range(40):
        (tmp_path / f"broken-{i}.png").write_bytes(b"no")
    with pytest.raises(DmcError, match="cannot be decoded"):
        list(open_loader(open_images(tmp_path), CenterCrop(4), memory=1).in_order(50))


def test_streaming_holds_a_bounded_number_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 images pass, but no more are alive at a time than a batch and what the decoder reads ahead."""
    alive, most = 0, 0
    real = torch.from_numpy

    def counted(array: npt.NDArray[np.uint8]) -> torch.Tensor:
        nonlocal alive, most
        tensor = real(array)
        alive += 1
        most = max(most, alive)
        weakref.finalize(tensor, gone)
        return tensor

    def gone() -> None:
        nonlocal alive
        alive -= 1

    monkeypatch.setattr("dmc.data.decode.torch.from_numpy", counted)
    loader = open_loader(open_images(np.zeros((5000, 8, 8), np.uint8)), CenterCrop(64), memory=1000)
    assert sum(len(batch) for batch in loader.in_order(32)) == 5000
    assert most < 500
