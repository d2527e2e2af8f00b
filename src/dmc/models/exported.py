"""A network as a file for other programs: what goes in and comes out, and what the file says of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field
from torch import Tensor, nn

from dmc.config import Output
from dmc.data.preprocess import Preprocessing
from dmc.documents import Document
from dmc.models.model import Model

Answers = Literal["logits", "probabilities", "boxes"]  # what a file gives
METADATA = "dmc.json"  # the description's name in every format


class Described(Document):
    """`dmc.json`: what an exported file says of its network."""

    task: str  # the hub's word for it
    classes: tuple[str, ...]  # in the order of the answers
    input: Literal["normalised", "pixels"]  # pixels: uint8, which the network normalises itself
    answers: Answers
    output: Output
    preprocessing: Preprocessing
    architecture: str | None = None
    provenance: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def of(cls, model: Model, pixels: bool, answers: Answers) -> Self:
        """Describe a model whose kept classes are all that its file knows."""
        return cls(
            task=model.pipeline_tag,
            classes=model.names,
            input="pixels" if pixels else "normalised",
            answers=answers,
            output=model.output,
            preprocessing=model.preprocessing,
            architecture=model.arch,
            provenance=model.provenance,
        )


@dataclass(frozen=True)
class Exportable:
    """A network that can be traced, and how the answers of its file are compared with the model's own."""

    module: nn.Module  # takes one batch of images, gives one tensor or several
    example: Tensor  # a batch that it takes
    axes: Mapping[int, str]  # the batch's axes that may have any length, by name
    answers: tuple[str, ...]  # the names of what it gives
    described: Described
    feed: Callable[[Tensor], Tensor]  # makes a batch for the file from uint8 images
    original: Callable[[Tensor], Sequence[Tensor]]  # what the model itself says about uint8 images
    difference: Callable[[Sequence[Tensor], Sequence[Tensor]], float]  # between two answers to the same batch
