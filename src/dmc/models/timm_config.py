"""What timm's configuration says of a network; a saved model's config.json has the same form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError


def preprocessing_in(cfg: Mapping[str, Any]) -> Preprocessing:
    """Read the preprocessing from timm's `pretrained_cfg`, which a saved model's config.json has, too."""
    channels, height, width = cfg.get("input_size", (3, 224, 224))
    if height != width:
        raise DmcError(f"{cfg.get('architecture')}: input {height}x{width} is not square")
    return Preprocessing(
        size=height,
        mean=tuple(cfg.get("mean", (0.485, 0.456, 0.406)))[:channels],
        std=tuple(cfg.get("std", (0.229, 0.224, 0.225)))[:channels],
        interpolation=cfg.get("interpolation", "bicubic"),
        crop_pct=min(cfg.get("crop_pct", 0.875), 1.0),
    )


def labels_in(config: Mapping[str, Any]) -> Sequence[str]:
    """Read `label_names`, which timm allows to be a list or a dict from numbers to names; empty if there are none."""
    labels = config.get("label_names")
    if isinstance(labels, Mapping):
        return [labels[key] for key in sorted(labels, key=int)]
    return labels or ()
