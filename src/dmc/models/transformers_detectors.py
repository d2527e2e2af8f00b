"""transformers' detectors with queries instead of anchors, such as DETR: `transformers:OWNER/NAME` or a folder.

They teach, but are no students. As of classifiers, only configurations and weights are read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dmc.classes import Classes
from dmc.config import Output
from dmc.data.fitting import Fit
from dmc.data.preprocess import Preprocessing
from dmc.models.architecture_source import Trained
from dmc.models.free_boxes import FreeBoxes, free_boxes
from dmc.models.image_processor import FILE, as_detector_processor, detector_preprocessing_of
from dmc.models.one_stage import Answers
from dmc.models.transformers_models import TransformersModels, folder_of, network_config, read_config

NO_CLASS = "N/A"  # what COCO's gaps are called


class QueryBoxes(FreeBoxes):
    """What makes one of transformers' networks a detector as dmc knows it."""

    config: Any
    fit: Fit

    def forward(self, images_N3HW: Tensor) -> Answers:
        # In bf16 a share of the image has 8 bits, which would move boxes by pixels.
        with torch.autocast(images_N3HW.device.type, enabled=False):
            found = super().forward(pixel_values=images_N3HW)
        logits_NQJ, centered_NQ4 = found.logits.float(), found.pred_boxes.float()
        classes: int = self.config.num_labels
        if logits_NQJ.shape[2] > classes:  # the last one is "no object"
            logits_NQJ = logits_NQJ.softmax(dim=2)[..., :classes].logit(eps=1e-6)
        middle_NQ2, half_NQ2 = centered_NQ4[..., :2], centered_NQ4[..., 2:] / 2
        sides = torch.tensor([images_N3HW.shape[3], images_N3HW.shape[2]] * 2, device=images_N3HW.device)
        return free_boxes(torch.cat([middle_NQ2 - half_NQ2, middle_NQ2 + half_NQ2], dim=2) * sides, logits_NQJ)


class TransformersDetectors(TransformersModels):
    """transformers' networks with a head for object detection."""

    head, what = "ForObjectDetection", "object detector"
    can_learn = False

    def behaving(self, kind: type[nn.Module]) -> type[nn.Module]:
        return type(kind.__name__, (QueryBoxes, kind), {})

    def released(self, arch: str) -> Trained:
        self.canonical(arch)
        folder = folder_of(self.bare(arch))
        told, config = read_config(folder, arch), network_config(folder, arch)
        config.use_pretrained_backbone = False  # which would fetch weights that are in the file anyway
        preprocessing, fit = detector_preprocessing_of(folder, arch)
        module = self.trained(config, folder, arch)
        module.fit = fit  # type: ignore[assignment]
        columns = range(config.num_labels) if told.own.columns is None else told.own.columns
        real = {column: n for column, n in zip(columns, told.label_names, strict=True) if n != NO_CLASS}
        origin = told.own.provenance or {"weights": arch}
        return Trained(module, arch, preprocessing, [*real.values()], config.num_labels, origin, [*real])

    def library_files(
        self, module: nn.Module, classes: Classes, preprocessing: Preprocessing, output: Output
    ) -> dict[str, dict[str, Any]]:
        assert isinstance(module, QueryBoxes)
        files = super().library_files(module, classes, preprocessing, output)
        return files | {FILE: as_detector_processor(preprocessing, module.fit)}


def is_detector(place: str) -> bool:
    """Tell whether the model in a folder, or of this name on the hub, is a detector."""
    saved_as = read_config(folder_of(place), place).architectures or ("",)
    return saved_as[0].endswith(TransformersDetectors.head)
