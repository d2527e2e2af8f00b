"""Small ONNX files, made by hand: the mean of each colour, where lower rows count more, times a matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

WEIGHTS_3K = np.array([[1, 2, -4, 0.5], [0, -1, 3, 0.25], [2, 0, 1, -3]], dtype=np.float32)  # a row for each colour
ROWS_8 = np.arange(1, 9, dtype=np.float32) / 4.5  # how much each row of an image counts; 1 on average
AXES = {"NCHW": [2, 3], "NHWC": [1, 2]}


def node(kind: str, given: Sequence[str], made: str, **settings: Any) -> NodeProto:
    return helper.make_node(kind, list(given), [made], **settings)


def constant(name: str, values: Sequence[int]) -> TensorProto:
    return numpy_helper.from_array(np.array(values, dtype=np.int64), name)


def endings() -> dict[str, list[NodeProto]]:
    """Give what may follow the logits: operators that give an output `answer`."""
    return {
        "logits": [node("Identity", ["logits"], "answer")],
        "softmax": [node("Softmax", ["logits"], "answer", axis=-1)],
        "log-softmax": [node("LogSoftmax", ["logits"], "answer", axis=-1)],
        "sigmoid": [node("Sigmoid", ["logits"], "p"), node("Identity", ["p"], "answer")],
        "softmax by hand": [
            node("Exp", ["logits"], "e"),
            node("ReduceSum", ["e", "classes"], "sum", keepdims=1),
            node("Div", ["e", "sum"], "answer"),
        ],
        "one image": [node("Reshape", ["logits", "one row"], "answer")],
        "in a map": [node("Reshape", ["logits", "map"], "answer")],
        "unknown": [node("Fortune", ["logits"], "answer", domain="org.example")],
    }


def network(
    shape: Sequence[int | str] = ("batch", 3, 8, 8),
    layout: str = "NCHW",
    dtype: int = TensorProto.FLOAT,
    end: str = "logits",
    weights_3K: np.typing.NDArray[np.float32] = WEIGHTS_3K,
    said: Mapping[str, str] | None = None,
) -> onnx.ModelProto:
    """Make a network for images of 8 pixels: the weighted mean of each colour, times a matrix."""
    nodes = [
        node("Cast", ["images"], "pixels", to=TensorProto.FLOAT),
        node("Mul", ["pixels", "rows"], "weighted"),
        node("ReduceMean", ["weighted", "sides"], "colours", keepdims=0),
        node("MatMul", ["colours", "weights"], "logits"),
        *endings()[end],
    ]
    constants = [
        numpy_helper.from_array(weights_3K, "weights"),
        numpy_helper.from_array(ROWS_8.reshape((8, 1) if layout == "NCHW" else (8, 1, 1)), "rows"),
        constant("sides", AXES[layout]),
        constant("classes", [1]),
        constant("one row", [1, weights_3K.shape[1]]),
        constant("map", [0, weights_3K.shape[1], 1, 1]),
    ]
    graph = helper.make_graph(
        nodes,
        "colours",
        [helper.make_tensor_value_info("images", dtype, list(shape))],
        [helper.make_tensor_value_info("answer", TensorProto.FLOAT, None)],
        constants,
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("org.example", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    helper.set_model_props(model, dict(said or {}))
    return model


def write(path: Path, model: onnx.ModelProto | None = None) -> Path:
    path.write_bytes((model or network()).SerializeToString())
    return path


def stored_outside(model: onnx.ModelProto, location: str, **place: int) -> onnx.ModelProto:
    """Say that the weights are in another file."""
    keep_outside(model.graph.initializer[0], location, **place)
    return model


def keep_outside(tensor: TensorProto, location: str, **place: int) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **place}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)
