"""Load state dicts from files into modules. Nothing is ever unpickled into objects."""

from __future__ import annotations

import logging
import pickle
import sys
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from dmc.errors import DmcError, first_line

logger = logging.getLogger("dmc")
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
MODEL_FILES = ("config.json", "preprocessor_config.json", *WEIGHT_FILES)
WRAPPINGS = ("state_dict", "model_state_dict", "model", "net")  # what training scripts put around a state dict
COUNTER = "num_batches_tracked"
ANOTHER = "for another network, dmc.Specialist(module, classes, preprocessing) takes the module itself"


@runtime_checkable
class KnowsOtherNames(Protocol):
    """A module that knows the names that public implementations give its tensors."""

    def own_name(self, name: str) -> str:
        """Give this module's name for a public one; raise an error if that shows the network to be another one."""


def weights_in(folder: Path, name: str) -> Path:
    """Find the file of weights in a saved model's folder; `name` is the model's, for errors."""
    found = [folder / file for file in WEIGHT_FILES if (folder / file).is_file()]
    if not found:
        raise DmcError(f"{name} has no weights ({' or '.join(WEIGHT_FILES)})")
    return found[0]


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict from a file, without what training scripts wrap around it."""
    if not path.is_file():
        raise DmcError(f"no such weights: {path}")
    try:
        content: Any
        if path.suffix == ".safetensors":
            content = load_file(path)
        else:
            require_stored(path)
            with warnings.catch_warnings(action="ignore"):  # of tensors that are refused later
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


def require_stored(path: Path) -> None:
    """Refuse an archive with compressed parts, which torch never writes: a small one could fill all memory."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any("/code/" in part.filename for part in archive.infolist()):
                raise ValueError("it is an exported program; name the model's folder or an ONNX file")
            if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
                raise ValueError("its parts are compressed, which torch.save does not do")


def download_state_dict(url: str, what: str) -> dict[str, Tensor]:
    """Download one of torchvision's files: `get_model(weights=...)` would unpickle whatever lies in the cache."""
    try:
        with redirect_stdout(sys.stderr):  # it announces the download, which is no part of an answer
            state: dict[str, Tensor] = torch.hub.load_state_dict_from_url(
                url, map_location="cpu", weights_only=True, check_hash=True
            )
    except Exception as error:  # no network, a broken download
        raise DmcError(f"cannot get {what}: {first_line(error)}") from None
    return state


def load_backbone_weights(
    module: nn.Module, tensors: Mapping[str, Tensor], path: Path, arch: str, class_count: int
) -> None:
    """Load weights of a network with other classes: all but the output layer, which stays as it is."""
    own = module.state_dict()
    tensors, notice = _under_own_names(module, tensors, path, arch, class_count)
    other = [k for k, v in own.items() if k not in tensors or tensors[k].shape != v.shape]
    cut_off = set(takewhile(lambda key: key not in tensors, reversed(own)))  # the output layer comes last
    foreign = [
        key
        for key in other
        if not key.endswith(COUNTER)
        and (own[key].shape[:1] != (class_count,) or not (key in tensors or key in cut_off))
    ]
    if foreign:
        raise DmcError(f"{path} does not fit {arch}: {foreign[0]!r} is missing or has another shape")
    if notice:
        logger.warning(notice)
    kept = {key: tensors[key] for key in own if key not in other}
    _require_plain(own, kept, path)
    module.load_state_dict(kept, strict=False)


def load_weights(module: nn.Module, tensors: Mapping[str, Tensor], path: Path, arch: str, class_count: int) -> None:
    """Load all of a module's weights, or say in one line why they do not fit."""
    own = _counted_out(module.state_dict())
    tensors, notice = _under_own_names(module, tensors, path, arch, class_count)
    theirs = _counted_out(tensors)
    misshapen = [key for key in own if key in theirs and theirs[key].shape != own[key].shape]
    in_rows = [k for k in misshapen if own[k].shape == (class_count, *theirs[k].shape[1:])]
    if own.keys() == theirs.keys() and misshapen and misshapen == in_rows:
        key = misshapen[-1]
        raise DmcError(f"{path}: {class_count} class names but the head {key!r} has {len(theirs[key])} outputs")
    if own.keys() != theirs.keys() or misshapen:
        difference = _difference(own, theirs, arch)
        if path.suffix == ".safetensors" and not own.keys() & theirs.keys():
            difference += "; a .safetensors file does not keep their order, a file of torch.save does"
        raise DmcError(f"{path} does not fit {arch}: {difference}; {ANOTHER}")
    every = module.state_dict()  # with counters, as far as the file has them
    fitting = {key: value for key, value in tensors.items() if key in every and value.shape == every[key].shape}
    _require_plain(every, fitting, path)
    if notice:
        logger.warning(notice)
    module.load_state_dict(fitting, strict=False)


def require_outputs(tensors: Mapping[str, Tensor], width: int, path: Path) -> None:
    """Refuse a number of outputs that no tensor has room for, before a network with so many takes all memory."""
    file = path.stat().st_size  # what claims to be larger repeats its numbers, or has none
    whole = [tensor for tensor in tensors.values() if tensor.numel() * tensor.element_size() <= file]
    most = max((size for tensor in whole for size in tensor.shape), default=0)
    if width > most:
        raise DmcError(
            f"{path}: a network with {width} outputs is said to be in it, but no tensor is longer than {most}"
        )


def _require_plain(own: Mapping[str, Tensor], theirs: Mapping[str, Tensor], path: Path) -> None:
    """Refuse tensors that are not the numbers themselves: quantised, sparse, complex, or without any content."""
    for key, tensor in theirs.items():
        plain = tensor.layout == torch.strided and not (tensor.is_meta or tensor.is_quantized or tensor.is_complex())
        exact = tensor.is_floating_point() and tensor.element_size() > 1  # 8 bits mean nothing without their scale
        if not plain or (own[key].is_floating_point() and not exact):
            kind = "meta" if tensor.is_meta else str(tensor.layout if tensor.layout != torch.strided else tensor.dtype)
            raise DmcError(
                f"{path}: its {key!r} is a {kind.removeprefix('torch.')} tensor; save the network again with dense "
                f"{str(own[key].dtype).removeprefix('torch.')} ones"
            )


def _counted_out(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave out the counters of batch norm, which old files lack and which no answer depends on."""
    return {key: value for key, value in tensors.items() if not key.endswith(COUNTER)}


def _head(own: Mapping[str, Tensor], class_count: int) -> set[str]:
    """Find the output layer: the last tensors, as long as they have a row for each class."""
    return set(takewhile(lambda key: own[key].shape[:1] == (class_count,), reversed(list(own))))


def _under_own_names(
    module: nn.Module, tensors: Mapping[str, Tensor], path: Path, arch: str, class_count: int
) -> tuple[Mapping[str, Tensor], str]:
    """Give a file's tensors the module's own names, as far as possible; also give a warning for the user, or ""."""
    own, theirs = _counted_out(module.state_dict()), _counted_out(tensors)
    if own.keys() <= theirs.keys():
        return tensors, ""
    if isinstance(module, KnowsOtherNames):
        try:
            usual = {key: module.own_name(key) for key in theirs}
        except DmcError as error:
            raise DmcError(f"{path} does not fit {arch}: {error}; {ANOTHER}") from None
        theirs = {usual[key] if usual[key] in own else key: value for key, value in theirs.items()}
    # A .safetensors file has its tensors in the order of their names, which tells nothing.
    if theirs.keys() == own.keys() or path.suffix == ".safetensors" or not _agree_in_order(own, theirs, class_count):
        return theirs, ""
    other, ours = next(pair for pair in zip(theirs, own, strict=True) if pair[0] != pair[1])
    return dict(zip(own, theirs.values(), strict=True)), (
        f"{path}: its tensors have other names than those of {arch} and are taken in their order, {other!r} for "
        f"{ours!r} and so on; evaluate it to be sure"
    )


def _agree_in_order(own: Mapping[str, Tensor], theirs: Mapping[str, Tensor], class_count: int) -> bool:
    """Compare tensors one by one: shape (but for the number of classes), role (`weight`, `running_mean`) and block."""
    if len(own) != len(theirs):
        return False
    head = _head(own, class_count)
    for ours, other in zip(own, theirs, strict=True):
        shapes = own[ours].shape, theirs[other].shape
        alike = shapes[0] == shapes[1] or (ours in head and shapes[0][1:] == shapes[1][1:])
        if not alike or ours.rpartition(".")[2] != other.rpartition(".")[2]:
            return False
    return any(_borders(theirs, parts) <= _borders(own, 2) for parts in (2, 3))


def _borders(names: Iterable[str], parts: int) -> set[int]:
    """Find where another block begins; a tensor's name without its last `parts` is the name of its block.

    A pre-activation ResNet has the shapes and roles of an ordinary one, in the same order. But the first norm is the
    first block's there, and not the stem's.
    """
    blocks = [name.split(".")[:-parts] for name in names]
    return {i for i, (before, after) in enumerate(pairwise(blocks)) if before != after}


def _difference(own: Mapping[str, Tensor], theirs: Mapping[str, Tensor], arch: str) -> str:
    """Say in a few words what is different about another network."""
    unknown, missing = [k for k in theirs if k not in own], [k for k in own if k not in theirs]
    if not own.keys() & theirs.keys() and len(own) != len(theirs):
        return f"it has {len(theirs)} tensors, such as {unknown[0]!r}, where {arch} has {len(own)} by other names"
    if not own.keys() & theirs.keys():
        pairs = [(a, b) for a, b in zip(own, theirs, strict=True) if own[a].shape != theirs[b].shape]
        if not pairs:
            return f"its {len(theirs)} tensors have other names, such as {unknown[0]!r}, or another order"
        ours, other = pairs[0]
        return f"its {other!r} is {_size(theirs[other])} where {arch} has {ours!r}, {_size(own[ours])}"
    said = [
        f"it {verb} {len(keys)} tensor{'' if len(keys) == 1 else 's'} that {whose}, such as {keys[0]!r}"
        for verb, keys, whose in (("has", unknown, f"{arch} lacks"), ("lacks", missing, f"{arch} has"))
        if keys
    ]
    misshapen = [key for key in own if key in theirs and theirs[key].shape != own[key].shape]
    if misshapen:
        key = misshapen[0]
        said.append(f"its {key!r} is {_size(theirs[key])} where {arch} has {_size(own[key])}")
    return ", ".join(said)


def _size(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"
