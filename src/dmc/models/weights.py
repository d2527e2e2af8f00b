"""State dicts from files into modules. Nothing is ever unpickled into objects."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from dmc.errors import DmcError, first_line

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
WRAPPINGS = ("state_dict", "model_state_dict", "model")  # what training scripts put around a state dict


def weights_in(folder: Path, name: str) -> Path:
    """The weights of a saved model."""
    found = [folder / file for file in WEIGHT_FILES if (folder / file).is_file()]
    if not found:
        raise DmcError(f"{name} has no weights ({' or '.join(WEIGHT_FILES)})")
    return found[0]


def read_weights(path: Path) -> dict[str, Tensor]:
    """A state dict from a file, out of its usual wrappings."""
    if not path.is_file():
        raise DmcError(f"no such weights: {path}")
    try:
        content: Any
        if path.suffix == ".safetensors":
            content = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise DmcError(
            f"{path} is refused: it is no plain state dict, and loading it could unpickle arbitrary objects; "
            "save it again with torch.save(model.state_dict(), ...)"
        ) from None
    except Exception as error:  # a damaged file makes the readers raise anything
        raise DmcError(f"cannot read the weights {path}: {first_line(error)}") from None
    for wrapping in WRAPPINGS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapping), Mapping):
            content = content[wrapping]
    if not isinstance(content, Mapping) or not any(isinstance(value, Tensor) for value in content.values()):
        raise DmcError(f"{path} holds no state dict")
    tensors = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
    while all(key.startswith("module.") for key in tensors):  # DataParallel
        tensors = {key.removeprefix("module."): value for key, value in tensors.items()}
    return tensors


def fetched(url: str, what: str) -> dict[str, Tensor]:
    """One of torchvision's files. Not by `get_model(weights=...)`, which unpickles whatever lies in the cache."""
    try:
        with redirect_stdout(sys.stderr):  # it announces the download, which is no part of an answer
            state: dict[str, Tensor] = torch.hub.load_state_dict_from_url(
                url, map_location="cpu", weights_only=True, check_hash=True
            )
    except Exception as error:  # no network, a broken download
        raise DmcError(f"cannot get {what}: {first_line(error)}") from None
    return state


def begin_from(module: nn.Module, tensors: Mapping[str, Tensor], path: Path, arch: str, class_count: int) -> None:
    """Weights of a network with other classes: all but the layer that answers, which stays as it is."""
    own = module.state_dict()
    other = [k for k, v in own.items() if k not in tensors or tensors[k].shape != v.shape]
    cut_off = set(takewhile(lambda key: key not in tensors, reversed(own)))  # a layer that answers comes last
    foreign = [
        key
        for key in other
        if not key.endswith("num_batches_tracked")
        and (own[key].shape[:1] != (class_count,) or not (key in tensors or key in cut_off))
    ]
    if foreign:
        raise DmcError(f"{path} does not fit {arch}: {foreign[0]!r} is missing or has another shape")
    module.load_state_dict({key: tensors[key] for key in own if key not in other}, strict=False)


def fill(module: nn.Module, tensors: Mapping[str, Tensor], path: Path, arch: str, class_count: int) -> None:
    """Put weights into a module, or say in one line why they do not fit."""
    own = module.state_dict()
    misshapen = [k for k, v in tensors.items() if k in own and v.shape != own[k].shape]
    missing = [k for k in own if k not in tensors and not k.endswith("num_batches_tracked")]
    unknown = [k for k in tensors if k not in own]
    if missing or unknown:
        said = [f"{what} {keys[0]!r}" for what, keys in (("lacks", missing), ("has unknown", unknown)) if keys]
        raise DmcError(f"{path} does not fit {arch}: it {' and '.join(said)} ({len(missing) + len(unknown)} in all)")
    if misshapen:
        key = misshapen[-1]
        theirs, ours = tuple(tensors[key].shape), tuple(own[key].shape)
        if theirs[1:] == ours[1:] and ours[0] == class_count:
            raise DmcError(f"{path}: {class_count} class names but the head {key!r} has {theirs[0]} outputs")
        raise DmcError(f"{path} does not fit {arch}: {key!r} has shape {theirs}, not {ours}")
    module.load_state_dict(tensors, strict=False)
