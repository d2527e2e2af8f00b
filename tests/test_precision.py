"""The arithmetic of training: chosen by the device, written down, kept when a run is resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dmc as library
from dmc.config import RunConfig
from dmc.data.batch import Batch
from dmc.device import tiles_hidden
from dmc.distill.classifier_objective import Distillation
from dmc.precision import autocast, fast_precision, settled
from dmc.schedule import Precision, Schedule
from tests.conftest import classifiers, tiny, write_images
from tests.detectors import untrained

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
PLAIN: dict[str, Any] = {"scale": "none", "balance": False, "held_out": 0}


@pytest.mark.parametrize(
    ("able", "chosen"),
    [
        ({"avx512_bf16": True, "cpu_name": "AMD EPYC"}, "bf16"),
        ({"avx512_bf16": True, "cpu_name": "Intel Xeon"}, "fp32"),
        ({"avx512_bf16": True, "amx_bf16": True, "cpu_name": "Intel Xeon"}, "bf16"),
        ({"avx512_vnni": True, "cpu_name": "AMD EPYC"}, "fp32"),
        ({}, "fp32"),
    ],
)
def test_auto_is_bf16_where_the_device_computes_it_natively_and_faster(
    able: dict[str, Any], chosen: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    monkeypatch.setattr("dmc.precision.TILES_HIDDEN", False)
    assert fast_precision(CPU) == chosen
    assert settled(Schedule(precision="auto")).precision == chosen
    assert settled(Schedule(precision="fp16")).precision == "fp16"
    asked = []

    def supported(including_emulation: bool = True) -> bool:
        asked.append(including_emulation)
        return bool(able)

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert fast_precision(CUDA) == ("bf16" if able else "fp32")
    assert asked == [False]
    assert fast_precision(torch.device("mps")) == "fp32"


@pytest.mark.parametrize(
    ("cpuinfo", "hidden"),
    [
        ("cpuid level\t: 32\nflags\t: avx2 amx_bf16 amx_tile\n", False),
        ("cpuid level\t: 28\nflags\t: avx2 amx_bf16 amx_tile\n", True),  # a virtual machine that was met
        ("cpuid level\t: 28\nflags\t: avx2\n", False),
        ("Processor: ARMv8\n", False),
    ],
)
def test_matrix_tiles_that_a_virtual_machine_hides_are_not_used(
    cpuinfo: str, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """oneDNN believes that they are there, and the program ends with an illegal instruction."""
    assert tiles_hidden(cpuinfo) == hidden
    monkeypatch.setattr("dmc.precision.TILES_HIDDEN", hidden)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True, "cpu_name": "Intel Xeon"})
    assert fast_precision(CPU) == ("fp32" if hidden else "bf16")


def test_products_in_bf16_work_on_this_machine() -> None:
    """Large enough that matrix tiles would be used."""
    ones_NN = torch.ones(512, 512, dtype=torch.bfloat16)
    assert (ones_NN @ ones_NN == 512).all()


def test_the_paper_computes_in_fp32_and_users_in_what_is_fast(
    tmp_path: Path, aux_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teachers = [tiny("ab", 1), tiny("cd", 2)]
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    library.consolidate(teachers, aux_folder, tmp_path / "fast", epochs=1)
    library.consolidate(teachers, aux_folder, tmp_path / "paper", epochs=1, batch_size=8, profile="paper")
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    library.consolidate(teachers, aux_folder, tmp_path / "fast", epochs=1, resume=True)  # on another machine
    for name, precision in (("fast", "bf16"), ("paper", "fp32")):
        assert json.loads((tmp_path / name / "run.json").read_text())["schedule"]["precision"] == precision
        assert f", {precision}" in (tmp_path / name / "README.md").read_text()


@pytest.mark.parametrize(("precision", "inside"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_networks_compute_in_the_precision_and_weights_and_losses_stay_fp32(
    precision: Precision, inside: torch.dtype, aux_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[str, torch.dtype]] = set()
    real, convolve = Distillation.losses, nn.Conv2d.forward

    def convolved(self: nn.Conv2d, images: Tensor) -> Tensor:
        answer = convolve(self, images)
        seen.add(("convolution", answer.dtype))
        return answer

    def losses(self: Distillation, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        with monkeypatch.context() as patch:  # not where teachers and student are compared, in fp32
            patch.setattr(nn.Conv2d, "forward", convolved)
            found = real(self, network, batch)
        seen.add(("loss", found["loss"].dtype))
        return found

    monkeypatch.setattr(Distillation, "losses", losses)
    plan = classifiers([tiny("ab", 1), tiny("cd", 2)], aux_folder, Schedule(epochs=1, precision=precision), **PLAIN)
    plan.run()
    assert seen == {("loss", torch.float32), ("convolution", inside)}
    assert {p.dtype for p in plan.student.module.parameters()} == {torch.float32}


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("channels", "groups", "gradient"), [(2, 2, 1 + 2**-10), (2, 1, 1), (4, 2, 1)])
def test_only_the_gradients_of_depthwise_convolutions_are_in_fp32(
    channels: int, groups: int, gradient: float, with_bias: bool
) -> None:
    """bf16 has 8 bits, so that a weight of 1 + 2^-10 is 1 there; each pixel's gradient is the sum of its weights."""
    layer = nn.Conv2d(channels, channels, 1, groups=groups, bias=with_bias)
    nn.init.constant_(layer.weight, (1 + 2**-10))
    with torch.no_grad():
        layer.weight[:, 1:] = 0
    images = torch.ones(1, channels, 2, 2, requires_grad=True)
    with autocast("bf16", CPU):
        answer = layer(images)
        with torch.no_grad():
            assert layer(images).dtype == torch.bfloat16
    answer.sum().backward()
    assert answer.dtype == torch.bfloat16
    assert images.grad is not None
    assert images.grad[0, 0, 0, 0] == gradient * (channels // groups)


def test_gradients_at_a_single_pixel_are_in_fp32() -> None:
    """With a stride, those of the weights would be whatever lies in memory."""
    layer = nn.Conv2d(16, 16, 3, stride=2, padding=1, bias=False)
    with autocast("bf16", CPU):
        layer(torch.full((2, 16, 1, 1), 1 + 2**-10)).sum().backward()
    wanted = torch.zeros(16, 16, 3, 3)
    wanted[:, :, 1, 1] = 2 * (1 + 2**-10)  # of two images; the other weights saw padding alone
    assert layer.weight.grad is not None
    assert torch.equal(layer.weight.grad, wanted)


@pytest.mark.parametrize(
    ("height", "width", "kernel", "stride", "padding", "exact"),
    [
        (4, 2, 3, 2, 1, True),  # one column: the next would lie beyond the padding
        (4, 3, 3, 2, 1, False),
        (4, 4, 3, 2, 0, True),
        (4, 5, 3, 2, 0, False),
        (4, 4, 3, 2, "valid", True),
        (2, 4, 3, (2, 1), 1, False),  # no stride along the row
        (4, 1, 3, 1, 1, False),
    ],
)
def test_one_column_with_a_stride_is_computed_in_fp32(
    height: int, width: int, kernel: int, stride: int | tuple[int, int], padding: int | str, exact: bool
) -> None:
    """bf16 cannot tell weights of 1 and 1 + 2^-10 apart; fp32 says 2^-10 where they see 1 and -1."""
    layer = nn.Conv2d(2, 1, kernel, stride, padding, bias=False)
    with torch.no_grad():
        layer.weight[:] = torch.tensor([1 + 2**-10, -1]).view(1, 2, 1, 1)
    images = torch.ones(1, 2, height, width)
    for wants_gradients in (True, False):  # what comes out would be wrong, too
        with autocast("bf16", CPU), torch.set_grad_enabled(wants_gradients):
            answer = layer(images)
        assert answer.dtype == torch.bfloat16
        assert bool(answer.any()) == exact


def test_other_weights_than_fp32_are_left_alone() -> None:
    layer = nn.Conv2d(2, 2, 1, groups=2).to(torch.bfloat16)
    with autocast("bf16", CPU):
        layer(torch.ones(1, 2, 2, 2)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_killed_run_in_less_precision_ends_with_the_same_bits(
    precision: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fp16 the checkpoint has to hold the scale of the loss, too."""
    images = write_images(tmp_path / "images", 24)
    real = Distillation.losses

    def trained(out: Path, stop: int | None) -> bytes:
        steps = count()

        def losses(self: Distillation, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
            if next(steps) == stop:
                raise KeyboardInterrupt
            return real(self, network, batch)

        plan = classifiers(
            [tiny("ab", 1), tiny("cd", 2)], images, Schedule(epochs=2, batch_size=8, precision=precision), **PLAIN
        )
        with monkeypatch.context() as patch:
            patch.setattr(Distillation, "losses", losses)
            plan.run(out, RunConfig(resume=True, checkpoint_every=0))
        return (out / "model.safetensors").read_bytes()

    whole = trained(tmp_path / "whole", None)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "parts", 4)
    state = torch.load(tmp_path / "parts/checkpoint.pt", weights_only=True)
    assert ("scaler" in state) == (precision == "fp16")
    assert trained(tmp_path / "parts", None) == whole


def test_a_misspelt_precision_is_one_line(dmc: Callable[..., Any], tmp_path: Path, aux_folder: Path) -> None:
    said = dmc("consolidate", "a", "b", "--aux", aux_folder, "-o", tmp_path / "m", "--precision", "bf17")
    assert said.code == 2
    assert "bf17" in said.err
    assert len(said.err.splitlines()) == 1


def test_anchors_are_exact_in_any_precision() -> None:
    """At 608 pixels, bf16 would move them by up to two pixels, and torchvision would keep them so."""
    detector = untrained("ab", seed=1)
    images = torch.zeros((1, 3, 608, 608), dtype=torch.uint8)
    with torch.no_grad():
        exact = detector.answers(images).anchors_A4
        with autocast("bf16", CPU):
            rough = detector.answers(images)
        assert rough.logits_NAK.dtype == rough.boxes_NAB.dtype == torch.float32
        assert torch.equal(rough.anchors_A4, exact)
        assert torch.equal(detector.answers(images).anchors_A4, exact)
