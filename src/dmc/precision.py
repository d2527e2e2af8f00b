"""The arithmetic of training: which precision is fast on a device, and how to use it."""

from __future__ import annotations

import torch

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


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """Compute in a precision within a `with` block."""
    return torch.autocast(device.type, DTYPES.get(precision), enabled=precision in DTYPES)
