"""What keeps methods within the setting: the images that they may keep, and the trackers that they share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dmc.errors import DmcError
from dmc.methods import METHODS, Learned, Method
from dmc.methods.importance import ImportanceMethod, Tracker
from dmc.models.model import Model


def every_tracker(module: nn.Module, kind: type[Model]) -> list[Tracker]:
    """Make the trackers that methods for this kind of model need while the first group is learned."""
    regularisers = [m for m in METHODS.values() if isinstance(m, ImportanceMethod) and m.serves(kind)]
    found: dict[str, Tracker] = {}
    for tracker in (tracker for method in regularisers for tracker in method.trackers(module, {})):
        if type(found.setdefault(tracker.prefix, tracker)) is not type(tracker):
            names = f"{type(found[tracker.prefix]).__name__} and {type(tracker).__name__}"
            raise DmcError(f"{names} both have the prefix {tracker.prefix!r}: give the new one its own")
    return list(found.values())


def require_budget(method: Method, learned: Learned) -> None:
    """Refuse notes that hold more images than the method declared; files that it may write are not checked."""
    size = learned.specialists[0].preprocessing.size
    pixels = 3 * size**2
    of_weights = {weight.shape for weight in learned.specialists[0].module.parameters()}  # regularisers note these

    def of_images(note: Tensor) -> bool:  # bytes of any shape, or rows that have the size of images
        row = note[:1] if note.dim() > 1 else note  # or nothing but rows
        rows_of_images = note.numel() > 0 and row.numel() % pixels == 0
        return note.dtype == torch.uint8 or (rows_of_images and note.shape not in of_weights)

    kept = sum(-(-note.numel() // pixels) for note in learned.notes.values() if of_images(note))
    if kept > method.memory:
        raise DmcError(f"{method.name} keeps {kept} images but declared {method.memory}")
