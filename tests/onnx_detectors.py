"""ONNX detectors, made by hand, that find the bright part of an image: a thing, with 90%, or a toy, with 20%."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tests.onnx_files import node

SIDE, BRIGHT, THING, TOY = 64, 0.7, 0.9, 0.2
CLASSES = ("thing", "toy")


def numbers(name: str, values: Sequence[float] | float, dtype: type = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.array(values, dtype=dtype), name)


def bright_box() -> list[NodeProto]:
    """Give the sides of the bright part as `left`, `top`, `right`, `bottom`, N x 1, and `sure`, 1 if there is one."""
    nodes = [
        node("Greater", ["images", "threshold"], "mask"),
        node("Cast", ["mask"], "bright", to=TensorProto.FLOAT),
        node("ReduceMax", ["bright", "all"], "sure3", keepdims=1),
        node("Reshape", ["sure3", "column"], "sure"),
    ]
    for axes, first, last in (("over rows", "left", "right"), ("over columns", "top", "bottom")):
        profile = f"profile {first}"
        nodes += [
            node("ReduceMax", ["bright", axes], profile, keepdims=0),
            node("ArgMax", [profile], f"{first} place", axis=1, keepdims=1),
            node("Cast", [f"{first} place"], first, to=TensorProto.FLOAT),
            node("ArgMax", [profile], f"{last} place", axis=1, keepdims=1, select_last_index=1),
            node("Cast", [f"{last} place"], f"{last} pixel", to=TensorProto.FLOAT),
            node("Add", [f"{last} pixel", "one"], last),
        ]
    return nodes


def middles() -> list[NodeProto]:
    """Give centers and sizes as `x`, `y`, `w`, `h`."""
    nodes = []
    for first, last, middle, size in (("left", "right", "x", "w"), ("top", "bottom", "y", "h")):
        nodes += [
            node("Add", [first, last], f"{middle} twice"),
            node("Mul", [f"{middle} twice", "half"], middle),
            node("Sub", [last, first], size),
        ]
    return nodes


def joined(parts: Sequence[str], made: str, boxes: int = 3) -> list[NodeProto]:
    """Put columns beside each other, as the answer for so many equal boxes: N x boxes x parts."""
    return [
        node("Concat", parts, f"{made} row", axis=1),
        node("Unsqueeze", [f"{made} row", "middle axis"], f"{made} one"),
        node("Tile", [f"{made} one", f"repeat {boxes}"], made),
    ]


def endings() -> dict[str, tuple[list[NodeProto], list[str]]]:
    """Give, for each layout, the operators that make its outputs, and their names."""
    corners, centers = ["left", "top", "right", "bottom"], ["x", "y", "w", "h"]
    scores = [node("Mul", ["sure", "0.9"], "thing"), node("Mul", ["sure", "0.2"], "toy")]
    shares = [node("Mul", [part, "pixel"], f"{part} share") for part in centers]
    logits = [node("Mul", ["sure", "logit thing"], "thing"), node("Mul", ["sure", "logit toy"], "toy")]
    label = [node("Mul", ["sure", "0"], "label"), node("Cast", ["label"], "whole label", to=TensorProto.INT64)]
    one = [node("Squeeze", ["raw boxes", "first axis"], "boxes")]
    one += [node("Reshape", ["thing", "list"], "scores"), node("Reshape", ["whole label", "list"], "labels")]
    yolo, turned = [*middles(), *scores], node("Transpose", ["rows"], "output0", perm=[0, 2, 1])
    return {
        "yolo": (
            [*yolo, *joined([*centers, "thing", "toy"], "rows"), turned],
            ["output0"],
        ),
        "yolo across": ([*yolo, *joined([*centers, "thing", "toy"], "output0")], ["output0"]),
        "yolo5": ([*yolo, *joined([*centers, "sure", "thing", "toy"], "output0")], ["output0"]),
        "end2end": ([*scores, *label, *joined([*corners, "thing", "label"], "output0")], ["output0"]),
        "boxes-scores": (
            [*scores, *joined(corners, "boxes"), *joined(["thing", "toy"], "scores")],
            ["scores", "boxes"],
        ),
        "boxes-scores-labels": (
            [*scores, *label, *joined(corners, "raw boxes", 1), *one],
            ["boxes", "labels", "scores"],
        ),
        "detr": (
            [
                *middles(),
                *shares,
                *logits,
                *joined([f"{part} share" for part in centers], "pred_boxes"),
                *joined(["thing", "toy"], "logits"),
            ],
            ["logits", "pred_boxes"],
        ),
        "no layout": ([*scores, *joined(["thing", "toy"], "output0")], ["output0"]),
        "wild scores": ([*middles(), *logits, *joined([*centers, "thing", "toy"], "output0")], ["output0"]),
    }


def detector(
    layout: str, side: int = SIDE, batch: int | str = "batch", said: Mapping[str, str] | None = None
) -> onnx.ModelProto:
    nodes, outputs = endings()[layout]
    constants = [
        *(numbers(name, float(name)) for name in ("0.9", "0.2", "0")),
        *(
            numbers(name, value)
            for name, value in (("threshold", BRIGHT), ("one", 1), ("half", 0.5), ("pixel", 1 / side))
        ),
        numbers("logit thing", np.log(THING / (1 - THING))),
        numbers("logit toy", np.log(TOY / (1 - TOY))),
        *(
            numbers(name, values, np.int64)
            for name, values in {
                "all": [1, 2, 3],
                "over rows": [1, 2],
                "over columns": [1, 3],
                "column": [-1, 1],
                "middle axis": [1],
                "first axis": [0],
                "list": [-1],
                "repeat 3": [1, 3, 1],
                "repeat 1": [1, 1, 1],
            }.items()
        ),
    ]
    batch = 1 if layout == "boxes-scores-labels" else batch
    graph = helper.make_graph(
        [*bright_box(), *nodes],
        "bright",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [batch, 3, side, side])],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model)
    helper.set_model_props(model, dict(said or {}))
    return model


def write(folder: Path, layout: str, name: str = "bright.onnx", **settings: object) -> Path:
    path = folder / name
    path.write_bytes(detector(layout, **settings).SerializeToString())  # type: ignore[arg-type]
    (folder / "names.txt").write_text("\n".join(CLASSES) + "\n")
    return path
