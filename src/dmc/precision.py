"""The arithmetic of training: which precision a device computes natively, and how to use it."""

from __future__ import annotations

import torch

from dmc.config import Precision, Schedule
from dmc.device import pick_device

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def native_precision(device: torch.device) -> Precision:
    """Give bf16 where the device computes it natively, else fp32: emulated, bf16 is slower."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if device.type == "cpu":
        able = torch.cpu.get_capabilities()
        return "bf16" if able.get("avx512_bf16") or able.get("amx_bf16") else "fp32"
    return "fp32"


def settled(schedule: Schedule) -> Schedule:
    """Choose the precision where a schedule leaves it open."""
    if schedule.precision != "auto":
        return schedule
    return schedule.changed({"precision": native_precision(pick_device())})


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """Compute in a precision within a `with` block."""
    return torch.autocast(device.type, DTYPES.get(precision), enabled=precision in DTYPES)
