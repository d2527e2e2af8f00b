"""config.json of a saved model: timm's form with a section of dmc's own, or transformers' form. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from dmc.config import Output
from dmc.documents import AnyObject, Document, parsed
from dmc.files import read_text, regular_size

WRITTEN = ("num_classes", "label_names", "pretrained_cfg", "architecture")  # keys of each config.json that dmc writes
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # tensors of weights that are no parameters
Side = Annotated[int, Field(ge=1, le=4096)]  # pixels; a network is tried on one such image


class PretrainedCfg(Document):
    """timm's `pretrained_cfg`: what a network wants to see."""

    architecture: str | None = None
    input_size: tuple[int, Side, Side] = (3, 224, 224)
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    interpolation: str = "bicubic"
    crop_pct: float = 0.875
    crop_mode: str = "center"


class OwnSection(Document):
    """What dmc adds to timm's or transformers' configuration."""

    task: str | None = None  # the kind of model
    output: Output | None = None
    columns: tuple[int, ...] | None = None  # the output of each label; None: all outputs in order
    parameters: int | None = None
    provenance: dict[str, Any] = Field(default_factory=dict)


class ModelConfig(Document):
    """config.json of a saved model, also of one that timm saved."""

    architecture: str = Field(max_length=500)
    num_classes: int = Field(1000, ge=1)
    label_names: tuple[str, ...] = ()
    pretrained_cfg: PretrainedCfg = PretrainedCfg()
    model_args: dict[str, Any] = Field(default_factory=dict)  # timm's, for networks that are not as their name says
    dmc: OwnSection | None = None

    @field_validator("label_names", mode="before")
    @classmethod
    def _listed(cls, labels: Any) -> Any:
        return tuple(labels_in({"label_names": labels})) if isinstance(labels, Mapping | list | None) else labels

    @model_validator(mode="after")
    def _whole(self) -> Self:
        lacking = [key for key in WRITTEN if self.dmc and key not in self.model_fields_set]
        if lacking:
            raise ValueError(f"has no {lacking[0]!r}")
        if self.model_args:
            named = ", ".join(sorted(self.model_args))
            raise ValueError(
                f"has model_args ({named}), which dmc does not know: write a function that makes the network, and load "
                "model.safetensors,arch=FILE.py:FUNCTION,classes=FILE"
            )
        require_columns(self.own, self.num_classes)
        return self

    @property
    def own(self) -> OwnSection:
        """What dmc has added; nothing if another program saved the model."""
        return self.dmc or OwnSection()


class TransformersConfig(AnyObject):
    """config.json of a model that transformers saved; if dmc did, it has timm's keys and dmc's section as well."""

    model_type: str = Field(max_length=100)
    architectures: tuple[str, ...] | None = None
    id2label: dict[str, str] = Field(default_factory=dict)
    problem_type: str | None = None
    pretrained_cfg: PretrainedCfg | None = None
    dmc: OwnSection | None = None

    @model_validator(mode="after")
    def _numbered(self) -> Self:
        if sorted(self.id2label, key=lambda key: (len(key), key)) != list(map(str, range(len(self.id2label)))):
            raise ValueError("has an id2label that does not number its classes 0, 1, 2, ...")
        require_columns(self.own, len(self.id2label))
        return self

    @property
    def own(self) -> OwnSection:
        """What dmc has added; nothing if another program saved the model."""
        return self.dmc or OwnSection()

    @property
    def architecture(self) -> str:
        return f"transformers:{(self.architectures or (self.model_type,))[0]}"

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the outputs in use."""
        columns = range(len(self.id2label)) if self.own.columns is None else self.own.columns
        return tuple(self.id2label[str(column)] for column in columns)


def require_columns(own: OwnSection, width: int) -> None:
    """Refuse columns that are not distinct outputs of a network with so many."""
    columns = own.columns
    if columns and (len(set(columns)) < len(columns) or not 0 <= min(columns) <= max(columns) < width):
        raise ValueError(f"has dmc.columns that are not distinct outputs of the network's {width}")


def read_model_config(folder: Path, name: str) -> ModelConfig | TransformersConfig:
    """Read a folder's config.json, in the form that it has; `name` is the model's, for errors."""
    text, blame = read_text(folder / "config.json"), f"{name} is not a model folder: config.json"
    found = parsed(text, AnyObject, blame).content
    if "model_type" in found:
        return parsed(text, TransformersConfig, blame)
    if "pretrained_cfg" not in found and "dmc" not in found:  # timm's older form, where all that stands outside
        cfg = {key: value for key, value in found.items() if key in PretrainedCfg.model_fields}
        text = json.dumps({"label_names": found.get("labels"), **found, "pretrained_cfg": cfg})
    return parsed(text, ModelConfig, blame)


def labels_in(config: Mapping[str, Any]) -> Sequence[str]:
    """Read `label_names`, which timm allows to be a list or a dict from numbers to names; empty if there are none."""
    labels = config.get("label_names")
    if isinstance(labels, Mapping):
        if not all(key.isdecimal() for key in map(str, labels)):
            raise ValueError("should have numbers as its keys")
        return [labels[key] for key in sorted(labels, key=int)]
    return labels or ()


def provenance_lines(provenance: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Give each line of a model's provenance with its key; some have several lines."""
    for key, value in provenance.items():
        for line in value if isinstance(value, list) else [value]:
            yield key, str(line)


def parameters_in(folder: Path) -> int | None:
    """Count the numbers in a folder's weights that are parameters; None if that takes more than reading a header."""
    from safetensors import SafetensorError, safe_open

    try:
        regular_size(folder / "model.safetensors")
        with safe_open(folder / "model.safetensors", framework="numpy") as weights:
            shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError):
        return None
    parameters: int = sum(prod(shape) for name, shape in shapes.items() if not name.endswith(STATISTICS))
    return parameters
