"""Labels of new scenes while detectors are merged: those that people gave, and the old objects that teachers see there.

Not in the paper. New scenes show old objects, too, and nobody marked these: as background, they would be unlearned.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dmc.data.detection_batch import DetectionBatch
from dmc.distill.detector_teachers import DetectorTeachers
from dmc.metrics.average_precision import Detections
from dmc.models.one_stage import overlaps

CERTAIN = 0.5  # a find with a higher score counts as an old object
SAME = 0.5  # a find that overlaps a label by more is what the label says it is


class SceneLabels:
    """The labels of scenes over all classes of the student."""

    def __init__(self, teachers: DetectorTeachers, data_classes: Sequence[str]) -> None:
        names, self.teachers = teachers.union.names, teachers
        self.column_of_label = torch.tensor([names.index(name) for name in data_classes])
        self.marked = {names.index(name) for name in data_classes}  # classes of which people mark every object

    def __call__(self, batch: DetectionBatch, scenes: Sequence[int]) -> list[dict[str, Tensor]]:
        """Give boxes and labels of some images of a batch, in the form that torchvision's losses want."""
        images_N3HW, sizes = batch.images_N3HW[list(scenes)], [batch.sizes[i] for i in scenes]
        found = zip(*self.teachers.finds(images_N3HW, sizes), strict=True)
        return [self._completed(batch.targets[i], of_image) for i, of_image in zip(scenes, found, strict=True)]

    def _completed(self, target: dict[str, Tensor], found: Sequence[Detections]) -> dict[str, Tensor]:
        """Add to an image's labels the certain finds of unmarked classes, unless a label says what is there."""
        boxes, labels = [target["boxes"]], [self.column_of_label.to(target["labels"].device)[target["labels"]]]
        for one, columns in zip(found, self.teachers.union.columns, strict=True):
            columns_M = torch.tensor(columns)[torch.from_numpy(one.labels_M)]
            old_M = torch.tensor([column not in self.marked for column in columns_M.tolist()], dtype=torch.bool)
            certain_M = old_M & (torch.from_numpy(one.scores_M) > CERTAIN)
            boxes_M4 = torch.from_numpy(one.boxes_M4)[certain_M].to(boxes[0])
            apart_M = overlaps(boxes_M4, boxes[0]).gt(SAME).any(dim=1).logical_not()
            boxes.append(boxes_M4[apart_M])
            labels.append(columns_M[certain_M].to(labels[0])[apart_M])
        return {"boxes": torch.cat(boxes), "labels": torch.cat(labels)}
