"""A network with its class names and preprocessing: what all kinds of models have in common.

On disk it is a folder: `model.safetensors`, `config.json` (timm's format with one more section) and a model card.
"""

from __future__ import annotations

import copy
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_args

import torch
from safetensors.torch import save
from torch import Tensor, nn

from dmc.classes import Classes, counted
from dmc.config import Output
from dmc.data.decode import Transform
from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError
from dmc.files import replacing, write_text
from dmc.locks import IDLE, sweep
from dmc.models.architecture_source import Architectures
from dmc.models.card import Card
from dmc.seeds import seed_for

AnyModel = TypeVar("AnyModel", bound="Model")  # one kind of model, such as a classifier
NOT_FINITE = "gives answers that are not finite; it is broken"
MODELS: dict[str, type[Model]] = {}  # every kind, by its pipeline tag


class Model(ABC):
    """A network, its class names and its preprocessing. A subclass with a `pipeline_tag` is a kind of its own."""

    pipeline_tag: ClassVar[str]  # the hub's word for its task
    singular: ClassVar[str]  # what one is called in messages
    architectures: ClassVar[Architectures]  # that its networks may have
    outputs: ClassVar[tuple[Output, ...]] = get_args(Output)  # what its logits may mean, the usual first
    library_name: ClassVar[str] = "deep-model-consolidation"  # the library that can open a saved one, for its card

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "pipeline_tag" in vars(cls):
            MODELS[cls.pipeline_tag] = cls

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
        self.check_head()

    @classmethod
    def claims(cls, arch: str) -> bool:
        """Tell whether an architecture's name alone says that a model is of this kind."""
        return False

    @classmethod
    def labels(cls, known: Sequence[str], given: Sequence[str] | None, width: int, name: str) -> Sequence[str]:
        """Choose the class names of a saved or released network: `known` came with it, `given` came from the user."""
        if given is not None:
            raise DmcError(f"{name} knows its architecture and its classes; they are given for state dicts only")
        return known

    @classmethod
    def built(
        cls,
        arch: str,
        names: Iterable[str],
        preprocessing: Preprocessing | None,
        output: Output,
        seed: int,
        weights: str | None = None,
    ) -> Self:
        """Make an untrained model; its random weights are a function of the seed."""
        arch = cls.architectures.known(arch)
        preprocessing = preprocessing or cls.architectures.preprocessing(arch)
        classes = Classes.of(names)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(seed, "weights"))
            module = cls.architectures.create(arch, classes.width, preprocessing.channels, weights)
        return cls(module, classes, preprocessing, output, arch, name=arch)

    def widened(self, names: Iterable[str], seed: int = 0) -> Self:
        """Copy the model with outputs for more classes: the old ones answer as before, the new ones at random."""
        if self.arch is None or not self.classes.whole:
            raise DmcError(f"{self.name} cannot grow: it needs an architecture name and all of its own classes")
        wide = self.built(self.arch, (*self.names, *names), self.preprocessing, self.output, seed)
        wide.name = self.name
        own = self.module.state_dict()
        with torch.no_grad():
            for key, value in wide.module.state_dict().items():
                if value.shape == own[key].shape:
                    value.copy_(own[key])
                else:
                    rows = self.rows_by_class(own[key])
                    wide.rows_by_class(value)[:, : rows.shape[1]] = rows
        return wide

    def begin_as(self, other: Self) -> None:
        """Take over the weights of a model of the same architecture, all but those of the outputs."""
        if self.arch is None or self.arch != other.arch:
            raise DmcError(f"a {self.arch} cannot begin with the weights of {other.name}, a {other.arch}")
        theirs, outputs = other.module.state_dict(), self._of_outputs()
        with torch.no_grad():
            for key, value in self.module.state_dict().items():
                if key not in outputs:
                    value.copy_(theirs[key])

    def as_mean_of(self, others: Sequence[Self]) -> Self:
        """Copy the model with the mean of other models' weights, which have its architecture and some of its classes.

        The outputs of a class are the mean over those that know it; if none does, they stay as they are.
        """
        twin, outputs = self.with_module(copy.deepcopy(self.module)), self._of_outputs()
        states = [other.module.state_dict() for other in others]
        with torch.no_grad():
            for key, value in twin.module.state_dict().items():
                parts = [state[key] for state in states]
                if key in outputs:
                    rows = [other.rows_by_class(part) for other, part in zip(others, parts, strict=True)]
                    self._fill_outputs(self.rows_by_class(value), rows, [other.names for other in others])
                elif value.is_floating_point():  # else it counts batches
                    value.copy_(torch.stack(parts).mean(dim=0))
        return twin

    def _fill_outputs(self, own: Tensor, others: Sequence[Tensor], names: Sequence[Sequence[str]]) -> None:
        """Fill rows of outputs with the mean of other models' rows: of those that know the class, or of background."""
        background = own.shape[1] - len(self.names)
        own[:, :background] = torch.stack([rows[:, :background] for rows in others]).mean(dim=0)
        places = [{name: i for i, name in enumerate(theirs, background)} for theirs in names]
        for i, name in enumerate(self.names, background):
            known = [rows[:, at[name]] for rows, at in zip(others, places, strict=True) if name in at]
            if known:
                own[:, i] = torch.stack(known).mean(dim=0)

    def _of_outputs(self) -> set[str]:
        """Name the tensors that have a row for each class: those of another shape in a model with one class more."""
        assert self.arch is not None
        names = [f"class {i}" for i in range(len(self.names) + 1)]
        wider = self.built(self.arch, names, self.preprocessing, self.output, seed=0).module.state_dict()
        return {key for key, value in self.module.state_dict().items() if value.shape != wider[key].shape}

    def rows_by_class(self, outputs: Tensor) -> Tensor:
        """View a tensor of outputs so that its second dimension has a row for each class."""
        return outputs[None]

    @property
    def student_arch(self) -> str | None:
        """The architecture that a student can have, too; None: there is none."""
        return self.arch

    def require_arch(self) -> str:
        """Give the architecture's name; refuse a model without one, since no student can be built like it."""
        if self.student_arch is None:
            lacking = (
                "has no architecture name" if self.arch is None else f"is a {self.arch}, which cannot be a student"
            )
            raise DmcError(f"{self.name} {lacking}; say which one the student has (`arch`)")
        return self.student_arch

    @abstractmethod
    def check_head(self) -> None:
        """Refuse a module whose answer does not fit the class names."""

    @property
    @abstractmethod
    def transform(self) -> Transform:
        """How an image is resized and cropped for the network."""

    @abstractmethod
    def blank(self) -> Tensor:
        """Make a blank image in the form that the module takes."""

    def __repr__(self) -> str:
        arch = self.arch or type(self.module).__name__
        return f"{type(self).__name__}({self.name}: {arch}, {counted(self.names)})"

    @property
    def names(self) -> tuple[str, ...]:
        """The class names, in the order of the logits."""
        return self.classes.names

    @property
    def device(self) -> torch.device:
        tensors = chain(self.module.parameters(), self.module.buffers())
        return next((tensor.device for tensor in tensors), torch.device("cpu"))

    @property
    def parameter_count(self) -> int:
        elsewhere = getattr(self.module, "weights_elsewhere", 0)  # in a runtime of its own, not torch's
        return elsewhere + sum(p.numel() for p in self.module.parameters())

    def to(self, device: torch.device) -> Self:
        """Move the module, in place, to a device and to the memory format that convolutions prefer."""
        self.module.to(device).to(memory_format=torch.channels_last)
        return self

    def keep(self, names: Iterable[str]) -> Self:
        """Give the same network with these classes only."""
        return self._with(self.classes.keep(names, self.name))

    def rename(self, new_names: Mapping[str, str]) -> Self:
        """Give the same network with other class names: `{"automobile": "car"}`."""
        return self._with(self.classes.rename(new_names, self.name))

    def _with(self, classes: Classes) -> Self:
        return type(self)(self.module, classes, self.preprocessing, self.output, self.arch, self.name, self.provenance)

    def with_module(self, module: nn.Module) -> Self:
        """Give the same model with another module that computes the same, such as the loop's own."""
        twin = copy.copy(self)
        twin.module = module
        return twin

    def require_finite(self, *answers: Tensor) -> None:
        """Refuse answers that are infinite or not a number: nobody could learn from them."""
        if not all(bool(answer.isfinite().all()) for answer in answers):
            raise DmcError(f"{self.name} {NOT_FINITE}")

    @property
    def settings(self) -> dict[str, Any]:
        """Everything but the weights, as run.json holds it."""
        return {
            "arch": self.arch,
            "classes": list(self.names),
            "output": self.output,
            "preprocessing": self.preprocessing.settings,
        }

    @property
    def fingerprint(self) -> str:
        """A hash of the weights and of what their outputs mean."""
        c, p = self.classes, self.preprocessing
        # Written out, so that a renamed class or field does not keep runs of earlier versions from being resumed.
        mode = "" if p.crop_mode == "center" else f", crop_mode={p.crop_mode!r}"
        meaning = (
            f"(Classes(names={c.names!r}, columns={c.columns!r}, width={c.width!r}), "
            f"Preprocessing(size={p.size!r}, mean={p.mean!r}, std={p.std!r}, interpolation={p.interpolation!r}, "
            f"crop_pct={p.crop_pct!r}{mode}), {self.output!r})"
        )
        digest = hashlib.sha256(meaning.encode())
        for key, value in sorted(self.module.state_dict().items()):
            digest.update(key.encode())
            if isinstance(value, Tensor):
                digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
            else:  # of a quantised network, or a user's own
                digest.update(repr(value).encode())
        return digest.hexdigest()[:16]

    def save(self, folder: str | Path, *, license: str | None = None, hub_name: str = "") -> Path:
        """Write weights, configuration and model card; `dmc.load(folder)` gives the model back.

        The card tells the license and the name on the hub (`OWNER/NAME`), if they are given.
        """
        if self.arch is None:
            raise DmcError(
                f"{self.name} has no architecture name, so nobody could load it again; set `arch`, "
                "also to a function in a file of yours: 'net.py:make_network'"
            )
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder, idle=IDLE)
        source = self.architectures.find(self.arch)
        arch = source.keep(self.arch, folder)
        tensors = {k: v.detach().cpu().contiguous().clone() for k, v in self.module.state_dict().items()}
        with replacing(folder / "model.safetensors") as path:
            # Not by `save_file`, which a kill makes leave a file behind whose name does not tell whose it was.
            path.write_bytes(save(tensors, metadata={"format": "pt"}))
        write_text(folder / "README.md", self._card(arch, license, hub_name).text())
        files = source.library_files(self.module, self.classes, self.preprocessing, self.output)
        config = files.pop("config.json", {}) | self._config(arch)
        for name, content in (*files.items(), ("config.json", config)):  # which completes the folder
            write_text(folder / name, json.dumps(content, indent=2) + "\n")
        return folder

    def _card(self, arch: str, license: str | None, hub_name: str) -> Card:
        source = self.architectures.find(arch)
        return Card(
            arch=arch,
            runs_code=source.runs_code,
            names=self.names,
            parameters=self.parameter_count,
            output=self.output,
            preprocessing=self.preprocessing,
            provenance=self.provenance,
            task=self.pipeline_tag,
            library=source.library or self.library_name,
            license=license,
            hub_name=hub_name,
        )

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
                "crop_mode": p.crop_mode,
            },
            "dmc": {
                "task": self.pipeline_tag,
                "output": self.output,
                "columns": None if self.classes.whole else list(self.classes.columns),
                "parameters": self.parameter_count,
                "provenance": self.provenance,
            },
        }


def require(model: Model, kind: type[AnyModel]) -> AnyModel:
    """Give the model back with its type; refuse a model of another kind."""
    if not isinstance(model, kind):
        raise DmcError(f"{model.name} is a {model.singular}; a {kind.singular} is needed here")
    return model
