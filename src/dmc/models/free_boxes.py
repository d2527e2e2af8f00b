"""Detectors that give boxes of their own instead of one for each anchor: they teach, but cannot be students."""

from __future__ import annotations

import torch
from torch import Tensor

from dmc.models.one_stage import Answers, DetectorNetwork

NOTHING = -16.0  # log-odds of a class where there is no box


class FreeBoxes(DetectorNetwork):
    """A network whose answers are boxes in pixels, with the log-odds of each class: as many for every image."""

    def scores(self, logits_NAK: Tensor, boxes_NAB: Tensor) -> Tensor:
        return logits_NAK.sigmoid()

    def decoded(self, boxes_MB: Tensor, anchors_M4: Tensor) -> Tensor:
        return boxes_MB


def free_boxes(boxes_NM4: Tensor, odds_NMK: Tensor) -> Answers:
    """Give boxes in the form of answers, with anchors that mean nothing."""
    return Answers(odds_NMK, boxes_NM4, torch.zeros_like(boxes_NM4[0]), [boxes_NM4.shape[1]])
