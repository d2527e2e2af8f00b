"""The arithmetic of training: which precision is fast on a device, and how to use it."""

from __future__ import annotations

import math
import time
from functools import cache

import torch
from torch import nn

from dmc.config import Precision, Schedule
from dmc.device import pick_device
from dmc.processes import together

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def fast_precision(device: torch.device) -> Precision:
    """Give bf16 where the device computes it natively, and on a CPU also faster than fp32; else fp32."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if device.type == "cpu":
        able = torch.cpu.get_capabilities()
        native = able.get("avx512_bf16") or able.get("amx_bf16")
        return "bf16" if native and gain_of_bf16() > 1 else "fp32"
    return "fp32"


@cache
def gain_of_bf16() -> float:
    """Time a layer's step on the CPU in fp32 and in bf16, and give the ratio.

    Some CPUs have instructions for bf16 that are slower than those for fp32 (results/speed.md).
    """
    layer = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())
    layer.to(memory_format=torch.channels_last)
    images = torch.zeros(32, 64, 16, 16).contiguous(memory_format=torch.channels_last)

    best: dict[Precision, float] = {"fp32": math.inf, "bf16": math.inf}
    for precision in ("fp32", "bf16") * 6:  # the best of several: others may take the cores meanwhile
        started = time.perf_counter()
        with autocast(precision, images.device):
            loss = layer(images).sum()
        loss.backward()
        best[precision] = min(best[precision], time.perf_counter() - started)
    return best["fp32"] / best["bf16"]


def settled(schedule: Schedule) -> Schedule:
    """Choose the precision where a schedule leaves it open; of several processes the first one chooses."""
    if schedule.precision != "auto":
        return schedule
    return schedule.changed({"precision": together().agreed(fast_precision(pick_device()))})


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """Compute in a precision within a `with` block."""
    return torch.autocast(device.type, DTYPES.get(precision), enabled=precision in DTYPES)
