"""Read an ONNX file: bounded, without opening files that are not beside it, and what it says of itself."""

from __future__ import annotations

import ast
import hashlib
import json
import logging
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dmc.config import Output
from dmc.data.preprocess import Preprocessing
from dmc.data.untrusted import Below, Refused, require_class_names
from dmc.documents import parsed
from dmc.errors import DmcError, first_line
from dmc.extras import require_extra
from dmc.files import read_bytes
from dmc.model_config import labels_in
from dmc.models.exported import METADATA, Described

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from onnx import ModelProto, TensorProto, ValueInfoProto

MOST_BYTES = 2**31 - 1  # protobuf takes no more, and onnxruntime neither
MOST_TEXT = 2**22  # characters of a list of class names
LARGEST = 4096  # pixels a side; a network is tried on images of its size
NAMES = ("names", "classes", "labels", "class_names", "id2label")  # where exporters put the class names
SAME = ("Identity", "Cast", "Flatten", "Reshape", "Squeeze")  # operators that leave the numbers as they are
ACTIVATIONS: Mapping[str, Output] = {"Softmax": "softmax", "LogSoftmax": "softmax", "Sigmoid": "sigmoid"}
IMAGENET = Preprocessing(224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
PIXELS = ((0.0,) * 3, (1 / 255,) * 3)  # the mean and std that leave pixels from 0 to 255 as they are
log = logging.getLogger("dmc")


@dataclass(frozen=True)
class ImageInput:
    """What the network takes: N x C x H x W, or N x H x W x C."""

    name: str
    dtype: np.dtype[Any]
    batch: int | None  # None: any
    channels: int
    size: int | None  # None: any
    channels_last: bool


class OnnxFile:
    """An ONNX file, read whole: onnxruntime gets its bytes, and opens no file itself."""

    def __init__(self, path: Path) -> None:
        require_extra("onnx", "onnx", "onnxruntime")
        self.path = path
        self.model, self.digest = _read(path)
        self.texts = {entry.key: entry.value for entry in self.model.metadata_props}
        self.described = self._described()
        self.input = self._image_input()

    @property
    def is_detector(self) -> bool:
        """Whether it gives boxes: it says so, or gives more than a row for each image."""
        if self.described:
            return self.described.answers == "boxes"
        shapes = [_shape(value) for value in self.model.graph.output]
        axes_of_boxes = {len(shape) for shape in shapes if shape[-1:] == [4]}
        several = 3 in axes_of_boxes or (2 in axes_of_boxes and any(len(shape) == 1 for shape in shapes))
        return self.texts.get("task") == "detect" or several or (len(shapes) == 1 and len(shapes[0]) == 3)

    @property
    def parameter_count(self) -> int:
        """The number of its weights."""
        return sum(math.prod(tensor.dims) for tensor in self.model.graph.initializer)

    @property
    def output(self) -> Output | None:
        """What its logits mean; None: it does not tell."""
        return self.described.output if self.described else self.activation

    @property
    def probabilities(self) -> bool:
        """Whether it says that it answers with probabilities, though no operator at its end makes them."""
        return self.activation is None and self.described is not None and self.described.answers == "probabilities"

    @property
    def labels(self) -> Sequence[str]:
        """The class names that the file has; none if it does not tell."""
        if self.described:
            return require_class_names(self.described.classes, str(self.path))
        for key in NAMES:
            found = _as_labels(self.texts.get(key, ""))
            if found:
                return require_class_names(found, f"{self.path}: {key} in its metadata")
        return ()

    def _described(self) -> Described | None:
        """Read what `dmc export` has written; None if it did not write the file."""
        if METADATA not in self.texts:
            return None
        return parsed(self.texts[METADATA], Described, f"{self.path} is damaged: its {METADATA}")

    def preprocessing(
        self, told: Container[str], assumed: Preprocessing = IMAGENET, whose: str = "ImageNet's"
    ) -> Preprocessing:
        """Give the preprocessing; of what neither the file nor the user has `told`, what is assumed, with a warning."""
        known, channels, pixels = self.described, self.input.channels, self.input.dtype == np.uint8
        usual = known.preprocessing if known else assumed
        size = self.input.size or (usual.size if known else _as_size(self.texts.get("imgsz", "")))
        mean, std = PIXELS if pixels else (usual.mean, usual.std)
        unknown = [] if known or pixels else ["mean", "std"]
        unknown = [name for name in [*unknown, *([] if size else ["size"])] if name not in told]
        if unknown:
            what = ", ".join(unknown)
            log.warning(f"{self.path} does not tell its {what}: {whose} are assumed; give {what} if it saw others")
        return replace(usual, size=size or usual.size, mean=mean[:channels], std=std[:channels])

    def require_fitting(self, shown: Preprocessing) -> None:
        """Refuse a preprocessing that the network's input contradicts."""
        own = self.input
        if own.size not in (None, shown.size):
            raise DmcError(f"{self.path} takes images of {own.size} pixels a side, not {shown.size}")
        if own.channels != shown.channels:
            raise DmcError(f"{self.path} takes {own.channels} channels; mean and std have {shown.channels} values")
        if own.dtype == np.uint8 and (shown.mean, shown.std) != tuple(part[: own.channels] for part in PIXELS):
            raise DmcError(f"{self.path} takes uint8 pixels and normalises them itself: leave out mean and std")

    def _image_input(self) -> ImageInput:
        """Find the one input; refuse what is not a batch of square images."""
        from onnx import TensorProto, helper

        weights = {tensor.name for tensor in self.model.graph.initializer}
        inputs = [value for value in self.model.graph.input if value.name not in weights]
        if len(inputs) != 1:
            raise DmcError(f"{self.path} has {_listed(inputs, 'input')}; it should have one, a batch of images")
        shape = _shape(inputs[0])
        said = f"{self.path}: its input {inputs[0].name!r} is {'x'.join(str(n or 'any') for n in shape) or 'a number'}"
        if len(shape) != 4:
            raise DmcError(f"{said}; a batch of images has four axes")
        channels_last = shape[1] not in (1, 3) and shape[3] in (1, 3)
        channels, *sides = (shape[3], shape[1], shape[2]) if channels_last else shape[1:]
        if channels not in (1, 3, None):
            raise DmcError(f"{said}; images have one channel or three")
        if None not in sides and sides[0] != sides[1]:
            raise DmcError(f"{said}; dmc feeds square images only")
        size = sides[0] or sides[1]
        if size and size > LARGEST:
            raise DmcError(f"{said}; images have at most {LARGEST} pixels a side")
        kind = inputs[0].type.tensor_type.elem_type
        if kind not in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.UINT8):
            raise DmcError(f"{said} of type {kind}; images are floating-point numbers or uint8")
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        return ImageInput(inputs[0].name, dtype, shape[0], channels or 3, size, channels_last)

    @property
    def logits(self) -> str:
        """The name of a classifier's tensor with the logits."""
        return self._logits[0]

    @property
    def activation(self) -> Output | None:
        """What follows a classifier's logits."""
        return self._logits[1]

    @cached_property
    def _logits(self) -> tuple[str, Output | None]:
        """Find the tensor with the logits: before a softmax or sigmoid at the end, which is given, too."""
        name = self._answer().name
        made_by = {made: node for node in self.model.graph.node for made in node.output}
        node = made_by.get(name)
        for _ in self.model.graph.node:  # a damaged file may have a circle
            if node is None or node.op_type not in SAME or not node.input:
                break
            node = made_by.get(node.input[0])
        if node is None or node.op_type not in ACTIVATIONS or not node.input:
            return name, None
        return node.input[0], ACTIVATIONS[node.op_type]

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the model comes from."""
        return (self.described.provenance if self.described else {}) | {"weights": str(self.path)}

    @property
    def content(self) -> bytes:
        """The network in ONNX's format, with all of its outputs."""
        return bytes(self.model.SerializeToString())

    def giving_logits(self) -> bytes:
        """Give the network in ONNX's format, with the logits as its only output."""
        from onnx import ModelProto, ValueInfoProto

        cut = ModelProto()
        cut.CopyFrom(self.model)
        del cut.graph.output[:]
        cut.graph.output.append(ValueInfoProto(name=self.logits))
        return bytes(cut.SerializeToString())

    def _answer(self) -> ValueInfoProto:
        """Find the output with a row for each image; of several, the only one that has two axes."""
        outputs: list[ValueInfoProto] = list(self.model.graph.output)
        rows = outputs if len(outputs) == 1 else [value for value in outputs if len(_shape(value)) == 2]
        if len(rows) != 1:
            raise DmcError(f"{self.path} has {_listed(outputs, 'output')}; a classifier has one, a row for each image")
        return rows[0]


def _read(path: Path) -> tuple[ModelProto, bytes]:
    """Read a file, and the weights that it keeps in files beside it; also give a hash of all bytes."""
    import onnx

    content = read_bytes(path, MOST_BYTES)
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's own kind, which is not public
        raise DmcError(f"cannot read {path}: it is no ONNX file, or a damaged one ({first_line(error)})") from None
    if not model.graph.node:
        raise DmcError(f"cannot read {path}: it is no ONNX file, or it holds no network")
    digest, room = hashlib.sha256(content), MOST_BYTES - len(content)
    outside = [tensor for tensor in _tensors(model) if tensor.data_location == onnx.TensorProto.EXTERNAL]
    places = [(tensor, *_place(tensor, path)) for tensor in outside]  # refuses all before it opens any
    for tensor, file, begin, length in places:
        data = read_bytes(file, room)[begin:][:length]
        room -= len(data)
        digest.update(data)
        tensor.raw_data = data
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]
    return model, digest.digest()


def _tensors(message: Message) -> Iterator[TensorProto]:
    """Give all tensors at any depth: initializers, attributes, those of subgraphs and functions."""
    from onnx import TensorProto

    if isinstance(message, TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if isinstance(value, Sequence) else [value]:
                yield from _tensors(part)


def _place(tensor: TensorProto, path: Path) -> tuple[Path, int, int | None]:
    """Give where a tensor's numbers are: file, offset, length; refuse a file that is not below the model's folder."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    file = Below(path.parent)(entries.get("location", ""))
    if isinstance(file, Refused):
        raise DmcError(f"{path} is refused: its weights {tensor.name[:80]!r} are said to be elsewhere, {file.reason}")
    numbers = [entries.get(key, "") for key in ("offset", "length")]
    if any(text and not text.isdecimal() for text in numbers):
        raise DmcError(f"{path} is damaged: the place of its weights {tensor.name[:80]!r} is {numbers}")
    offset, length = numbers
    return file, int(offset or 0), int(length) if length else None


def _shape(value: ValueInfoProto) -> list[int | None]:
    """Give the length of each axis; None: any."""
    return [dim.dim_value if dim.dim_value > 0 else None for dim in value.type.tensor_type.shape.dim]


def _listed(values: Sequence[ValueInfoProto], what: str) -> str:
    names = ", ".join(value.name for value in values[:5])
    return f"{len(values)} {what}s ({names})" if values else f"no {what}"


def _as_labels(text: str) -> list[Any]:
    """Read class names: a list, or a dict from 0, 1, 2, ... to names, as JSON or as Python writes it; else none."""
    found = _literal(text)
    if isinstance(found, dict) and {*map(str, found)} != {*map(str, range(len(found)))}:
        return []  # whether the network's first output is number 0 is not said
    try:
        return list(labels_in({"label_names": found})) if isinstance(found, list | tuple | dict) else []
    except ValueError:  # a dict of something else
        return []


def _as_size(text: str) -> int | None:
    """Read an image size: a number, or a list with the same number twice."""
    found = _literal(text)
    sides = set(found) if isinstance(found, list | tuple) else {found}
    size = sides.pop() if len(sides) == 1 else None
    return size if isinstance(size, int) and 0 < size <= LARGEST else None


def _literal(text: str) -> Any:
    """Read JSON, or what Python writes for plain values; None if it is neither, or too long."""
    if len(text) > MOST_TEXT:
        return None
    for reader in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return reader(text)
    return None
