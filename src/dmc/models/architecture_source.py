"""Where networks come from: an `ArchitectureSource` for each place, `Architectures` for those of one kind of model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from torch import nn

from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError
from dmc.models.weights import begin_from, read_weights


class Trained(NamedTuple):
    """A network with its weights, and what came with it."""

    module: nn.Module
    arch: str
    preprocessing: Preprocessing
    labels: Sequence[str]  # empty where nobody wrote them down
    width: int  # the number of its outputs
    provenance: Mapping[str, Any]
    columns: Sequence[int] | None = None  # the output of each label; None: all of them, in their order
    output: str | None = None  # what its logits mean; None: what is usual for its kind


class ArchitectureSource(ABC):
    """The names that one place knows, how it makes their networks, what they see, and which weights there are."""

    scheme: ClassVar[str | None] = None  # `SCHEME:NAME` is a model that was released with its weights
    settings: ClassVar[tuple[str, ...]] = ()  # that may follow a name: `NAME,width=64`
    usage: ClassVar[str] = ""  # its names, for a user who gave another
    has_imagenet_weights: ClassVar[bool] = True
    runs_code: ClassVar[bool] = False  # of whoever saved a model, so that whoever loads it must name the code

    @abstractmethod
    def claims(self, arch: str) -> bool:
        """Tell whether a name is this source's, to make or to refuse."""

    def bare(self, arch: str) -> str:
        """Strip the scheme off a name."""
        return arch.removeprefix(f"{self.scheme}:")

    def canonical(self, arch: str) -> str:
        """Spell a name as it is saved, or refuse it with the nearest one."""
        return arch

    @abstractmethod
    def create(self, arch: str, num_classes: int, channels: int, weights: str | None) -> nn.Module:
        """Make a network with random outputs; its other weights are random (None), `imagenet`, or a file's."""

    def preprocessing(self, arch: str) -> Preprocessing:
        """Say what the architecture was designed to see."""
        return Preprocessing()

    def released(self, arch: str) -> Trained:
        """Get the model behind `SCHEME:NAME`."""
        raise NotImplementedError

    def begun_at_random(self, arch: str) -> str:
        """Name the architecture of a network whose weights are all random."""
        return arch

    def keep(self, arch: str, folder: Path) -> str:
        """Put what else the network is made of into a model's folder; return its name there."""
        return arch

    def reopen(self, arch: str, given: str | None, folder: Path, model: str) -> str:
        """Name the architecture of a saved model; `given` is what the user calls it."""
        return arch


class ClassifierSource(ArchitectureSource):
    """A source of networks that answer with one logit for each class."""

    @abstractmethod
    def random(self, arch: str, num_classes: int, channels: int) -> nn.Module:
        """Make a network with random weights."""

    def pretrained(self, arch: str, num_classes: int, channels: int) -> nn.Module:
        """Make a network with ImageNet's weights, but for its outputs."""
        raise DmcError(f"there are no ImageNet weights of {arch}; give a file of weights, or none")

    def create(self, arch: str, num_classes: int, channels: int, weights: str | None) -> nn.Module:
        if weights == "imagenet":
            return self.pretrained(arch, num_classes, channels)
        module = self.random(arch, num_classes, channels)
        if weights is not None:
            begin_from(module, read_weights(Path(weights)), Path(weights), arch, num_classes)
        return module


class Architectures:
    """The sources of one kind of model; a name belongs to the first that claims it."""

    def __init__(self, what: str, *sources: ArchitectureSource) -> None:
        """`what` is the word for one of them in an error."""
        self.what, self.sources = what, sources

    def claims(self, arch: str) -> bool:
        return any(source.claims(arch) for source in self.sources)

    def find(self, arch: str) -> ArchitectureSource:
        """Find the source of an architecture."""
        for source in self.sources:
            if source.claims(arch):
                return source
        raise DmcError(f"unknown {self.what} {arch!r}: use {', '.join(source.usage for source in self.sources)}")

    def known(self, arch: str) -> str:
        """Spell a name as it is saved, or refuse it with the nearest one."""
        return self.find(arch).canonical(arch)

    def means(self, given: str, arch: str) -> bool:
        """Tell whether the name that a user gives is that of an architecture."""
        return self.claims(given) and self.known(given) == arch

    def create(self, arch: str, num_classes: int, channels: int = 3, weights: str | None = None) -> nn.Module:
        """Make a network with random outputs; its other weights are random (None), `imagenet`, or a file's."""
        arch = self.known(arch)
        return self.find(arch).create(arch, num_classes, channels, weights)

    def preprocessing(self, arch: str) -> Preprocessing:
        """Say what the architecture was designed to see, as its library states it."""
        arch = self.known(arch)
        return self.find(arch).preprocessing(arch)

    @property
    def settings(self) -> tuple[str, ...]:
        """What may follow an architecture's name."""
        return tuple(dict.fromkeys(setting for source in self.sources for setting in source.settings))
