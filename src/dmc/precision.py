"""The arithmetic of training: which precision is fast on a device, and how to use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dmc.config import Precision, Schedule
from dmc.device import TILES_HIDDEN, pick_device
from dmc.processes import together

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def fast_precision(device: torch.device) -> Precision:
    """Give bf16 where the device computes it natively and faster than fp32, else fp32.

    This depends on the device's model alone: a measurement on a busy machine would give one run bf16 and the next fp32.
    """
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if device.type == "cpu":
        able = torch.cpu.get_capabilities()
        # Intel's CPUs without AMX take twice as long for bf16 (results/speed.md); AMD's are faster in it.
        slow = "Intel" in able.get("cpu_name", "")
        tiles = able.get("amx_bf16") and not TILES_HIDDEN
        return "bf16" if tiles or (able.get("avx512_bf16") and not slow) else "fp32"
    return "fp32"


def settled(schedule: Schedule) -> Schedule:
    """Choose the precision where a schedule leaves it open; of several processes the first one chooses."""
    if schedule.precision != "auto":
        return schedule
    return schedule.changed({"precision": together().agreed(fast_precision(pick_device()))})


@contextmanager
def autocast(precision: Precision, device: torch.device) -> Iterator[None]:
    """Compute in a precision within a `with` block."""
    on_cpu = precision == "bf16" and device.type == "cpu"
    chosen = torch.autocast(device.type, DTYPES.get(precision), enabled=precision in DTYPES)
    with chosen, SomeInFp32() if on_cpu else nullcontext():
        yield


class SomeInFp32(TorchFunctionMode):
    """Compute some convolutions in fp32 where gradients are wanted, since a CPU's in bf16 are slow or wrong.

    Those of depthwise convolutions take up to forty times as long, which made training an EfficientNet or a MobileNet
    slower than in fp32. Those of the weights at a single pixel, with a stride, are whatever lies in memory, often NaN
    (both: results/speed.md).
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        func = conv2d if func is torch.conv2d and torch.is_grad_enabled() else func
        return func(*args, **(kwargs or {}))


def conv2d(input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Convolve images; in fp32 if each output sees one channel or all is one pixel, and give what autocast gives."""
    exact = weight.shape[1] == 1 or input.shape[-2:] == (1, 1)
    if not exact or weight.dtype != torch.float32:
        return torch.conv2d(input, weight, *args, **kwargs)
    with torch.autocast("cpu", enabled=False):
        return torch.conv2d(input.float(), weight, *args, **kwargs).to(torch.bfloat16)
