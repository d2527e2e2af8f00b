"""The device that tensors live on."""

import os
import re
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from dmc.processes import together


def tiles_hidden(cpuinfo: str) -> bool:
    """Tell whether a virtual machine shows the CPU's AMX, but not the leaf 29 of CPUID that describes its tiles."""
    leaves = re.search(r"^cpuid level\s*:\s*(\d+)", cpuinfo, re.MULTILINE)
    return "amx_tile" in cpuinfo and leaves is not None and int(leaves[1]) < 29


CPUINFO = Path("/proc/cpuinfo")  # Linux alone has it
TILES_HIDDEN = CPUINFO.is_file() and tiles_hidden(CPUINFO.read_text(errors="replace"))
if TILES_HIDDEN:  # oneDNN would end the program with an illegal instruction; it reads this when it first computes
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX10_1_512")


def pick_device() -> torch.device:
    """Give the accelerator if there is one, else the CPU; of several, the one of this process."""
    together()
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


@lru_cache(maxsize=256)
def index(places: tuple[int, ...], device: torch.device) -> Tensor:
    """Give positions as a tensor, made once for each device: making one at each step would wait for the device."""
    with torch.inference_mode(False):  # else a user's inference would leave tensors that no training can use
        return torch.tensor(places, device=device)


@lru_cache(maxsize=256)
def per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Give a number for each channel of NCHW images, as a tensor that is made once for each device."""
    with torch.inference_mode(False):
        return torch.tensor(values, device=device).view(1, -1, 1, 1)
