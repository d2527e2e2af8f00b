"""A user's own network as an architecture: `net.py:make_network` is a function in a file, which is run by design.

A saved model has a copy of the file beside its weights. The copy is run only if whoever loads the model names it, too:
`folder,arch=net.py:make_network`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import nn

from dmc.errors import DmcError
from dmc.files import write_text
from dmc.models.architecture_source import ClassifierSource
from dmc.user_code import blaming, run_file


class UserNetworks(ClassifierSource):
    """Users' own networks, by the name `FILE.py:FUNCTION`."""

    has_imagenet_weights = False
    runs_code = True

    def random(self, arch: str, num_classes: int, channels: int) -> nn.Module:
        """Run the file and call the function, with the number of classes if it takes that."""
        file, name = _parts(arch)
        function = getattr(run_file(file), name, None)
        if not callable(function):
            raise DmcError(f"{file} has no function {name!r}")
        with blaming(file):
            module = _called(function, num_classes)
        if not isinstance(module, nn.Module):
            raise DmcError(f"{arch} makes a {type(module).__name__}, not a torch.nn.Module")
        return module

    def keep(self, arch: str, folder: Path) -> str:
        """Copy the file to a model's folder; return the architecture's name there."""
        file, name = _parts(arch)
        if not file.is_file():
            raise DmcError(f"no such file: {file}")
        source, copy = file.read_text(encoding="utf-8"), folder / file.name
        if copy.exists() and copy.read_text(encoding="utf-8") != source:
            raise DmcError(f"{copy} is another file than {file}; choose another folder")
        write_text(copy, source)
        return f"{file.name}:{name}"

    def reopen(self, arch: str, given: str | None, folder: Path, model: str) -> str:
        """Find a saved model's code, if the user names it; otherwise refuse to run it, and say how to name it."""
        if given is None:
            raise DmcError(f"{model} is made by code, {arch}; look at it, and name it to run it: {model},arch={arch}")
        if not self.listed.claims(given):
            raise DmcError(f"{model} is made by {arch}, not by {given}")
        file, name = _parts(given)
        copy = folder / file
        if not file.is_file():
            return f"{copy}:{name}"
        if copy.is_file() and copy.read_text("utf-8") != file.read_text("utf-8"):
            raise DmcError(f"{file} and {copy} differ; say which one to run by its whole path")
        return given


def named_code(folder: Path, saved_as: str, named: Iterable[str]) -> str | None:
    """Find the user's name for a saved network's code, `../net.py:make` for `net.py:make`; None if there is none.

    Refuse code that has changed since: the weights in the folder belong to the old one.
    """
    for name in named:
        file, function = _parts(name)
        if file.suffix == ".py" and f"{file.name}:{function}" == saved_as:
            copy = folder / file.name
            if file.is_file() and copy.is_file() and copy.read_text("utf-8") != file.read_text("utf-8"):
                raise DmcError(f"{file} has changed since {folder} was saved with a copy of it: use another folder")
            return name
    return None


def _parts(arch: str) -> tuple[Path, str]:
    file, _, name = arch.rpartition(":")
    return Path(file), name


def _called(function: Callable[..., Any], num_classes: int) -> Any:
    parameters = inspect.signature(function).parameters
    if "num_classes" in parameters:
        return function(num_classes=num_classes)
    needed = [p for p in parameters.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    return function(num_classes) if needed else function()
