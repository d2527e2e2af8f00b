"""Detectors from wherever they live: a saved folder, the hub, torchvision's COCO models, a state dict."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dmc.classes import Classes
from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError
from dmc.models import blueprint
from dmc.models.architectures import from_timm
from dmc.models.blueprint import create_detector, is_detector
from dmc.models.detector import Detector, detector_preprocessing
from dmc.models.load import SETTINGS, class_names, download, override
from dmc.models.weights import fetched, fill, read_weights, weights_in
from dmc.specs import split_spec

WITH_COCO_WEIGHTS = ("retinanet_resnet50_fpn", "fcos_resnet50_fpn", *blueprint.SSD_IMAGES)


def find_detector(
    source: str | Path,
    arch: str | None = None,
    classes: Sequence[str] | str | Path | None = None,
    preprocessing: Preprocessing | None = None,
    output: str | None = None,
) -> Detector | None:
    """The detector that a text means, or None where it means something else."""
    path, settings = split_spec(str(source), (*SETTINGS, *blueprint.SETTINGS))
    details = [f"{key}={settings[key]}" for key in blueprint.SETTINGS if key in settings]
    arch = ",".join([arch or settings.get("arch", ""), *details])
    scheme, _, rest = path.partition(":")
    folder = download(rest) if scheme == "hf-hub" else Path(path)
    if scheme == "torchvision" and is_detector(rest):
        found = _from_torchvision(rest)
    elif folder.is_dir() and _task(folder) == "object-detection":
        found = _from_folder(folder, path)
    elif is_detector(arch):
        names = class_names(classes if classes is not None else settings.get("classes"))
        if names is None:
            raise DmcError(f"{path} is a bare state dict and needs class names: {path},arch={arch},classes=FILE")
        found = _filled(arch, Classes.of(names), detector_preprocessing(arch), folder, path)
    else:
        return None
    if output is not None or "output" in settings:
        raise DmcError(f"{path} is a detector: each class is decided for itself, so output= is not a setting of it")
    if not is_detector(arch) and (arch or classes or "classes" in settings):
        raise DmcError(f"{path} knows its architecture and its classes; they are given for state dicts only")
    found.preprocessing = override(preprocessing or found.preprocessing, settings, path)
    return found


def _task(folder: Path) -> str | None:
    try:
        task: str | None = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("dmc", {}).get("task")
    except (OSError, ValueError, AttributeError):
        return None  # a classifier's loader will say what is wrong
    return task


def _from_folder(folder: Path, name: str) -> Detector:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    lacking = [key for key in ("num_classes", "label_names", "pretrained_cfg", "architecture") if key not in config]
    if lacking:
        raise DmcError(f"{name} is not a model folder: config.json has no {lacking[0]!r}")
    own, width, names = config["dmc"], config["num_classes"], tuple(config["label_names"])
    columns = own.get("columns") or range(len(names))
    weights = weights_in(folder, name)
    classes = Classes(names, tuple(columns), width)
    preprocessing = from_timm(config["pretrained_cfg"])
    return _filled(config["architecture"], classes, preprocessing, weights, name, own.get("provenance"))


def _filled(
    arch: str,
    classes: Classes,
    preprocessing: Preprocessing,
    weights: Path,
    name: str,
    provenance: dict[str, Any] | None = None,
) -> Detector:
    module = create_detector(arch, classes.width)
    fill(module, read_weights(weights), weights, arch, classes.width)
    return Detector(module, classes, preprocessing, "sigmoid", arch, name, provenance or {"weights": str(weights)})


def _from_torchvision(name: str) -> Detector:
    """COCO's 80 classes; the other outputs of these models were never used."""
    from torchvision.models import get_model_weights

    if name not in WITH_COCO_WEIGHTS:
        raise DmcError(f"torchvision has no weights of {name!r} (it has: {', '.join(WITH_COCO_WEIGHTS)})")
    weights = get_model_weights(name).DEFAULT
    categories = weights.meta["categories"]
    background = int(name.startswith("ssd"))  # an output that our SSDs keep to themselves
    real = [i for i, category in enumerate(categories) if category not in ("__background__", "N/A")]
    classes = Classes(
        tuple(categories[i] for i in real), tuple(i - background for i in real), len(categories) - background
    )
    module = create_detector(name, classes.width)
    fill(module, fetched(weights.url, f"torchvision:{name}"), Path(weights.url), name, classes.width)
    if name == "retinanet_resnet50_fpn":  # trained without an epsilon in its norms (torchvision sets it to 0)
        for norm in module.modules():
            if isinstance(norm, torch.nn.BatchNorm2d) and norm.running_var is not None:
                norm.running_var -= norm.eps  # in the weights, so that it outlives a save
    source = f"torchvision:{name}"
    return Detector(module, classes, detector_preprocessing(name), "sigmoid", name, source, {"weights": str(weights)})
