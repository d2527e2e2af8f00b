"""Batches on their way to the device: made one step ahead in pinned memory, and copied without waiting."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from dmc.data.augment import content_ids
from dmc.data.batch import Batch
from dmc.data.loader import ImageLoader, TensorLoader

SHARE = 0.5  # of the device's free memory that images may take; training needs the rest


def on_device(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Give batches on the device, in order; each is made while the device works on the one before.

    An error in making one is raised when its turn comes. The copies are not made ahead: from pinned memory they take
    a small part of a step, and one that is given away is not overwritten.
    """
    if device.type == "cpu":  # which has no time to spare for the next one
        yield from batches
        return

    def made() -> Batch | None:
        batch = next(batches, None)
        return batch if batch is None or device.type != "cuda" else batch.moved(pinned)

    with ThreadPoolExecutor(1, "batches") as ahead:
        coming = ahead.submit(made)
        while (batch := coming.result()) is not None:
            coming = ahead.submit(made)
            yield batch.to(device)


def pinned(tensor: Tensor) -> Tensor:
    """Copy a tensor to memory that the device can read by itself; one that is on the device stays there."""
    return tensor.pin_memory() if tensor.device.type == "cpu" else tensor


def resident(loader: ImageLoader, device: torch.device, identified: bool) -> ImageLoader:
    """Hold a loader's images on the device if they are of one shape and fit: then only indices travel.

    If batches have to be `identified`, the hashes of all images are made first, since they are made on the CPU.
    """
    if device.type != "cuda" or not isinstance(loader, TensorLoader):
        return loader
    if loader.images_N3HW.nbytes > SHARE * torch.cuda.mem_get_info(device)[0]:
        return loader
    moved = TensorLoader(loader.images_N3HW.to(device), loader.labels_N.to(device), loader.skipped)
    moved.ids_N = content_ids(loader.images_N3HW) if identified else None
    return moved
