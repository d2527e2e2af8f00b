"""What timm's configuration says of a network; a saved model's config.json has the same form, and a section more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self, cast

from pydantic import Field, field_validator, model_validator

from dmc.config import Output
from dmc.data.preprocess import Preprocessing
from dmc.documents import Document
from dmc.errors import DmcError

WRITTEN = ("num_classes", "label_names", "pretrained_cfg", "architecture")  # keys of each config.json that dmc writes
Side = Annotated[int, Field(ge=1, le=4096)]  # pixels; a network is tried on one such image


class PretrainedCfg(Document):
    """timm's `pretrained_cfg`: what a network wants to see."""

    architecture: str | None = None
    input_size: tuple[int, Side, Side] = (3, 224, 224)
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    interpolation: str = "bicubic"
    crop_pct: float = 0.875


class OwnSection(Document):
    """What dmc adds to timm's configuration."""

    task: str | None = None  # the kind of model
    output: Output | None = None
    columns: tuple[int, ...] | None = None  # the output of each label; None: all outputs in order
    provenance: dict[str, Any] = Field(default_factory=dict)


class ModelConfig(Document):
    """config.json of a saved model, also of one that timm saved."""

    architecture: str = Field(max_length=500)
    num_classes: int = Field(1000, ge=1)
    label_names: tuple[str, ...] = ()
    pretrained_cfg: PretrainedCfg = PretrainedCfg()
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
        columns = self.own.columns
        if columns and (len(set(columns)) < len(columns) or not 0 <= min(columns) <= max(columns) < self.num_classes):
            raise ValueError(f"has dmc.columns that are not distinct outputs of the network's {self.num_classes}")
        return self

    @property
    def own(self) -> OwnSection:
        """What dmc has added; nothing if another program saved the model."""
        return self.dmc or OwnSection()


def preprocessing_in(cfg: PretrainedCfg) -> Preprocessing:
    """Read the preprocessing from timm's `pretrained_cfg`, which a saved model's config.json has, too."""
    channels, height, width = cfg.input_size
    if height != width:
        raise DmcError(f"{cfg.architecture}: input {height}x{width} is not square")
    return Preprocessing(
        size=height,
        mean=cfg.mean[:channels],
        std=cfg.std[:channels],
        interpolation=cast(Any, cfg.interpolation),
        crop_pct=min(cfg.crop_pct, 1.0),
    )


def labels_in(config: Mapping[str, Any]) -> Sequence[str]:
    """Read `label_names`, which timm allows to be a list or a dict from numbers to names; empty if there are none."""
    labels = config.get("label_names")
    if isinstance(labels, Mapping):
        if not all(key.isdecimal() for key in map(str, labels)):
            raise ValueError("should have numbers as its keys")
        return [labels[key] for key in sorted(labels, key=int)]
    return labels or ()
