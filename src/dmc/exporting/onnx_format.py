"""ONNX: for onnxruntime, and for most other programs that run networks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dmc.errors import DmcError
from dmc.exporting.format import Format, Running
from dmc.models.exported import METADATA, Exportable

if TYPE_CHECKING:
    from onnx import ModelProto


class Onnx(Format):
    """One file with everything in it, traced by torch's exporter."""

    name, suffix = "onnx", ".onnx"
    packages = ("onnx", "onnxruntime", "onnxscript")

    def write(self, network: Exportable, path: Path) -> None:
        import onnx

        program = torch.onnx.export(
            network.module,
            (network.example,),
            input_names=["images"],
            output_names=list(network.answers),
            dynamic_shapes=(dict(network.axes),),
            verbose=False,
        )
        if program is None:
            raise DmcError("torch's exporter gives no program")
        model = program.model_proto
        forget_origins(model)
        described = network.described
        names = json.dumps(dict(enumerate(described.classes)), ensure_ascii=False)  # where other programs look
        onnx.helper.set_model_props(model, {METADATA: described.model_dump_json(), "names": names})
        path.write_bytes(model.SerializeToString())

    def opened(self, path: Path) -> Running:
        import onnxruntime

        session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
        return lambda images: [torch.from_numpy(answer) for answer in session.run(None, {"images": images.numpy()})]


def forget_origins(model: ModelProto) -> None:
    """Leave out where each operator came from: the exporter writes the paths of source files on this machine."""
    graph = model.graph
    for part in (graph.node, graph.input, graph.output, graph.value_info, graph.initializer):
        for one in part:
            one.ClearField("metadata_props")
