"""Several processes train one network as one process would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from dmc.data.decode import CenterCrop
from dmc.data.detection_batch import ShorterSide
from dmc.data.loader import ImageLoader, common_frames, held_loader, open_loader
from dmc.data.open import open_images
from dmc.training.synced_norm import SyncedNorm
from tests.conftest import write_images
from tests.training import launched

ROOT = Path(__file__).parents[2]


def launch(processes: int, job: str, out: Path, images: Path) -> subprocess.CompletedProcess[str]:
    """Run a job of launched.py with so many processes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.run(
        [sys.executable, *launcher, str(Path(__file__).with_name("launched.py")), job, str(out), str(images)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def curve(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), 25)


@pytest.fixture(scope="module")
def alone(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone")
    launched.main("all", out, images)
    return out


@pytest.mark.slow
def test_two_processes_have_the_loss_curve_and_the_weights_of_one(alone: Path, images: Path, tmp_path: Path) -> None:
    """Batches of 9, 8 and 8 images are shared as 4 + 5 and 4 + 4; statistics of batch norm are those of all images."""
    done = launch(2, "all", tmp_path, images)
    assert done.returncode == 0, done.stderr
    for name in ("held", "streamed", "detector"):
        assert curve(tmp_path / name) == pytest.approx(curve(alone / name), rel=2e-4), name
        ours, theirs = (load_file(out / name / "model.safetensors") for out in (tmp_path, alone))
        for key, value in ours.items():
            assert torch.allclose(value.float(), theirs[key].float(), rtol=1e-2, atol=2e-4), (name, key)
    assert curve(tmp_path / "labels") == pytest.approx(curve(alone / "labels"), rel=1e-2)  # bf16
    sizes = [(out / "cache/images.bin").stat().st_size for out in (tmp_path, alone)]
    assert sizes == [8 * 25] * 2  # every image once, by whichever process


@pytest.mark.slow
def test_a_run_whose_process_was_killed_goes_on_with_another_number_of_them(
    alone: Path, images: Path, tmp_path: Path
) -> None:
    died = launch(2, "dies", tmp_path, images)
    assert died.returncode != 0
    assert not (tmp_path / "streamed/model.safetensors").exists()
    kept = torch.load(tmp_path / "streamed/checkpoint.pt", weights_only=True)["position"]["step"]
    assert kept in (6, 7)  # the other process may have written a checkpoint after step 7
    launched.main("streamed", tmp_path, images)
    assert curve(tmp_path / "streamed") == pytest.approx(curve(alone / "streamed"), rel=2e-4)


def odd_images(folder: Path) -> Path:
    draw = np.random.default_rng(0)
    folder.mkdir()
    for i, (width, height) in enumerate([(40, 64), (64, 40), (64, 64)] * 9):
        pixels = draw.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return folder


@pytest.mark.parametrize("kind", ["tensor", "list", "stream"])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_shares_of_processes_are_together_what_one_process_sees(kind: str, processes: int, tmp_path: Path) -> None:
    """Over a pass no image is left out and none comes twice, and the order is that of one process."""
    source = open_images(odd_images(tmp_path / "images"))

    def opened() -> ImageLoader:
        return {
            "tensor": lambda: held_loader(source, CenterCrop(16)),
            "list": lambda: held_loader(source, ShorterSide(32)),
            "stream": lambda: open_loader(source, CenterCrop(16), memory=0),
        }[kind]()

    def passes(first: int, rank: int, count: int) -> list[list[bytes]]:
        loader = opened()
        steps = loader.steps(8)
        batches = loader.batches(0, 8, first, (rank, count))
        return [[image.numpy().tobytes() for image in next(batches).images_N3HW] for _ in range(2 * steps - first)]

    for first in (0, 3):
        whole = passes(first, 0, 1)
        shares = [passes(first, rank, processes) for rank in range(processes)]
        assert [[*chain(*parts)] for parts in zip(*shares, strict=True)] == whole
        steps = opened().steps(8)
        seen = [*chain(*whole[steps - first :])]
        assert len(seen) == len(set(seen)) == 27


def test_augmentation_does_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    loader = held_loader(open_images(write_images(tmp_path / "images", 12)), CenterCrop(16))

    def shown(rank: int, count: int) -> torch.Tensor:
        batch = next(loader.batches(0, 12, share=(rank, count)))
        torch.manual_seed(5)
        return batch.augmented(4, flip=True).images_N3HW

    assert torch.equal(torch.cat([shown(rank, 3) for rank in range(3)]), shown(0, 1))


def test_rare_frames_are_merged_into_the_smallest_that_holds_both() -> None:
    usual = [(32, 64)] * 20 + [(64, 32)] * 16
    assert common_frames([*usual, (32, 32), (96, 32)]) == [*usual[:20], *[(96, 32)] * 16, (32, 64), (96, 32)]
    assert common_frames([(32, 64), (64, 32)]) == [(64, 64)] * 2


@pytest.mark.parametrize("shape", [(6, 3, 4, 5), (8, 3)])
def test_synced_batch_norm_is_batch_norm_if_one_process_has_all_images(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    results = []
    x = torch.randn(shape, dtype=torch.float32) * 3 + 5
    upstream = torch.randn(shape)
    for context in (nullcontext(), SyncedNorm(lambda own: [own])):
        own = x.clone().requires_grad_()
        weight, bias = (torch.linspace(0.5, 2, 3) * sign for sign in (1, -1))
        weight.requires_grad_()
        bias.requires_grad_()
        mean, var = torch.zeros(3), torch.ones(3)
        with context:
            out = nn.functional.batch_norm(own, mean, var, weight, bias, training=True, momentum=0.3, eps=1e-3)
        (out * upstream).sum().backward()  # type: ignore[no-untyped-call]
        results.append([out.detach(), own.grad, weight.grad, bias.grad, mean, var])
    for ours, theirs in zip(*results, strict=True):
        assert ours is not None
        assert theirs is not None
        assert torch.allclose(ours, theirs, atol=2e-5)
