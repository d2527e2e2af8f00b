"""Auxiliary images: opened, sampled, and refused if they would not fit."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dmc.config import ConsolidateConfig
from dmc.data.decode import Transform
from dmc.data.loader import fits
from dmc.data.open import OneSet, open_images, sample_of
from dmc.data.sources import Source
from dmc.errors import DmcError

Images = OneSet | Sequence[OneSet]  # one set of images, or several to be joined


def open_auxiliary(aux: Images, config: ConsolidateConfig) -> Source:
    """Open the auxiliary images, or the sample of them that is asked for."""
    images, limit = open_images(aux), config.aux_limit
    return sample_of(images, limit, config.seed) if isinstance(limit, int | float) else images


def require_room(name: str, images: int, transform: Transform, memory: int) -> None:
    """Refuse to hold more images than the machine has memory for, before they are read."""
    needed, there = images * transform.bytes_per_image, machine_memory()
    if fits(images, transform, memory) and needed > there:
        asked = f"{name} takes {needed / 2**30:,.1f} GiB of memory, and this machine has {there / 2**30:,.1f}"
        raise DmcError(f"{asked}; with less `memory` it is streamed")


def machine_memory() -> float:
    """Give the bytes of the machine's memory; infinity where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return float("inf")
