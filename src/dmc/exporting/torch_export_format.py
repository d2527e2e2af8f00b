"""torch.export: a traced graph that torch runs without the network's code."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import torch

from dmc.exporting.format import Format, Running, as_list
from dmc.models.exported import METADATA, Exportable


class TorchExport(Format):
    """An archive of torch.export, with the description as an extra file."""

    name, suffix = "torch-export", ".pt2"

    def write(self, network: Exportable, path: Path) -> None:
        dynamic = dict.fromkeys(network.axes, torch.export.Dim.DYNAMIC)
        program = torch.export.export(network.module, (network.example,), dynamic_shapes=(dynamic,))
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # the paths of source files on this machine
        archive = BytesIO()  # a file of another name than *.pt2 would be complained about
        torch.export.save(program, archive, extra_files={METADATA: network.described.model_dump_json()})
        path.write_bytes(archive.getbuffer())

    def opened(self, path: Path) -> Running:
        module = torch.export.load(BytesIO(path.read_bytes())).module()
        return lambda images: as_list(module(images))
