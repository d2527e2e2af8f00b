"""The interface of a file format that networks are exported to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from dmc.models.exported import Exportable

Running = Callable[[Tensor], Sequence[Tensor]]  # an opened file: gives its answers to a batch


class Format(ABC):
    """A file format: how a network is written to a file, and how the file is run."""

    name: ClassVar[str]
    suffix: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()  # of the extra of the same name

    @abstractmethod
    def write(self, network: Exportable, path: Path) -> None:
        """Trace a network and write it to a file, with its description."""

    @abstractmethod
    def opened(self, path: Path) -> Running:
        """Open a file that was just written, with the program that others will run it with."""


def as_list(answers: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """Give the answers of a network as a list, also if there is one."""
    return [answers] if isinstance(answers, Tensor) else list(answers)
