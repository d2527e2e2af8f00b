"""A model, the names of its classes and what it wants to see: the unit that users pass around.

On disk it is a folder: `model.safetensors`, `config.json` (timm's format with one more section) and a model card.
"""

from __future__ import annotations

import copy
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from dmc.classes import Classes, counted
from dmc.data.decode import CenterCrop, Transform
from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError, first_line
from dmc.files import replacing, umask, write_text
from dmc.models.architectures import create, default_preprocessing, known_architecture
from dmc.models.user_network import is_factory, keep_file
from dmc.seeds import seed_for

Output = Literal["softmax", "sigmoid"]
AnyModel = TypeVar("AnyModel", bound="Model")  # of one kind: classifiers or detectors


class Model(ABC):
    """What classifiers and detectors have in common: a module, class names, preprocessing, a place on disk."""

    task: ClassVar[str]

    def __init__(
        self,
        module: nn.Module,
        classes: Iterable[str] | Classes,
        preprocessing: Preprocessing | None = None,
        output: Output = "softmax",
        arch: str | None = None,
        name: str = "model",
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        self.module = module.eval()
        self.classes = classes if isinstance(classes, Classes) else Classes.of(classes)
        self.preprocessing = preprocessing or Preprocessing()
        self.output, self.arch, self.name = output, arch, name
        self.provenance = dict(provenance or {})
        if output not in get_args(Output):
            raise DmcError(f"{name}: output kind {output!r} is neither 'softmax' nor 'sigmoid'")
        self._check_head()

    def require_arch(self) -> str:
        """For others to be built like it."""
        if self.arch is None:
            raise DmcError(f"{self.name} has no architecture name; say which one the student has (arch)")
        return self.arch

    @abstractmethod
    def _check_head(self) -> None:
        """Refuse a module whose answer does not fit the class names."""

    @property
    @abstractmethod
    def transform(self) -> Transform:
        """How an image is shaped for it."""

    @abstractmethod
    def blank(self) -> Tensor:
        """An image with nothing on it, as the module takes it."""

    @abstractmethod
    def widened(self, names: Iterable[str], seed: int = 0) -> Self:
        """A copy that answers for more classes: for the old ones as before, for the new ones at random."""

    def __repr__(self) -> str:
        arch = self.arch or type(self.module).__name__
        return f"{type(self).__name__}({self.name}: {arch}, {counted(self.names)})"

    @property
    def names(self) -> tuple[str, ...]:
        return self.classes.names

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.module.parameters()), torch.device("cpu"))

    @property
    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.module.parameters())

    def to(self, device: torch.device) -> Self:
        self.module.to(device).to(memory_format=torch.channels_last)
        return self

    def keep(self, names: Iterable[str]) -> Self:
        """The same network, answering with these classes only."""
        return self._with(self.classes.keep(names, self.name))

    def rename(self, new_names: Mapping[str, str]) -> Self:
        """The same network under other class names: `{"automobile": "car"}`."""
        return self._with(self.classes.rename(new_names, self.name))

    def _with(self, classes: Classes) -> Self:
        return type(self)(self.module, classes, self.preprocessing, self.output, self.arch, self.name, self.provenance)

    def answering_with(self, module: nn.Module) -> Self:
        """The same model, asked through another module that computes the same."""
        twin = copy.copy(self)
        twin.module = module
        return twin

    def require_finite(self, logits: Tensor) -> None:
        """Refuse answers that nobody could learn from."""
        if not torch.isfinite(logits).all():
            raise DmcError(f"{self.name} gives logits that are not finite; its weights are broken")

    @property
    def settings(self) -> dict[str, Any]:
        """All but the weights, for a run's configuration."""
        return {
            "arch": self.arch,
            "classes": list(self.names),
            "output": self.output,
            "preprocessing": asdict(self.preprocessing),
        }

    @property
    def fingerprint(self) -> str:
        """Identifies the weights and what their outputs mean."""
        digest = hashlib.sha256(repr((self.classes, self.preprocessing, self.output)).encode())
        for key, value in sorted(self.module.state_dict().items()):
            digest.update(key.encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]

    def save(self, folder: str | Path) -> Path:
        """Write weights, configuration and model card; `dmc.load(folder)` gives the model back."""
        if self.arch is None:
            raise DmcError(
                f"{self.name} has no architecture name, so nobody could load it again; set `arch`, "
                "also to a function in a file of yours: 'net.py:make_network'"
            )
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        arch = keep_file(self.arch, folder) if is_factory(self.arch) else self.arch
        tensors = {k: v.detach().cpu().contiguous().clone() for k, v in self.module.state_dict().items()}
        with replacing(folder / "model.safetensors") as path:
            try:
                save_file(tensors, path, metadata={"format": "pt"})
            except SafetensorError as error:  # a full disk
                raise DmcError(f"cannot write {folder / 'model.safetensors'}: {first_line(error)}") from None
            path.chmod(0o666 & ~umask())  # safetensors writes for the owner alone
        write_text(folder / "README.md", self._card(arch))
        config = json.dumps(self._config(arch), indent=2) + "\n"
        write_text(folder / "config.json", config)  # last: it completes the folder
        return folder

    def _config(self, arch: str) -> dict[str, Any]:
        p = self.preprocessing
        return {
            "architecture": arch,
            "num_classes": self.classes.width,
            "label_names": list(self.names),
            "pretrained_cfg": {
                "architecture": arch,
                "num_classes": self.classes.width,
                "input_size": [p.channels, p.size, p.size],
                "mean": list(p.mean),
                "std": list(p.std),
                "interpolation": p.interpolation,
                "crop_pct": p.crop_pct,
            },
            "dmc": {
                "task": self.task,
                "output": self.output,
                "columns": None if self.classes.whole else list(self.classes.columns),
                "provenance": self.provenance,
            },
        }

    def _card(self, arch: str) -> str:
        p = asdict(self.preprocessing)
        load = f'dmc.load("this-folder", arch="{arch}")' if is_factory(arch) else 'dmc.load("this-folder")'
        lines = [
            "---",
            f"library_name: {'timm' if self.task == 'image-classification' else 'deep-model-consolidation'}",
            f"pipeline_tag: {self.task}",
            f"tags: [{self.task}, deep-model-consolidation]",
            "---",
            f"# {arch}, {counted(self.names)}",
            "",
            f"Made with `dmc` (deep-model-consolidation). Load it with `{load}`.",
            "",
            f"- classes: {'; '.join(self.names)}",
            f"- parameters: {self.parameter_count:,}",
            f"- output: {self.output}",
            *(f"- {key}: {value}" for key, value in p.items()),
            "",
            "## Where it comes from",
            "",
            *(
                f"- {key}: {line}"
                for key, value in self.provenance.items()
                for line in (value if isinstance(value, list) else [value])
            ),
            "",
        ]
        return "\n".join(lines)


class Specialist(Model):
    """Any module that maps images to logits, made usable: `Specialist(net, ["cat", "dog"], Preprocessing(64))`.

    `output` says what the logits mean: `softmax` scores compete, `sigmoid` scores are independent log-odds.
    `arch` is the name that `dmc.models.create` builds the module from, also `net.py:make_network`; without it, it
    cannot be saved.
    """

    task = "image-classification"

    @classmethod
    def untrained(
        cls,
        arch: str,
        names: Iterable[str],
        preprocessing: Preprocessing | None = None,
        output: Output = "softmax",
        seed: int = 0,
        weights: str | None = None,
    ) -> Specialist:
        """Random weights that are a function of the seed; `weights` is where else to begin: imagenet, or a file."""
        arch = known_architecture(arch)
        preprocessing = preprocessing or default_preprocessing(arch)
        classes = Classes.of(names)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(seed, "weights"))
            module = create(arch, classes.width, preprocessing.channels, weights)
        return cls(module, classes, preprocessing, output, arch, name=arch)

    def _check_head(self) -> None:
        """One blank image through the network: it must accept the size and answer with one logit per class."""
        size = self.preprocessing.size
        try:
            with torch.no_grad():
                logits = _logits(self.module(self.blank()))
        except Exception as error:  # whatever a foreign module raises
            raise DmcError(f"{self.name} does not accept {size}x{size} images: {first_line(error)}") from None
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            raise DmcError(f"{self.name} does not map images to a vector of logits for each image")
        if logits.shape[1] != self.classes.width:
            raise DmcError(
                f"{self.name} has {self.classes.width} class names but its head has {logits.shape[1]} outputs"
            )

    @property
    def transform(self) -> CenterCrop:
        """The part of an image that it is shown in evaluation."""
        p = self.preprocessing
        return CenterCrop(p.size, p.interpolation, p.crop_pct)

    def blank(self) -> Tensor:
        size = self.preprocessing.size
        return self.preprocessing(torch.zeros((1, 3, size, size), dtype=torch.uint8, device=self.device))

    def logits(self, images_N3HW: Tensor) -> Tensor:
        """uint8 RGB images of any square size to one logit for each class name."""
        logits_NK = _logits(self.module(self.preprocessing(images_N3HW.to(self.device)))).float()
        return logits_NK if self.classes.whole else logits_NK[:, list(self.classes.columns)]

    def features(self, images_N3HW: Tensor) -> Tensor:
        """What the network feeds to its classification layer; timm's interface has it."""
        if not hasattr(self.module, "forward_head"):
            raise DmcError(f"{self.arch or self.name} does not say what its features are; use a timm architecture")
        seen = self.preprocessing(images_N3HW.to(self.device))
        features_ND: Tensor = self.module.forward_head(self.module.forward_features(seen), pre_logits=True)  # type: ignore[operator]
        return features_ND

    def probabilities(self, images_N3HW: Tensor) -> Tensor:
        with torch.no_grad():
            logits_NK = self.logits(images_N3HW)
            self.require_finite(logits_NK)
            return logits_NK.softmax(dim=1) if self.output == "softmax" else logits_NK.sigmoid()

    def widened(self, names: Iterable[str], seed: int = 0) -> Specialist:
        """A copy with outputs for more classes: the old ones answer as before, the new ones at random."""
        if self.arch is None or not self.classes.whole:
            raise DmcError(f"{self.name} cannot grow: it needs an architecture name and all of its own classes")
        wide = Specialist.untrained(self.arch, (*self.names, *names), self.preprocessing, self.output, seed)
        own = self.module.state_dict()
        with torch.no_grad():
            for key, value in wide.module.state_dict().items():
                if value.ndim == 0:
                    value.copy_(own[key])
                else:  # all of it, or, in the head, the rows of the old classes
                    value[: own[key].shape[0]] = own[key]
        return wide


def _logits(answer: Any) -> Tensor:
    """Inception and GoogLeNet answer with more than that in training."""
    logits: Tensor = getattr(answer, "logits", answer)
    return logits
