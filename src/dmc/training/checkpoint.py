"""What a checkpoint holds, and how it is read: only if it is whole, and only into a run of the same form."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn

from dmc.documents import Document
from dmc.models.weights import require_stored

# What the optimizers keep of each weight that was trained.
KEPT = {torch.optim.SGD: {"momentum_buffer"}, torch.optim.Adam: {"step", "exp_avg", "exp_avg_sq"}}


class Stateful(Protocol):
    """What a checkpoint can hold."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class SavedPosition(Document):
    """A position as a checkpoint holds it."""

    step: int = Field(ge=0)
    images: int = Field(ge=0)
    seconds: float = Field(ge=0)
    loss_sums: dict[str, float]
    epoch_images: int = Field(ge=0)


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """Read a checkpoint without unpickling anything but tensors and plain values; None: it is damaged, or not there.

    The file is a zip archive with a checksum of every part. torch writes them, but does not look at them.
    """
    try:
        if not path.is_file():
            return None
        require_stored(path)
        with zipfile.ZipFile(path) as parts:
            damaged = parts.testzip()
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        SavedPosition.model_validate(state["position"])
        return state if damaged is None and isinstance(state["notes"], dict) else None
    except MemoryError:
        raise
    except Exception:  # a damaged file makes its readers raise anything
        return None


def fill(part: Stateful, saved: Any) -> None:
    """Load a part's state, which may be that of another run; then the error says how it differs."""
    if saved is None:
        raise ValueError("it is missing")
    if isinstance(part, nn.Module):
        require_same_form(part.state_dict(), saved)
    if not isinstance(part, torch.optim.Optimizer):
        part.load_state_dict(saved)
        return
    settings = [{key: group[key] for key in group if key != "params"} for group in part.param_groups]
    part.load_state_dict(saved)
    for group, own in zip(part.param_groups, settings, strict=True):
        group.update(own)  # the run's own, which are the same
    for weight, found in part.state.items():
        alien = [key for key, value in found.items() if isinstance(value, Tensor) and value.ndim]
        alien = [key for key in alien if found[key].shape != weight.shape]
        alien += KEPT.get(type(part), set()) - found.keys()
        if alien:
            raise ValueError(f"its {alien[0]!r} is missing or has another shape")


def require_same_form(own: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Refuse tensors that are not there, or have another shape or type."""
    for name, value in own.items():
        found = saved.get(name)
        if isinstance(value, Tensor) and not (
            isinstance(found, Tensor)
            and (found.shape, found.dtype, found.layout, found.is_meta)
            == (value.shape, value.dtype, value.layout, value.is_meta)
        ):
            raise ValueError(f"{name!r} is missing or has another shape or type")
