"""TorchScript: for programs in C++, and for old ones in Python. Torch's own word for it is deprecated."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import torch

from dmc.exporting.format import Format, Running, as_list
from dmc.models.exported import METADATA, Exportable


class TorchScript(Format):
    """A traced and frozen module, with the description as an extra file."""

    name, suffix = "torchscript", ".pt"

    def write(self, network: Exportable, path: Path) -> None:
        traced = torch.jit.trace(network.module.eval(), network.example, check_trace=False)  # type: ignore[no-untyped-call]
        frozen = torch.jit.freeze(traced)
        archive = BytesIO()  # a file would have its temporary name inside
        torch.jit.save(frozen, archive, _extra_files={METADATA: network.described.model_dump_json()})
        path.write_bytes(archive.getbuffer())

    def opened(self, path: Path) -> Running:
        module = torch.jit.load(str(path))  # type: ignore[no-untyped-call]
        return lambda images: as_list(module(images))
