"""The schedule, the loop, and runs that are killed and continued."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dmc.config import RunConfig
from dmc.data.batch import Batch
from dmc.data.decode import CenterCrop
from dmc.data.loader import open_loader
from dmc.data.open import open_images
from dmc.distill.classifier_objective import Distillation
from dmc.distill.teachers import Teachers
from dmc.errors import DmcError
from dmc.methods.fixed_representation import NewRowsOnly
from dmc.methods.icarl import SigmoidDistillation
from dmc.methods.importance import Regularised
from dmc.methods.lwf import WithoutForgetting
from dmc.schedule import CONSOLIDATION, SPECIALIST, Schedule
from dmc.training.classification import Supervised
from dmc.training.loop import fit
from dmc.training.objective import Objective
from dmc.training.optimizer import optimizer_for
from dmc.training.run_folder import Run
from tests.conftest import classifiers, tiny, write_images


def test_the_defaults_are_the_papers() -> None:
    assert (SPECIALIST.epochs, CONSOLIDATION.epochs) == (200, 50)
    for schedule in (SPECIALIST, CONSOLIDATION):
        assert schedule.batch_size == 128
        assert schedule.flip
        optimizer = optimizer_for(schedule, nn.Linear(1, 1))
        assert isinstance(optimizer, torch.optim.SGD)
        group = optimizer.param_groups[0]
        assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.1, 0.9, 1e-4)
    batch = Batch(torch.full((64, 3, 32, 32), 255, dtype=torch.uint8), torch.zeros(64))
    black_rows = (batch.augmented(SPECIALIST.pad, SPECIALIST.flip).images_N3HW[:, 0, :, 16] == 0).sum(1)

    assert black_rows.max() == 4  # "4 pixels are padded on each side"


@pytest.mark.parametrize(
    ("schedule", "epoch", "rate"),
    [
        (SPECIALIST, 139, 0.1),
        (SPECIALIST, 140, 0.01),
        (SPECIALIST, 179, 0.01),
        (SPECIALIST, 180, 0.001),
        (CONSOLIDATION, 34, 0.1),
        (CONSOLIDATION, 35, 0.01),
        (CONSOLIDATION, 45, 0.001),
    ],
)
def test_the_rate_falls_tenfold_at_seven_and_nine_tenths(schedule: Schedule, epoch: int, rate: float) -> None:
    for step in (epoch * 10, epoch * 10 + 9):
        assert schedule.lr_at(step, 10) == pytest.approx(rate)


def test_short_runs_have_both_drops_at_their_own_time() -> None:
    schedule = Schedule(epochs=5)  # drops at 3.5 and 4.5 epochs
    assert [round(schedule.lr_at(step, 10), 6) for step in (34, 35, 44, 45)] == [0.1, 0.01, 0.01, 0.001]


def test_one_cycle_rises_to_the_peak_and_ends_near_zero() -> None:
    schedule = Schedule(epochs=10, lr=1.0, shape="one-cycle")
    rates = [schedule.lr_at(step, 100) for step in range(1000)]
    assert max(rates) == pytest.approx(1.0, abs=0.01)
    assert rates.index(max(rates)) in (199, 200)
    assert rates[0] < 0.01
    assert rates[-1] < 0.001


Losses = dict[str, Tensor]


class Regression(Objective):
    """An objective whose result can be worked out by hand: a weight that should become the mean pixel."""

    name = "Regression"

    def __init__(self) -> None:
        self.module: nn.Module = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.weight)
        self.calls = 0

    @property
    def weight(self) -> Tensor:
        return self.module.get_parameter("weight")

    def losses(self, network: nn.Module, batch: Batch) -> Losses:
        self.calls += 1
        wanted_N = batch.images_N3HW[:, 0, 8, 8].float().unsqueeze(1) / 255
        return {"loss": (network(torch.ones_like(wanted_N)) - wanted_N).square().mean()}


def test_a_step_is_sgd_with_momentum_and_weight_decay(tmp_path: Path) -> None:
    images = open_loader(open_images(write_images(tmp_path / "i", 1)), CenterCrop(16))
    images.images_N3HW[:] = 255  # type: ignore[attr-defined]
    task = Regression()
    schedule = Schedule(epochs=2, lr=0.1, drops=(), momentum=0.5, weight_decay=0.1, pad=0)
    with Run(None, {}) as run:
        fit(task.module, task, images, schedule, run, seed=0, what="test")
    # Step 1: gradient 2 (0 - 1) = -2, w = 0.2. Step 2: gradient 2 (0.2 - 1) + 0.1 * 0.2 = -1.58,
    # momentum 0.5 * -2 - 1.58 = -2.58, w = 0.458.
    assert task.weight.item() == pytest.approx(0.458)


def test_a_gradient_that_is_too_long_is_shortened(tmp_path: Path) -> None:
    images = open_loader(open_images(write_images(tmp_path / "i", 1)), CenterCrop(16))
    images.images_N3HW[:] = 255  # type: ignore[attr-defined]
    task = Regression()
    schedule = Schedule(epochs=2, lr=0.5, drops=(), momentum=0, weight_decay=0, pad=0, clip=1.5)
    with Run(None, {}) as run:
        fit(task.module, task, images, schedule, run, seed=0, what="test")
    # Step 1: gradient -2 becomes -1.5, w = 0.75. Step 2: gradient 2 (0.75 - 1) = -0.5 stays, w = 1.
    assert task.weight.item() == pytest.approx(1.0)


def test_the_rate_of_the_schedule_is_the_rate_of_the_step(tmp_path: Path) -> None:
    images = open_loader(open_images(write_images(tmp_path / "i", 1)), CenterCrop(16))
    images.images_N3HW[:] = 255  # type: ignore[attr-defined]
    task = Regression()
    schedule = Schedule(epochs=2, lr=0.1, drops=(0.5,), momentum=0, weight_decay=0, pad=0)
    with Run(None, {}) as run:
        fit(task.module, task, images, schedule, run, seed=0, what="test")
    # w = 0.1 * 2 = 0.2, then 0.2 + 0.01 * 2 * 0.8 = 0.216.
    assert task.weight.item() == pytest.approx(0.216)


def test_every_step_sees_the_images_augmented_anew(tmp_path: Path) -> None:
    loader = open_loader(open_images(write_images(tmp_path / "i", 1)), CenterCrop(16))
    seen = []

    class Recording(Regression):
        def losses(self, network: nn.Module, batch: Batch) -> Losses:
            seen.append(batch.images_N3HW.clone())
            return super().losses(network, batch)

    with Run(None, {}) as run:
        task = Recording()
        fit(task.module, task, loader, Schedule(epochs=6), run, seed=0, what="test")
    assert len({pixels.numpy().tobytes() for pixels in seen}) == 6


class Halving(nn.Module):
    """A wrapper like those for several processes: it holds the network, and must be called instead of it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: Tensor) -> Tensor:
        halved: Tensor = self.module(images) / 2
        return halved


@pytest.mark.parametrize("kind", ["supervised", "distillation", "lwf", "sigmoids", "regularised", "new rows"])
def test_losses_go_through_the_network_that_the_loop_hands_over(kind: str) -> None:
    """The loop may wrap the network, which an objective with a reference of its own would go past."""
    old, wide, other = tiny("ab", 1), tiny("abcd", 3), tiny("cd", 2)
    objectives: dict[str, Objective] = {
        "supervised": Supervised(wide, "abcd"),
        "distillation": Distillation(wide, Teachers([old, other]), "l2", 1.0),
        "lwf": WithoutForgetting(wide, old, ("c", "d"), [2], strength=1.0),
        "sigmoids": SigmoidDistillation(wide, old, ("c", "d")),
        "regularised": Regularised(wide, "cd"),
        "new rows": NewRowsOnly(wide, old, ("c", "d")),
    }
    draw = torch.Generator().manual_seed(0)
    batch = Batch(torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8, generator=draw), torch.tensor([0, 1, 1, 0]))
    objective = objectives[kind]
    whole, halved = (objective.losses(n, batch)["loss"].item() for n in (wide.module, Halving(wide.module)))
    assert whole != pytest.approx(halved)
    wide.module.get_submodule("fc").requires_grad_(False)
    with torch.no_grad():
        for parameter in wide.module.get_submodule("fc").parameters():
            parameter.mul_(0.5)  # the same as halving all answers
    assert objective.losses(wide.module, batch)["loss"].item() == pytest.approx(halved)


def trained(folder: Path, images: Path, memory: float, stops: list[int]) -> bytes:
    """Train a small network, breaking off after each of `stops` steps, and give its weights as bytes."""
    teachers = [tiny("ab", 1), tiny("cd", 2)]
    schedule = Schedule(epochs=3, lr=0.05, batch_size=8)
    real = Distillation.losses
    for stop in [*stops, None]:
        steps = count()

        def losses(
            self: Distillation,
            network: nn.Module,
            batch: Batch,
            stop: int | None = stop,
            steps: count[int] = steps,
        ) -> Losses:
            if next(steps) == stop:
                raise KeyboardInterrupt
            return real(self, network, batch)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Distillation, "losses", losses)
            try:
                merge = classifiers(teachers, images, schedule, memory=memory)
                merge.run(folder, RunConfig(resume=True, checkpoint_every=0))
            except KeyboardInterrupt:
                assert not (folder / "model.safetensors").exists()
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("memory", [4.0, 0.0], ids=["held", "streamed"])
def test_an_interrupted_run_ends_with_the_same_weights_bit_for_bit(tmp_path: Path, memory: float) -> None:
    images = write_images(tmp_path / "images", 30)
    whole = trained(tmp_path / "whole", images, memory, [])
    parts = trained(tmp_path / "parts", images, memory, [1, 4, 5])  # within an epoch, across its end, and again
    assert whole == parts
    lines = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("whole", "parts")]
    stripped = [[{**json.loads(line), "seconds": 0, "waited": 0} for line in part] for part in lines]
    assert stripped[0] == stripped[1]
    assert [line["epoch"] for line in stripped[0]] == [1, 2, 3]
    assert stripped[0][-1]["images"] == 90


@pytest.mark.slow
def test_a_killed_process_continues_bit_for_bit(tmp_path: Path) -> None:
    """A real process gets SIGKILL in the middle, then the same command runs with --resume."""
    for name in ("red", "green"):
        write_images(tmp_path / "data" / name, 40, seed=len(name))

    def command(out: str, *more: str) -> list[str]:
        settings = [
            "--arch",
            "cifar_resnet8",
            "--size",
            "16",
            "--epochs",
            "12",
            "--batch-size",
            "8",
            "--checkpoint-every",
            "0",
        ]
        return [
            sys.executable,
            "-m",
            "dmc",
            "train",
            str(tmp_path / "data"),
            "-o",
            str(tmp_path / out),
            *settings,
            *more,
        ]

    subprocess.run(command("whole"), check=True, capture_output=True)
    process = subprocess.Popen(command("killed"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics = tmp_path / "killed" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and len(metrics.read_text().splitlines()) >= 3) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    subprocess.run(command("killed", "--resume"), check=True, capture_output=True)
    whole, killed = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed"))
    assert whole == killed
    assert len(metrics.read_text().splitlines()) == 12


class Diverging(Regression):
    def losses(self, network: nn.Module, batch: Batch) -> Losses:
        losses = super().losses(network, batch)
        return {"loss": losses["loss"] * (float("nan") if self.calls == 3 else 1.0)}


def test_divergence_stops_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    loader = open_loader(open_images(write_images(tmp_path / "i", 4)), CenterCrop(16))
    task = Diverging()
    with (
        pytest.raises(DmcError, match="diverged: loss is not finite by step 3"),
        Run(tmp_path / "run", {}, RunConfig(checkpoint_every=0)) as run,
    ):
        fit(task.module, task, loader, Schedule(epochs=5), run, seed=0, what="test")
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert state["position"]["step"] == 2
    assert torch.isfinite(state["module"]["weight"]).all()


def test_statistics_that_are_not_finite_are_a_divergence_too(tmp_path: Path) -> None:
    """A rate so large that batch norm's variance overflows can leave loss and weights finite."""
    loader = open_loader(open_images(write_images(tmp_path / "i", 4)), CenterCrop(16))
    task = Regression()
    task.module.register_buffer("running_var", torch.tensor(float("inf")))
    with pytest.raises(DmcError, match="diverged: a weight is not finite"), Run(tmp_path / "run", {}) as run:
        fit(task.module, task, loader, Schedule(epochs=1), run, seed=0, what="test")


def test_training_leaves_the_callers_random_numbers_alone(tmp_path: Path) -> None:
    loader = open_loader(open_images(write_images(tmp_path / "i", 4)), CenterCrop(16))
    task = Regression()
    before = torch.random.get_rng_state()
    with Run(None, {}) as run:
        fit(task.module, task, loader, Schedule(epochs=2), run, seed=0, what="test")
    assert torch.equal(torch.random.get_rng_state(), before)
