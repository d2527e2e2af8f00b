"""A detector in an ONNX file: whatever the layout of its outputs, it gives boxes and the log-odds of their classes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import cast, get_args

import numpy as np
import torch
from torch import Tensor

from dmc.data.fitting import Fit
from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError
from dmc.models.free_boxes import FreeBoxes, free_boxes
from dmc.models.one_stage import Answers
from dmc.models.onnx_file import IMAGENET, OnnxFile
from dmc.models.onnx_layouts import Finds, Layout, Output, in_shares, layout_of, outside
from dmc.models.onnx_network import Answer, OnnxModule

MOST = 1000  # boxes of an image: the most probable ones, if the file gives more
SETTINGS = ("layout", "fit")  # that a user may give with a file
FROM_0_TO_1 = Preprocessing(640, (0.0,) * 3, (1.0,) * 3)


class OnnxDetector(OnnxModule, FreeBoxes):
    """A detector that onnxruntime runs. It is tried on noise, which tells how its outputs are laid out."""

    def __init__(
        self, file: OnnxFile, shown: Preprocessing, classes: int, layout: str | None = None, fit: str | None = None
    ) -> None:
        super().__init__(file, file.content, shown)
        self.classes, self.asked_layout = classes, layout
        self.layout: Layout | None = None
        self.shares: bool | None = None  # whether boxes are shares of the image; None: no box was seen yet
        self.tried(shown.size)
        found = cast(Layout, self.layout)
        self.fit = _fit(file, found, fit)
        meaning = hashlib.sha256(file.digest + f"{type(found).__name__} {self.fit}".encode())
        self.digest = torch.frombuffer(bytearray(meaning.digest()), dtype=torch.uint8)

    def read(self, answers: list[Answer], images: int) -> list[Finds]:
        """Give the finds in each image."""
        names = [output.name for output in self.session.get_outputs()]
        outputs = [Output(name, answer) for name, answer in zip(names, answers, strict=True)]
        layout = self.layout or layout_of(outputs, self.classes, self.asked_layout, str(self.path))
        boxes_NM4, scores_NMK = layout.finds(outputs, self.classes)
        if len(boxes_NM4) != images:
            raise DmcError(f"{self.path} gives the finds of {len(boxes_NM4)} images for {images}")
        if outside(scores_NMK):
            low, high = scores_NMK.min(), scores_NMK.max()
            raise DmcError(f"{self.path} gives scores from {low:.3g} to {high:.3g}, not 0 to 1: is its layout another?")
        self.layout = layout
        if self.shares is None:
            self.shares = in_shares(boxes_NM4[scores_NMK.max(axis=2, initial=0) > 0])
        return [Finds(boxes_M4, scores_MK) for boxes_M4, scores_MK in zip(boxes_NM4, scores_NMK, strict=True)]

    def forward(self, images_N3HW: Tensor) -> Answers:
        finds = [best(found) for part in self.answered(images_N3HW) for found in part]
        boxes_NM4, scores_NMK = (torch.from_numpy(np.stack(part)) for part in zip(*finds, strict=True))
        if self.shares:
            boxes_NM4 = boxes_NM4 * torch.tensor([images_N3HW.shape[3], images_N3HW.shape[2]] * 2)
        odds_NMK = scores_NMK.logit(eps=1e-6)
        return free_boxes(boxes_NM4.to(images_N3HW.device), odds_NMK.to(images_N3HW.device))


def best(found: Finds) -> Finds:
    """Take the most probable boxes, always as many: what is missing has no size and no score."""
    places = np.argsort(-found.scores_NMK.max(axis=1), kind="stable")[:MOST]
    missing = ((0, MOST - len(places)), (0, 0))
    return Finds(np.pad(found.boxes_NM4[places], missing), np.pad(found.scores_NMK[places], missing))


def assumed(file: OnnxFile) -> tuple[Preprocessing, str]:
    """Give the preprocessing of detectors that do not tell theirs, and its name: DETR's is ImageNet's."""
    if any("logit" in output.name for output in file.model.graph.output):
        return IMAGENET, "ImageNet's"
    return FROM_0_TO_1, "pixels from 0 to 1 (a side of 640)"


def from_yolo(file: OnnxFile) -> bool:
    """Tell the files of the YOLO family, which take pixels from 0 to 1, by what its exporter writes into them."""
    return {"names", "stride", "imgsz"} <= file.texts.keys()


def require_boxes(file: OnnxFile) -> None:
    """Refuse files of the YOLO family that find something else, such as boxes that are turned."""
    task = file.texts.get("task", "detect")
    if task != "detect":
        raise DmcError(f"{file.path} is made for {task!r}, not for upright boxes (detect)")


def class_names(file: OnnxFile, given: Sequence[str] | None) -> Sequence[str]:
    """Choose the class names: the user's, or those in the file."""
    names = given or file.labels
    if file.labels and len(names) - len(file.labels) not in (0, 1):  # labels that begin at 1 have a background
        raise DmcError(f"{file.path} has {len(file.labels)} class names in its metadata, and is given {len(names)}")
    if not names:
        raise DmcError(f"{file.path} does not tell its classes: {file.path},classes=FILE")
    return names


def _fit(file: OnnxFile, layout: Layout, asked: str | None) -> Fit:
    """Choose how images are shown to the network: as the user says, or as is usual for its kind."""
    if asked is not None and asked not in get_args(Fit):
        raise DmcError(f"{file.path}: there is no fit {asked!r}; known are {', '.join(get_args(Fit))}")
    if asked == "frame" and file.input.size is not None:
        raise DmcError(f"{file.path} takes squares of {file.input.size} pixels: its fit is stretch or letterbox")
    if file.described:
        usual: Fit = "frame" if file.input.size is None else "stretch"
    else:
        usual = layout.fit if file.input.size is not None else layout.free_fit
    return cast(Fit, asked or usual)
