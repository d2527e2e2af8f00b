"""`dmc.load`: a specialist from wherever a trained model may live. Nothing is ever unpickled into objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from dmc.classes import Classes, read_names
from dmc.config import Output
from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError
from dmc.imagenet import distinct, imagenet_names
from dmc.models.architectures import create, default_preprocessing, from_timm, from_torchvision, known_architecture
from dmc.models.hub import downloading
from dmc.models.specialist import Model, Specialist
from dmc.models.user_network import is_factory, permitted
from dmc.models.weights import WEIGHT_FILES, fetched, fill, read_weights, weights_in
from dmc.specs import split_spec

SETTINGS = ("arch", "classes", "output", "size", "mean", "std", "interpolation", "crop_pct")


def load(
    source: str | Path | Model,
    arch: str | None = None,
    classes: Sequence[str] | str | Path | None = None,
    preprocessing: Preprocessing | None = None,
    output: Output | None = None,
) -> Specialist:
    """A saved folder, `timm:NAME`, `hf-hub:OWNER/NAME`, `torchvision:NAME`, or a state dict file.

    A state dict (`.safetensors`, `.pt`, `.pth`) needs `arch` and `classes`: names, a file with a name on each
    line, or `"imagenet-1k"`. As text, settings follow the source: `old.pth,arch=resnet32,classes=old.txt`.
    A folder with code in it, `net.py:make_network`, wants that named as its `arch`, since the code is run.
    """
    if isinstance(source, Specialist):
        return source
    if isinstance(source, Model):
        raise DmcError(f"{source.name} is a detector; a classifier is needed here")
    path, settings = split_spec(str(source), SETTINGS)
    arch = arch or settings.get("arch")
    output = output or cast(Output | None, settings.get("output"))
    names = class_names(classes if classes is not None else settings.get("classes"))
    scheme, _, rest = path.partition(":")
    if scheme == "timm":
        found = _from_timm(rest, names)
    elif scheme == "torchvision":
        found = _from_torchvision(rest, names)
    elif scheme == "hf-hub":
        found = _from_folder(download(rest), path, names, arch)
    elif Path(path).is_dir():
        found = _from_folder(Path(path), path, names, arch)
    elif Path(path).is_file():
        found = _from_state_dict(Path(path), arch, names, preprocessing, settings)
    else:
        raise DmcError(f"no model at {path}: give a folder, a state dict, timm:, torchvision: or hf-hub:NAME")
    wanted = override(preprocessing or found.preprocessing, settings, path)
    changed = wanted != found.preprocessing or (output or found.output) != found.output
    if arch and not is_factory(found.arch or "") and known_architecture(arch) != found.arch:
        raise DmcError(f"{path} is a {found.arch}; an architecture is given for state dicts only")
    if not changed:
        return found
    return Specialist(
        found.module, found.classes, wanted, output or found.output, found.arch, found.name, found.provenance
    )


def _from_state_dict(
    path: Path,
    arch: str | None,
    names: Sequence[str] | None,
    preprocessing: Preprocessing | None,
    settings: Mapping[str, str],
) -> Specialist:
    if arch is None or names is None:
        missing = "an architecture (arch=NAME)" if arch is None else "class names (classes=FILE)"
        raise DmcError(f"{path} is a bare state dict and needs {missing}: {path},arch=NAME,classes=FILE")
    arch = known_architecture(arch)
    preprocessing = override(preprocessing or default_preprocessing(arch), settings, str(path))
    tensors = read_weights(path)
    module = create(arch, len(names), preprocessing.channels)
    fill(module, tensors, path, arch, len(names))
    return Specialist(module, names, preprocessing, arch=arch, name=str(path), provenance={"weights": str(path)})


def _from_folder(folder: Path, name: str, names: Sequence[str] | None, given: str | None) -> Specialist:
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        arch = config["architecture"]
    except FileNotFoundError:
        begun = any((folder / place / "run.json").exists() for place in (".", "specialist"))  # the latter: `learn`
        unfinished = "holds a run that is not finished: resume it first" if begun else ""
        raise DmcError(f"{name} {unfinished or 'is not a model folder: it has no config.json'}") from None
    except (OSError, ValueError, KeyError) as error:
        raise DmcError(f"{name} is not a model folder: config.json: {type(error).__name__} {error}") from None
    own = config.get("dmc", {})
    if own.get("task") == "object-detection":
        raise DmcError(f"{name} is a detector; a classifier is needed here")
    preprocessing = from_timm(config.get("pretrained_cfg", {}))
    width = config.get("num_classes", 1000)
    labels = names or distinct(_listed(config.get("label_names")) or _imagenet_names(width, name))
    columns = own.get("columns") or range(len(labels))
    weights = weights_in(folder, name)
    arch = known_architecture(permitted(arch, given, folder, name) if is_factory(arch) else arch)
    module = create(arch, width, preprocessing.channels)
    fill(module, read_weights(weights), weights, arch, width)
    return Specialist(
        module,
        Classes(tuple(labels), tuple(columns), width if own.get("columns") else len(labels)),
        preprocessing,
        own.get("output", "softmax"),
        arch,
        name,
        own.get("provenance", {}),
    )


def _listed(label_names: Any) -> Sequence[str]:
    """timm allows a list or a dict of numbers and names."""
    if isinstance(label_names, Mapping):
        return [label_names[key] for key in sorted(label_names, key=int)]
    return label_names or ()


def _from_timm(name: str, names: Sequence[str] | None) -> Specialist:
    import timm

    arch, source = known_architecture(name), f"timm:{name}"
    with downloading(source):
        module = timm.create_model(name, pretrained=True)
    cfg = module.pretrained_cfg
    names = names or distinct(_listed(cfg.get("label_names")) or _imagenet_names(module.num_classes, source))
    return Specialist(module, names, from_timm(cfg), arch=arch, name=source, provenance={"weights": source})


def _from_torchvision(name: str, names: Sequence[str] | None) -> Specialist:
    from torchvision.models import get_model, get_model_weights

    arch = known_architecture(f"torchvision:{name}")
    weights = get_model_weights(name).DEFAULT
    width = len(weights.meta["categories"])
    module = get_model(name, weights=None, num_classes=width)
    fill(module, fetched(weights.url, arch), Path(weights.url), arch, width)
    preprocessing = from_torchvision(weights.transforms())
    names = names or distinct(weights.meta["categories"])
    return Specialist(module, names, preprocessing, arch=arch, name=arch, provenance={"weights": str(weights)})


def download(repo: str) -> Path:
    from huggingface_hub import snapshot_download

    with downloading(f"hf-hub:{repo}"):
        return Path(snapshot_download(repo, allow_patterns=["config.json", *WEIGHT_FILES]))


def class_names(classes: Sequence[str] | str | Path | None) -> tuple[str, ...] | None:
    if classes is None:
        return None
    if classes == "imagenet-1k":
        return _imagenet_names(1000, "imagenet-1k")
    return read_names(Path(classes)) if isinstance(classes, str | Path) else tuple(classes)


def _imagenet_names(count: int, name: str) -> tuple[str, ...]:
    if count != 1000:
        raise DmcError(f"{name} says nothing about its {count} classes: give classes=FILE")
    return imagenet_names()


def override(preprocessing: Preprocessing, settings: Mapping[str, str], name: str) -> Preprocessing:
    """`size=64,mean=0.5/0.5/0.5,...` of a model given as text."""

    def numbers(key: str, default: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(float(v) for v in settings[key].split("/")) if key in settings else default

    try:
        return Preprocessing(
            size=int(settings.get("size", preprocessing.size)),
            mean=numbers("mean", preprocessing.mean),
            std=numbers("std", preprocessing.std),
            interpolation=cast(Any, settings.get("interpolation", preprocessing.interpolation)),
            crop_pct=float(settings.get("crop_pct", preprocessing.crop_pct)),
        )
    except ValueError as error:
        raise DmcError(f"{name}: {error}") from None
