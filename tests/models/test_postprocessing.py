"""From scores at anchors to finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchvision.ops import remove_small_boxes

from dmc.models.detector import nms
from tests.detectors import TINY, untrained


def test_overlapping_candidates_of_one_class_are_suppressed() -> None:
    boxes = torch.tensor([[0.0, 0, 10, 10], [1.0, 0, 11, 10], [50.0, 50, 60, 60], [0.0, 0, 10, 10]])
    scores = torch.tensor([[0.9, 0.0], [0.8, 0.0], [0.01, 0.0], [0.0, 0.7]])
    found = nms(scores, boxes, boxes, lambda offsets, _: offsets, (100, 100))
    assert found.labels_M.tolist() == [0, 1]  # another class may lie at the same place, and 0.01 is too little
    assert found.scores_M == pytest.approx([0.9, 0.7])
    found = nms(scores, boxes, boxes, lambda offsets, _: offsets, (100, 100), min_score=0.005)
    assert found.scores_M == pytest.approx([0.9, 0.7, 0.01])  # unless a lower score is asked for


def test_nothing_is_found_in_the_padding() -> None:
    """Clipping to an image of 40 x 30 pixels in a frame of 64 x 64 leaves nothing of the second and third box."""
    boxes = torch.tensor([[30.0, 20, 60, 60], [45.0, 5, 60, 20], [5.0, 31, 20, 60]])
    found = nms(torch.full((3, 1), 0.9), boxes, boxes, lambda offsets, _: offsets, (30, 40))
    assert found.boxes_M4.tolist() == [[30, 20, 40, 30]]


def test_the_best_300_finds_of_an_image_are_kept() -> None:
    """400 boxes side by side, of which none overlaps another."""
    corners = torch.arange(400.0)[:, None] * torch.tensor([10.0, 0, 10, 0])
    boxes = corners + torch.tensor([0.0, 0, 8, 8])
    scores = torch.linspace(0.1, 0.9, 400)[:, None]
    found = nms(scores, boxes, boxes, lambda offsets, _: offsets, (8, 4000))
    assert len(found.scores_M) == 300
    assert found.scores_M.tolist() == pytest.approx(scores.flatten().flip(0)[:300].tolist())


@pytest.mark.parametrize("arch", [TINY, "fcos:timm/test_resnet,width=64,depth=1"])
def test_the_best_finds_are_those_of_torchvisions_own_postprocessing(arch: str) -> None:
    detector = untrained("ab", arch)
    network: Any = detector.module.eval()
    with torch.no_grad():
        for parameter in network.head.parameters():  # so that scores differ: a fresh head gives 0.01 everywhere
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    images = torch.randint(0, 256, (1, 3, 96, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    ours = detector.detections(images, [(96, 96)])[0]
    network.score_thresh, network.nms_thresh = 0.05, 0.5
    network.topk_candidates, network.detections_per_img = 1000, 300
    with torch.no_grad():
        answers = detector.answers(images)
        head = network.head(list(network.backbone(detector.preprocessing.normalised(images)).values()))
        split = {key: list(value.split(answers.levels, dim=1)) for key, value in head.items()}
        anchors = [list(torch.split(answers.anchors_A4, answers.levels))]
        theirs = network.postprocess_detections(split, anchors, [(96, 96)])[0]
    best = remove_small_boxes(theirs["boxes"], 1e-3)[:10]  # it also gives boxes that clipping left nothing of
    assert len(best) == 10
    np.testing.assert_allclose(ours.scores_M[:10], theirs["scores"][best].numpy(), rtol=1e-4)
    np.testing.assert_allclose(ours.boxes_M4[:10], theirs["boxes"][best].numpy(), rtol=1e-3, atol=1e-2)
    assert ours.labels_M[:10].tolist() == theirs["labels"][best].tolist()
