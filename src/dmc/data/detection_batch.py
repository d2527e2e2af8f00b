"""Images of any shape for detectors: resized by the shorter side, padded into batches, mirrored with their boxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dmc.data.annotations import Objects
from dmc.data.batch import Batch
from dmc.data.decode import RESAMPLING, upright_rgb
from dmc.data.fitting import MULTIPLE, framed
from dmc.data.preprocess import Interpolation
from dmc.data.sources import Record

LONGEST = 1333 / 800  # limit of the longer side, in multiples of `size`; a longer image is made smaller


@dataclass
class DetectionBatch(Batch):
    """Images of different shapes, each in the upper left corner of a padded frame, with their boxes.

    `labels_N` is not used.
    """

    sizes: list[tuple[int, int]]  # height and width of each image without the padding
    boxes: list[Tensor]  # M x 4, corners in pixels of this batch
    labels: list[Tensor]
    objects: list[Objects | None]  # as annotated, in the pixels of each image's full size

    @classmethod
    def of(cls, batch: Batch) -> DetectionBatch:
        """Give a batch back as a detection batch, which is all that `ShorterSide` makes; refuse any other."""
        if not isinstance(batch, cls):
            raise TypeError(f"a detector is trained on {cls.__name__}, not on {type(batch).__name__}")
        return batch

    @property
    def pictures(self) -> list[Tensor]:
        return [image[:, :high, :wide] for image, (high, wide) in zip(self.images_N3HW, self.sizes, strict=True)]

    def moved(self, move: Callable[[Tensor], Tensor]) -> Self:
        boxes, labels = ([move(t) for t in part] for part in (self.boxes, self.labels))
        return replace(self, images_N3HW=move(self.images_N3HW), boxes=boxes, labels=labels)

    def augmented(self, pad: int | None, flip: bool) -> Self:
        """Mirror half of the images if `flip`. `pad` is ignored: detectors are not trained on shifted crops."""
        if not flip:
            return self
        images_N3HW, boxes = self.images_N3HW.clone(), list(self.boxes)
        for i in self.mirrored(flip).nonzero().flatten().tolist():
            width = self.sizes[i][1]
            images_N3HW[i, :, :, :width] = images_N3HW[i, :, :, :width].flip(2)
            left, top, right, bottom = boxes[i].unbind(dim=1)
            boxes[i] = torch.stack([width - right, top, width - left, bottom], dim=1)
        return replace(self, images_N3HW=images_N3HW, boxes=boxes)

    @property
    def targets(self) -> list[dict[str, Tensor]]:
        """The boxes and labels of each image, in the form that torchvision's losses want."""
        return [{"boxes": boxes, "labels": labels} for boxes, labels in zip(self.boxes, self.labels, strict=True)]


@dataclass(frozen=True)
class ShorterSide:
    """The transform that resizes the shorter side to `size` pixels or, with `square`, stretches to a square.

    The longer side has at most `longest` times as many.
    """

    size: int
    interpolation: Interpolation = "bilinear"
    square: bool = False
    longest: float = LONGEST
    one_shape: ClassVar[bool] = False

    @property
    def bytes_per_image(self) -> int:
        return int(3 * self.size**2 * (1 if self.square else self.longest))

    def blank(self) -> Tensor:
        """Give a batch of one small black image, of a size that any detector takes."""
        side = self.size if self.square else 4 * MULTIPLE
        return torch.zeros((1, 3, side, side), dtype=torch.uint8)

    def shape(self, width: int, height: int) -> tuple[int, int]:
        """Give the width and height that an image of this width and height is resized to."""
        if self.square:
            return self.size, self.size
        scale = min(self.size / min(width, height), self.longest * self.size / max(width, height))
        return max(1, round(width * scale)), max(1, round(height * scale))

    def __call__(self, image: Image.Image) -> Tensor:
        image = upright_rgb(image, at_least=self.size)
        shape = self.shape(*image.size)
        if image.size != shape:
            image = image.resize(shape, RESAMPLING[self.interpolation])
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)

    def frame(self, image: Tensor) -> tuple[int, int]:
        """Give the height and width that a resized image is padded to, if it is alone in its batch.

        A square stays one: the anchors of its detectors are fractions of its side, which padding would stretch.
        """
        return (self.size, self.size) if self.square else framed((int(image.shape[1]), int(image.shape[2])))

    def batch(self, framed: Sequence[tuple[Record, Tensor]], frame: tuple[int, int] | None = None) -> DetectionBatch:
        """Pad resized images to one frame, and scale their boxes with them."""
        images = [image for _, image in framed]
        sizes = [(int(image.shape[1]), int(image.shape[2])) for image in images]
        height, width = frame or map(max, zip(*map(self.frame, images), strict=True))
        padded_N3HW = torch.zeros((len(images), 3, height, width), dtype=torch.uint8)
        boxes, labels = [], []
        for padded, image, (record, _) in zip(padded_N3HW, images, framed, strict=True):
            padded[:, : image.shape[1], : image.shape[2]] = image
            found = record.annotation
            if found is None:
                boxes.append(torch.zeros((0, 4)))
                labels.append(torch.zeros(0, dtype=torch.long))
                continue
            scale = torch.tensor([image.shape[2] / found.width, image.shape[1] / found.height] * 2)
            easy_M = ~found.difficult_M  # difficult objects are not trained on
            boxes.append(torch.from_numpy(found.boxes_M4[easy_M]) * scale)
            labels.append(torch.from_numpy(found.labels_M[easy_M]))
        objects = [record.annotation for record, _ in framed]
        return DetectionBatch(padded_N3HW, torch.zeros(len(images)), sizes, boxes, labels, objects)
