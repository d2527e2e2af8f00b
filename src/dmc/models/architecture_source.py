"""Where networks come from: `ArchitectureSource` is one place, `Architectures` lists all places of one kind of model.

A place is imported when one of its names is asked for: the libraries behind some take seconds to load.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from torch import nn

from dmc.classes import Classes
from dmc.config import AUTO, Output
from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError
from dmc.models.hub import INSTEAD
from dmc.models.weights import load_backbone_weights, read_weights


class Trained(NamedTuple):
    """A network with its weights, and what came with it."""

    module: nn.Module
    arch: str | None  # None: the network is not one of ours, and no other can be made like it
    preprocessing: Preprocessing
    labels: Sequence[str]  # empty if the source does not tell
    width: int  # the number of its outputs
    provenance: Mapping[str, Any]
    columns: Sequence[int] | None = None  # the output of each label; None: all outputs in order
    output: str | None = None  # what its logits mean; None: the usual for its kind


@dataclass(frozen=True)
class Listed:
    """An entry in the list of places that networks come from: all that is known of one before it is imported."""

    names: str  # regular expression: the names that belong to it, also if it will refuse them
    home: str  # its class, an `ArchitectureSource`: `MODULE:CLASS`
    scheme: str | None = None  # `SCHEME:NAME` is a model that was released with its weights
    settings: tuple[str, ...] = ()  # what may follow a name: `NAME,width=64`

    def claims(self, arch: str) -> bool:
        """Tell whether a name belongs to this source, also if it will be refused."""
        return re.fullmatch(self.names, arch) is not None

    def releases(self, arch: str) -> bool:
        """Tell whether a name is that of a model that was released with its weights."""
        return self.scheme is not None and arch.startswith(f"{self.scheme}:")

    def source(self) -> ArchitectureSource:
        """Import the source."""
        module, _, name = self.home.partition(":")
        source: ArchitectureSource = getattr(import_module(module), name)(self)
        return source


class ArchitectureSource(ABC):
    """One place that networks come from: how to make them, their preprocessing and weights."""

    usage: ClassVar[str] = ""  # its names, for the error about an unknown one
    has_imagenet_weights: ClassVar[bool] = True
    library: ClassVar[str] = ""  # the library that can open a saved model; empty: the usual for its kind
    can_learn: ClassVar[bool] = True  # its networks can be trained; others only teach
    runs_code: ClassVar[bool] = False  # a saved model brings code, which whoever loads it must name to run it

    def __init__(self, listed: Listed) -> None:
        self.listed = listed

    def bare(self, arch: str) -> str:
        """Strip the scheme off a name."""
        return arch.removeprefix(f"{self.listed.scheme}:")

    def canonical(self, arch: str) -> str:
        """Spell a name as models are saved with it; refuse an unknown name."""
        return arch

    @abstractmethod
    def create(self, arch: str, num_classes: int, channels: int, weights: str | None) -> nn.Module:
        """Make a network with a random output layer; its other weights are random (None), `imagenet`, or a file's."""

    def preprocessing(self, arch: str) -> Preprocessing:
        """Give the preprocessing that the architecture was designed for."""
        return Preprocessing()

    def usual_weights(self, arch: str) -> str | None:
        """Give the initial weights that help most: ImageNet's, where there are any."""
        return "imagenet" if self.has_imagenet_weights else None

    def only_size(self, arch: str) -> int | None:
        """Give the size of images that a network is bound to; None: it takes others, too."""
        return None

    def released(self, arch: str) -> Trained:
        """Get the network that was released as `SCHEME:NAME`, with its weights."""
        raise NotImplementedError

    def begun_at_random(self, arch: str) -> str:
        """Name the architecture to use if all weights are random."""
        return arch

    def keep(self, arch: str, folder: Path) -> str:
        """Copy the network's code, if it has any, into a model's folder; return the architecture's name there."""
        return arch

    def library_files(
        self, module: nn.Module, classes: Classes, preprocessing: Preprocessing, output: Output
    ) -> dict[str, dict[str, Any]]:
        """Give the JSON files by which the network's own library opens a saved model; dmc's config.json is added."""
        return {}

    def reopen(self, arch: str, given: str | None, folder: Path, model: str) -> str:
        """Name the architecture of a saved model; `given` is the user's name for it, or None."""
        return arch


class ClassifierSource(ArchitectureSource):
    """A source of networks that give one logit for each class."""

    @abstractmethod
    def random(self, arch: str, num_classes: int, channels: int) -> nn.Module:
        """Make a network with random weights."""

    def pretrained(self, arch: str, num_classes: int, channels: int) -> nn.Module:
        """Make a network with ImageNet's weights and a random output layer."""
        raise DmcError(f"there are no ImageNet weights of {arch}; {INSTEAD}")

    def create(self, arch: str, num_classes: int, channels: int, weights: str | None) -> nn.Module:
        if weights == "imagenet":
            return self.pretrained(arch, num_classes, channels)
        module = self.random(arch, num_classes, channels)
        if weights is not None:
            load_backbone_weights(module, read_weights(Path(weights)), Path(weights), arch, num_classes)
        return module


class Architectures:
    """The sources of one kind of model; a name belongs to the first source that claims it."""

    def __init__(self, what: str, *entries: Listed) -> None:
        """List sources; `what` is the word for an architecture in errors."""
        self.what, self.entries = what, entries

    def claims(self, arch: str) -> bool:
        return any(entry.claims(arch) for entry in self.entries)

    def entry(self, arch: str) -> Listed:
        """Find the entry of an architecture's source; refuse a name that none claims."""
        for entry in self.entries:
            if entry.claims(arch):
                return entry
        usage = ", ".join(entry.source().usage for entry in self.entries)
        raise DmcError(f"unknown {self.what} {arch!r}: use {usage}")

    def find(self, arch: str) -> ArchitectureSource:
        """Import the source of an architecture; refuse a name that none claims."""
        return self.entry(arch).source()

    def known(self, arch: str) -> str:
        """Spell a name as models are saved with it; refuse an unknown name."""
        return self.find(arch).canonical(arch)

    def means(self, given: str, arch: str) -> bool:
        """Tell whether the name that a user gives means this architecture."""
        return self.claims(given) and self.known(given) == arch

    def create(self, arch: str, num_classes: int, channels: int = 3, weights: str | None = None) -> nn.Module:
        """Make a network with a random output layer; its other weights are random (None), `imagenet`, or a file's."""
        arch = self.known(arch)
        return self.find(arch).create(arch, num_classes, channels, weights)

    def preprocessing(self, arch: str) -> Preprocessing:
        """Give the preprocessing that the architecture was designed for, as its library states it."""
        arch = self.known(arch)
        return self.find(arch).preprocessing(arch)

    def weights(self, arch: str, asked: str | None) -> str | None:
        """Give the initial weights that are asked for, or those that help most."""
        return self.find(arch).usual_weights(arch) if asked == AUTO else asked

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings that may follow an architecture's name."""
        return tuple(dict.fromkeys(setting for entry in self.entries for setting in entry.settings))
