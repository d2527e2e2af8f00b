"""The arithmetic of training: which precision is fast on a device, and how to use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dmc.device import TILES_HIDDEN, pick_device
from dmc.processes import together
from dmc.schedule import Precision, Schedule

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
    """Compute some convolutions in fp32, since a CPU's in bf16 are slow or wrong (results/speed.md).

    Gradients of depthwise ones take up to forty times as long, which made training an EfficientNet or a MobileNet
    slower than in fp32. With a stride and outputs of a single column, the results are whatever lies in memory, often
    NaN.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return (conv2d if func is torch.conv2d else func)(*args, **(kwargs or {}))


def conv2d(input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Convolve images as autocast does, but in fp32 where bf16 is slow or wrong."""
    if weight.dtype != torch.float32 or not (is_slow(weight) or is_wrong(input, weight, *args, **kwargs)):
        return torch.conv2d(input, weight, *args, **kwargs)
    with torch.autocast("cpu", enabled=False):
        return torch.conv2d(input.float(), weight, *args, **kwargs).to(torch.bfloat16)


def is_slow(weight: Tensor) -> bool:
    """Tell whether a convolution is depthwise, and gradients are wanted."""
    return torch.is_grad_enabled() and weight.shape[1] == 1


def is_wrong(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> bool:
    """Tell whether a convolution has a stride and gives one column: the next would begin beyond the padded input."""
    if isinstance(padding, str):  # `same` has no stride, `valid` no padding
        padding = 0
    across, margin, apart = (side if isinstance(side, int) else side[-1] for side in (stride, padding, dilation))
    reach = apart * (weight.shape[-1] - 1) + 1
    return across > 1 and input.shape[-1] + 2 * margin - reach < across
