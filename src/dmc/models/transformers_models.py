"""transformers' image classifiers: `transformers:OWNER/NAME` on the hub, or `transformers:FOLDER`.

Only configurations and weights are read. Code that a model brings along is never run.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dmc.classes import Classes
from dmc.config import Output
from dmc.data.preprocess import Preprocessing, preprocessing_in
from dmc.documents import AnyObject, read_json
from dmc.errors import DmcError
from dmc.extras import require_extra
from dmc.model_config import WRITTEN, TransformersConfig
from dmc.models.architecture_source import ClassifierSource, Trained
from dmc.models.hub import download
from dmc.models.image_processor import FILE, as_processor, blaming, preprocessing_of
from dmc.models.weights import MODEL_FILES, read_weights, require_outputs, weights_in

NAMELESS = re.compile(r"LABEL_\d+")  # what transformers calls a class that nobody has named
DEPTHS = re.compile(r"(?:layers|depths?|blocks)$")  # settings that count the parts of a network
SIGMOID = "multi_label_classification"
MAPPINGS = {
    "ForImageClassification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    "ForObjectDetection": "MODEL_FOR_OBJECT_DETECTION_MAPPING",
}


class TransformersModels(ClassifierSource):
    """transformers' networks with a head for image classification."""

    has_imagenet_weights = False
    library = "transformers"
    usage = "transformers:OWNER/NAME, transformers:FOLDER"
    head, what = "ForImageClassification", "image classifier"  # how transformers and we call such a network

    def canonical(self, arch: str) -> str:
        require_extra("transformers", "transformers")
        return arch

    def random(self, arch: str, num_classes: int, channels: int) -> nn.Module:
        folder = folder_of(self.bare(arch))
        config = network_config(folder, arch)
        require_colours(config, arch, channels)
        config.num_labels = num_classes
        with blaming(f"{arch} cannot be built"):
            module: nn.Module = self.network_class(config, arch)(config)
        return module

    def preprocessing(self, arch: str) -> Preprocessing:
        """Find out what the image processor beside the network does."""
        folder = folder_of(self.bare(arch))
        own = read_config(folder, arch).pretrained_cfg
        return preprocessing_in(own) if own else preprocessing_of(folder, arch)

    def released(self, arch: str) -> Trained:
        self.canonical(arch)
        folder = folder_of(self.bare(arch))
        told, config = read_config(folder, arch), network_config(folder, arch)
        preprocessing = self.preprocessing(arch)
        require_colours(config, arch, preprocessing.channels)
        module = self.trained(config, folder, arch)
        own = told.own
        names = () if all(map(NAMELESS.fullmatch, told.label_names)) else told.label_names
        output = own.output or ("sigmoid" if told.problem_type == SIGMOID else None)
        origin = own.provenance or {"weights": arch}
        return Trained(module, arch, preprocessing, names, config.num_labels, origin, own.columns, output)

    def behaving(self, kind: type[nn.Module]) -> type[nn.Module]:
        """Let a network of transformers' answer as dmc's do."""
        return type(kind.__name__, (LogitsOnly, kind), {})

    def network_class(self, config: Any, name: str) -> type[nn.Module]:
        """Find the class of the network."""
        import transformers

        known = getattr(transformers, MAPPINGS[self.head])
        if type(config) not in known:
            raise DmcError(f"{name} is a {config.model_type!r}, which transformers has no {self.what} for")
        found = known[type(config)]
        kinds = {kind.__name__: kind for kind in (found if isinstance(found, tuple) else (found,))}
        saved_as = (config.architectures or [""])[0]
        if saved_as and not saved_as.endswith(self.head) and saved_as not in kinds:
            raise DmcError(f"{name} was saved as {saved_as}, which is no {self.what}")
        return self.behaving(kinds.get(saved_as, next(iter(kinds.values()))))

    def trained(self, config: Any, folder: Path, name: str) -> nn.Module:
        """Build the network with its weights, by the names that transformers has for them in all its versions."""
        path = weights_in(folder, name)
        tensors = read_weights(path)
        require_outputs(tensors, config.num_labels, path)
        kind = self.network_class(config, name)
        require_room(kind, config, tensors, name)
        with blaming(f"{name} cannot be built"):
            module, found = kind.from_pretrained(  # type: ignore[attr-defined]
                None, config=config, state_dict=tensors, output_loading_info=True, dtype=torch.float32
            )
        lacking = sorted(found["missing_keys"])
        if lacking:  # transformers would leave them random
            what = f"{lacking[0]!r} is missing; was it saved without its classifier?"
            raise DmcError(f"{path} does not fit {name}: {what}")
        network: nn.Module = module
        return network

    def keep(self, arch: str, folder: Path) -> str:
        """Name the architecture after the model that it comes from; how it is built is a part of config.json."""
        name = self.bare(arch)
        return f"{self.listed.scheme}:{Path(name).resolve().name}" if Path(name).is_dir() else arch

    def library_files(
        self, module: nn.Module, classes: Classes, preprocessing: Preprocessing, output: Output
    ) -> dict[str, dict[str, Any]]:
        """Give config.json and preprocessor_config.json as transformers reads them."""
        named = dict(zip(classes.columns, classes.names, strict=True))
        labels = {i: named.get(i, f"LABEL_{i}") for i in range(classes.width)}
        config: dict[str, Any] = module.config.to_diff_dict()  # type: ignore[operator, union-attr]
        config |= {
            "architectures": [type(module).__name__],
            "id2label": labels,
            "label2id": {name: i for i, name in labels.items()},
            "problem_type": SIGMOID if output == "sigmoid" else "single_label_classification",
        }
        return {"config.json": config, FILE: as_processor(preprocessing)}


class LogitsOnly:
    """What makes one of transformers' networks a classifier as dmc knows it: images in, logits out."""

    def forward(self, images_N3HW: Tensor) -> Tensor:
        logits_NK: Tensor = super().forward(pixel_values=images_N3HW).logits  # type: ignore[misc]
        return logits_NK


@cache
def folder_of(place: str) -> Path:
    """Find a model's files: in a folder, or on the hub."""
    if Path(place).is_dir():
        return Path(place)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", place):
        raise DmcError(f"no model at transformers:{place}: it is no folder, and no OWNER/NAME on the hub")
    return download(place, MODEL_FILES)


def read_config(folder: Path, name: str) -> TransformersConfig:
    return read_json(folder / "config.json", TransformersConfig, f"{name} is no model of transformers': config.json")


def network_config(folder: Path, name: str) -> Any:
    """Read the network's configuration, by the class that transformers has for it."""
    from transformers import CONFIG_MAPPING

    kind, told = read_config(folder, name).model_type, read_json(folder / "config.json", AnyObject).content
    if kind not in CONFIG_MAPPING or kind == "timm_wrapper":  # which would fetch what its configuration names
        raise DmcError(
            f"{name} is a {kind!r}, which this version of transformers has no network for; no code is fetched"
        )
    with blaming(f"{name} cannot be built"):
        return CONFIG_MAPPING[kind].from_dict(
            {key: value for key, value in told.items() if key not in (*WRITTEN, "dmc")}
        )


def require_room(kind: type[nn.Module], config: Any, tensors: dict[str, Tensor], name: str) -> None:
    """Refuse a configuration of a larger network than the weights are of, before it takes all time or memory."""
    deep = [n for key, value in config.to_dict().items() if DEPTHS.search(key) for n in _numbers(value)]
    if max(deep, default=0) > len(tensors):
        raise DmcError(f"{name} is said to have {max(deep)} layers, but its weights are {len(tensors)} tensors")
    with blaming(f"{name} cannot be built"), torch.device("meta"):
        wanted = sum(parameter.numel() for parameter in kind(config).parameters())
    there = sum(tensor.numel() for tensor in tensors.values())
    if wanted > there:
        raise DmcError(f"{name} is said to have {wanted:,} parameters, but its weights are {there:,} numbers")


def _numbers(value: Any) -> list[int]:
    return [n for n in (value if isinstance(value, list | tuple) else [value]) if isinstance(n, int)]


def require_colours(config: Any, name: str, channels: int) -> None:
    """Refuse anything but colour images."""
    own = getattr(config, "num_channels", 3)
    if (own, channels) != (3, 3):
        raise DmcError(f"{name} takes images of {own} channels and gets {channels}: give it colours, or take another")
