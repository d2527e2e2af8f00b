"""Load a model of any kind from wherever it may be (`dmc.load`). Nothing is ever unpickled into objects."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from dmc.classes import Classes, read_names
from dmc.config import Output
from dmc.data.preprocess import Preprocessing, preprocessing_in
from dmc.data.readers import IMAGE_SUFFIXES
from dmc.errors import DmcError
from dmc.extras import require_extra
from dmc.imagenet import imagenet_names
from dmc.model_config import ModelConfig, TransformersConfig, read_model_config
from dmc.models import onnx_detector
from dmc.models.architecture_source import Trained
from dmc.models.detector import Detector
from dmc.models.hub import HUB, download
from dmc.models.model import MODELS, Model
from dmc.models.onnx_file import OnnxFile
from dmc.models.onnx_network import OnnxNetwork
from dmc.models.specialist import Specialist
from dmc.models.user_network import named_code
from dmc.models.weights import MODEL_FILES, load_weights, read_weights, require_outputs, weights_in
from dmc.specs import refuse, split_spec

SETTINGS = ("arch", "classes", "output", "size", "mean", "std", "interpolation", "crop_pct", "crop_mode")


def load(
    source: str | Path | Model,
    arch: str | None = None,
    classes: Sequence[str] | str | Path | None = None,
    preprocessing: Preprocessing | None = None,
    output: Output | None = None,
) -> Model:
    """Load a folder, `timm:NAME`, `hf-hub:OWNER/NAME`, `torchvision:NAME`, `transformers:NAME`, ONNX or a state dict.

    A state dict (`.safetensors`, `.pt`, `.pth`) needs `arch` and `classes`: names, a file with a name on each
    line, or `"imagenet-1k"`. Settings may also follow the source as text: `old.pth,arch=resnet32,classes=old.txt`.
    For a folder that was saved with code, `arch` must name that code, `net.py:make_network`, since it is run.
    """
    if isinstance(source, Model):
        return source
    arch_settings = [key for kind in MODELS.values() for key in kind.architectures.settings]
    path, settings = split_spec(str(source), (*SETTINGS, *onnx_detector.SETTINGS, *arch_settings))
    if not path.endswith(".onnx"):
        refuse(path, settings, onnx_detector.SETTINGS, "models that are no ONNX files")
    parts = [arch or settings.get("arch"), *(f"{key}={settings[key]}" for key in arch_settings if key in settings)]
    names = _class_names(classes if classes is not None else settings.get("classes"))
    output = output or cast(Output | None, settings.get("output"))
    given = Given(",".join(filter(None, parts)) or None, names, preprocessing, output, settings)
    kind, trained = _find(path, given)
    own = (*SETTINGS, *onnx_detector.SETTINGS, *kind.architectures.settings)
    split_spec(str(source), own)  # refuses settings of other kinds
    return given.model(kind, trained, path)


def load_saved(folder: Path, named: Iterable[str]) -> Model:
    """Load a model that a run saved. If its network is code, it is run if it is among the architectures `named`."""
    return load(folder, arch=named_code(folder, _read_config(folder, str(folder)).architecture, named))


def class_for(arch: str) -> type[Model]:
    """Find the kind of model by its architecture's name; a name that no kind claims is a classifier's."""
    return next((kind for kind in MODELS.values() if kind.claims(arch)), Specialist)


def _kind_of(path: str) -> type[Model]:
    """Find the kind of model by its name or, if that is transformers', by what is there."""
    scheme, _, place = path.partition(":")
    if scheme != "transformers":
        return class_for(path)
    require_extra("transformers", "transformers")
    from dmc.models.transformers_detectors import is_detector

    return Detector if is_detector(place) else Specialist


NO_WEIGHTS = (".py", ".json", ".md", ".txt", ".pt2")


@dataclass(frozen=True)
class Given:
    """What the user says about a model to load; None: nothing."""

    arch: str | None
    names: Sequence[str] | None
    preprocessing: Preprocessing | None
    output: Output | None
    settings: Mapping[str, str]

    def model(self, kind: type[Model], trained: Trained, name: str) -> Model:
        """Make the model; refuse what the user gave if it does not fit."""
        if self.output is not None and len(kind.outputs) == 1:
            always = f"its output is always {kind.outputs[0]}"
            raise DmcError(f"{name} is a {kind.singular}: {always}, so output= is not a setting of it")
        if self.arch and not self.means(kind, trained.arch):
            network = "has its own network" if trained.arch is None else f"is a {trained.arch}"
            raise DmcError(f"{name} {network}; an architecture is given for state dicts only")
        labels, columns = tuple(trained.labels), tuple(trained.columns or range(len(trained.labels)))
        if len(columns) != len(labels):
            raise DmcError(f"{name} has {len(columns)} outputs in use but {len(labels)} class names")
        classes = Classes(labels, columns, trained.width if trained.columns else len(labels))
        output = self.output or cast(Output, trained.output or kind.outputs[0])
        preprocessing = self.shown(trained.preprocessing, name)
        return kind(trained.module, classes, preprocessing, output, trained.arch, name, trained.provenance)

    @property
    def told(self) -> Collection[str]:
        """The parts of the preprocessing that the user gave."""
        return self.settings if self.preprocessing is None else asdict(self.preprocessing)

    def means(self, kind: type[Model], arch: str | None) -> bool:
        """Tell whether the user's name for the architecture is that of the trained network."""
        if arch is None or self.arch is None:
            return arch == self.arch
        return kind.architectures.find(arch).runs_code or kind.architectures.means(self.arch, arch)

    def shown(self, usual: Preprocessing, name: str) -> Preprocessing:
        """Choose the preprocessing: the given or usual one, with values changed as in `size=64,mean=0.5/0.5/0.5`."""
        usual, settings = self.preprocessing or usual, self.settings

        def number(key: str, text: Any, kind: type = float) -> Any:
            try:
                return kind(text)
            except ValueError:
                raise DmcError(f"{name}: {key} is a number, not {text!r}") from None

        def numbers(key: str, default: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(number(key, part) for part in settings[key].split("/")) if key in settings else default

        try:
            return Preprocessing(
                size=number("size", settings.get("size", usual.size), int),
                mean=numbers("mean", usual.mean),
                std=numbers("std", usual.std),
                interpolation=cast(Any, settings.get("interpolation", usual.interpolation)),
                crop_pct=number("crop_pct", settings.get("crop_pct", usual.crop_pct)),
                crop_mode=cast(Any, settings.get("crop_mode", usual.crop_mode)),
            )
        except ValueError as error:
            raise DmcError(f"{name}: {error}") from None


def _find(path: str, given: Given) -> tuple[type[Model], Trained]:
    """Get the trained network that a text means, and its kind of model."""
    if path.startswith(HUB):
        repo = path.removeprefix(HUB)
        return _from_folder(download(repo, MODEL_FILES), path, given, repo)
    kind = _kind_of(path)
    if kind.architectures.entry(path).releases(path):
        return _released(kind, path, path, given)
    if Path(path).is_dir():
        return _from_folder(Path(path), path, given, path)
    if path.endswith(".onnx"):
        file = OnnxFile(Path(path))
        asked = any(key in given.settings for key in onnx_detector.SETTINGS)
        return _onnx_detector(file, given) if file.is_detector or asked else _onnx_classifier(file, given)
    if Path(path).suffix.lower() in IMAGE_SUFFIXES:
        raise DmcError(f"{path} is an image, not a model: the model comes first")
    if Path(path).is_file():
        return _from_state_dict(Path(path), given)
    schemes = {entry.scheme for kind in MODELS.values() for entry in kind.architectures.entries} - {None}
    released = ", ".join(f"{scheme}:" for scheme in sorted(map(str, schemes)))
    raise DmcError(f"no model at {path}: give a folder, a state dict, an ONNX file, {released} or {HUB}NAME")


def _from_state_dict(path: Path, given: Given) -> tuple[type[Model], Trained]:
    if path.suffix.lower() in NO_WEIGHTS:
        raise DmcError(f"{path} holds no weights: name a model's folder, a state dict, or an ONNX file")
    if given.arch is None or given.names is None:
        missing = "an architecture (arch=NAME)" if given.arch is None else "class names (classes=FILE)"
        raise DmcError(f"{path} is a bare state dict and needs {missing}: {path},arch=NAME,classes=FILE")
    kind, width = class_for(given.arch), len(given.names)
    arch = kind.architectures.known(given.arch)
    preprocessing = given.shown(kind.architectures.preprocessing(arch), str(path))
    module = kind.architectures.create(arch, width, preprocessing.channels)
    load_weights(module, read_weights(path), path, arch, width)
    return kind, Trained(module, arch, preprocessing, given.names, width, {"weights": str(path)})


def _released(kind: type[Model], arch: str, name: str, given: Given) -> tuple[type[Model], Trained]:
    trained = kind.architectures.find(arch).released(arch)
    return kind, trained._replace(labels=kind.labels(trained.labels, given.names, trained.width, name))


def _from_folder(folder: Path, name: str, given: Given, place: str) -> tuple[type[Model], Trained]:
    """Read a folder; `place` is what it is called where models are named by their places."""
    config = _read_config(folder, name)
    if isinstance(config, TransformersConfig):
        return _released(_kind_of(f"transformers:{place}"), f"transformers:{place}", name, given)
    own, width = config.own, config.num_classes
    tag = own.task or Specialist.pipeline_tag  # a folder that dmc did not write is timm's
    if tag not in MODELS:
        raise DmcError(f"{name} is a model for {tag}; dmc knows {', '.join(MODELS)}")
    kind = MODELS[tag]
    try:
        preprocessing = preprocessing_in(config.pretrained_cfg)
    except DmcError as error:
        raise DmcError(f"{name} is not a model folder: config.json has a pretrained_cfg of which {error}") from None
    labels = kind.labels(config.label_names, given.names, width, name)
    weights = weights_in(folder, name)
    source = kind.architectures.find(config.architecture)
    arch = kind.architectures.known(source.reopen(config.architecture, given.arch, folder, name))
    tensors = read_weights(weights)
    require_outputs(tensors, width, weights)
    module = kind.architectures.create(arch, width, preprocessing.channels)
    load_weights(module, tensors, weights, arch, width)
    return kind, Trained(module, arch, preprocessing, labels, width, own.provenance, own.columns, own.output)


def _onnx_classifier(file: OnnxFile, given: Given) -> tuple[type[Model], Trained]:
    preprocessing = given.shown(file.preprocessing(given.told), str(file.path))
    network = OnnxNetwork(file, preprocessing)
    labels = Specialist.labels(file.labels, given.names, network.width, str(file.path))
    found = Trained(network, None, preprocessing, labels, network.width, file.provenance, output=file.output)
    return Specialist, found


def _onnx_detector(file: OnnxFile, given: Given) -> tuple[type[Model], Trained]:
    onnx_detector.require_boxes(file)
    names = onnx_detector.class_names(file, given.names)
    told = {*given.told, *(("mean", "std") if onnx_detector.from_yolo(file) else ())}
    preprocessing = given.shown(file.preprocessing(told, *onnx_detector.assumed(file)), str(file.path))
    settings = [given.settings.get(key) for key in onnx_detector.SETTINGS]
    network = onnx_detector.OnnxDetector(file, preprocessing, len(names), *settings)
    return Detector, Trained(network, None, preprocessing, names, len(names), file.provenance)


def _read_config(folder: Path, name: str) -> ModelConfig | TransformersConfig:
    if not (folder / "config.json").exists():
        begun = any((folder / place / "run.json").exists() for place in (".", "specialist"))  # `learn` trains one there
        unfinished = "holds a run that is not finished: resume it first" if begun else ""
        raise DmcError(f"{name} {unfinished or 'is not a model folder: it has no config.json'}")
    return read_model_config(folder, name)


def _class_names(classes: Sequence[str] | str | Path | None) -> Sequence[str] | None:
    if classes is None:
        return None
    if classes == "imagenet-1k":
        return imagenet_names()
    return read_names(Path(classes)) if isinstance(classes, str | Path) else tuple(classes)
