"""Export a model to a file for other programs, and compare the file's answers with the model's before it is kept."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dmc.data.decode import DecodeError, decode, result_or_error
from dmc.data.pictures import Picture, pictures
from dmc.data.sources import UNLABELED, Record
from dmc.errors import DmcError, first_line, is_out_of_memory, require_known
from dmc.exporting.format import Format
from dmc.exporting.onnx_format import Onnx
from dmc.exporting.torch_export_format import TorchExport
from dmc.exporting.torchscript_format import TorchScript
from dmc.extras import require_extra
from dmc.files import replacing
from dmc.models.exported import Exportable
from dmc.models.hub import quiet
from dmc.models.model import Model
from dmc.models.onnx_network import OnnxNetwork
from dmc.tasks import task_of

FORMATS: dict[str, Format] = {found.name: found for found in (Onnx(), TorchExport(), TorchScript())}
MOST_COMPARED = 16  # images
MADE = 4  # images, if none are given
ExportFormat = Literal["onnx", "torch-export", "torchscript"]
TOLERANCE = 1e-3  # more than rounding explains
log = logging.getLogger("dmc")


@dataclass(frozen=True)
class Exported:
    """A file that was written, and how its answers compare with the model's."""

    path: Path
    difference: float  # the largest one; where numbers are larger than 1, relative to the largest
    images: int  # that were compared
    shown: str  # which images these were


def export_model(
    model: Model,
    path: Path,
    format: str,
    pixels: bool,
    images: Picture | Sequence[Picture] | None,
    tolerance: float,
) -> Exported:
    """Write a model to a file; the arguments are those of `dmc.export`."""
    require_known("format", format, FORMATS)
    chosen = FORMATS[format]
    require_extra(chosen.name, *chosen.packages)
    require_place(path, chosen.suffix)
    if isinstance(model.module, OnnxNetwork):
        raise DmcError(f"{model.name} is an ONNX file already; export the model that it was made from")
    records = made_images(model.preprocessing.size) if images is None else pictures(images)[:MOST_COMPARED]
    network = task_of([model]).exportable(model.to(torch.device("cpu")), pixels)
    batches = batches_of(records, model, together=0 in network.axes)
    with replacing(path) as temporary:
        with in_words(f"cannot export {model.name} as {format}"):
            network.module(network.example)  # makes the constants that are made once, which a tracer would spoil
            chosen.write(network, temporary)
        with in_words(f"{model.name} was exported as {format}, but the file cannot be run"):
            difference = compared(network, chosen, temporary, batches)
        if not difference <= tolerance:  # also if it is not a number
            raise DmcError(
                f"the exported file answers differently from {model.name}, by up to {difference:.2g} (at most "
                f"{tolerance:g} is allowed); it is not kept: try another format"
            )
    seen = "images made for this" if images is None else "the given images"
    return Exported(path, difference, sum(map(len, batches)), seen)


def require_place(path: Path, suffix: str) -> None:
    """Refuse a place that the file cannot have, before anything is traced."""
    if path.suffix != suffix:
        raise DmcError(f"{path}: a file of this format ends in {suffix}")
    if path.exists():
        raise DmcError(f"{path} is there already; name another file, or remove it")
    if not path.parent.is_dir():
        raise DmcError(f"there is no folder {path.parent}")


def batches_of(records: Sequence[Record], model: Model, together: bool) -> list[Tensor]:
    """Decode images as the model wants them: the first alone, the others together if their number is free."""
    tried = [(record, result_or_error(lambda record=record: decode(record, model.transform))) for record in records]  # type: ignore[misc]
    framed = [(record, image) for record, image in tried if not isinstance(image, DecodeError)]
    if not framed:
        raise DmcError("none of the images to compare on can be read")
    groups = [framed[:1], framed[1:]] if together else [[one] for one in framed]
    return [model.transform.batch(group).images_N3HW for group in groups if group]


def made_images(side: int) -> list[Record]:
    """Make a few images of coloured clouds."""
    draw = np.random.default_rng(0)
    coarse = [Image.fromarray(draw.integers(0, 256, (6, 8, 3), dtype=np.uint8)) for _ in range(MADE)]
    smooth = [np.array(image.resize((side * 4 // 3, side), Image.Resampling.BICUBIC)) for image in coarse]
    return [Record(pixels, UNLABELED, f"made image {i}") for i, pixels in enumerate(smooth)]


def compared(network: Exportable, chosen: Format, path: Path, batches: Sequence[Tensor]) -> float:
    """Give the largest difference between the answers of a file and of its model."""
    run = chosen.opened(path)
    originals = [network.original(seen) for seen in batches]
    if not any(part.numel() for answers in originals for part in answers):
        log.warning("it finds nothing in these images, so that they tell little: give images that show its classes")
    answers = [run(network.feed(seen)) for seen in batches]
    return float(np.max(list(map(network.difference, originals, answers))))  # NaN if one of them is


@contextmanager
def in_words(what: str) -> Iterator[None]:
    """Say in one line what an exporter or its runtime could not do, and keep it from printing more."""
    try:
        with warnings.catch_warnings(action="ignore"), torch.no_grad(), quiet("torch"), quiet("onnxscript"):
            yield
    except Exception as error:  # exporters raise anything
        if isinstance(error, DmcError | OSError) or is_out_of_memory(error):
            raise
        cause = error
        while isinstance(cause.__cause__, Exception):  # the first one says what was wrong
            cause = cause.__cause__
        raise DmcError(f"{what}: {first_line(cause)}") from None
