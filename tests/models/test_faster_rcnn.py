"""torchvision's Faster R-CNN as a teacher."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

import dmc
from dmc.errors import DmcError
from dmc.models.detector import Detector
from dmc.models.one_stage import OneStage
from tests.conftest import load_detector
from tests.detectors import small

ARCH = "fasterrcnn_mobilenet_v3_large_320_fpn"


@pytest.fixture(scope="module")
def network() -> torch.nn.Module:
    """Make torchvision's own network for two classes, with weights that make it sure of some things."""
    torch.manual_seed(0)
    made: torch.nn.Module = fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=3, min_size=96, max_size=96, box_detections_per_img=1000
    )
    for part in made.get_submodule("backbone").modules():  # else all features vanish, and all proposals are alike
        if isinstance(part, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(part.weight)
    for name, parameter in made.get_submodule("roi_heads").named_parameters():
        torch.nn.init.normal_(parameter, std=0.001 if "bbox_pred" in name else 0.01)  # boxes that lie in the image
    return made.eval()


@pytest.fixture(scope="module")
def spec(network: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Save it as torchvision's users do, and name the file."""
    folder = tmp_path_factory.mktemp("rcnn")
    torch.save(network.state_dict(), folder / "tuned.pth")
    (folder / "names.txt").write_text("cat\ndog\n")
    return f"{folder}/tuned.pth,arch={ARCH},classes={folder}/names.txt,size=96"


def test_it_finds_what_torchvision_finds(network: torch.nn.Module, spec: str) -> None:
    """Only the most probable class of a proposal has its own box here, so other classes are not compared."""
    image = torch.randint(0, 256, (3, 96, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        theirs = network([image / 255])[0]
    ours = load_detector(spec).detections(image[None], [(96, 96)])[0]
    same = ours.labels_M[0] == theirs["labels"].numpy() - 1
    same &= np.abs(ours.scores_M[0] - theirs["scores"].numpy()) < 1e-4
    off = np.abs(ours.boxes_M4[0] - theirs["boxes"].numpy()).max(axis=1)
    assert np.ptp(theirs["scores"].numpy()) > 0.3
    assert off[same].min() < 0.1
    assert ours.scores_M[0] == pytest.approx(theirs["scores"].max().item(), abs=1e-4)


def test_its_anchors_lie_a_stride_apart_in_resized_images(spec: str) -> None:
    """A student of 64 pixels shows it 64 x 96; at its own 96 pixels that is 96 x 144, which is no multiple of 32."""
    teacher, seen = load_detector(spec), []
    rpn = teacher.module.get_submodule("rpn")
    handle = rpn.get_submodule("anchor_generator").register_forward_hook(
        lambda _, given, anchors: seen.append((given[1][0].shape[-2:], anchors[0]))
    )
    teacher.candidates(torch.zeros((1, 3, 64, 96), dtype=torch.uint8), [(64, 96)], 64, 5)
    handle.remove()
    (rows, columns), anchors_A4 = seen[0]
    last = (anchors_A4[rows * columns * 15 - 1].view(2, 2)).mean(dim=0)  # 5 sizes in 3 shapes at each place
    assert last.tolist() == [32 * (columns - 1), 32 * (rows - 1)]


def test_a_kept_class_has_the_score_it_had(spec: str) -> None:
    image = torch.full((1, 3, 96, 96), 90, dtype=torch.uint8)
    whole, part = load_detector(spec), load_detector(spec).keep(["dog"])
    both, one = (detector.answers(image).logits_NAK for detector in (whole, part))
    assert torch.equal(both[..., 1:], one)


def test_a_kept_class_has_its_own_box(network: torch.nn.Module, spec: str) -> None:
    """Also where the proposal more probably shows a class that is left out."""
    image = torch.randint(0, 256, (3, 96, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = network([image / 255])[0]
    theirs = {name: found["boxes"][found["labels"] == i][0].numpy() for i, name in ((1, "cat"), (2, "dog"))}
    scores = {name: found["scores"][found["labels"] == i][0].item() for i, name in ((1, "cat"), (2, "dog"))}
    for name, box in theirs.items():  # one of the two is the less probable one everywhere
        ours = load_detector(spec).keep([name]).detections(image[None], [(96, 96)])[0]
        assert ours.scores_M[0] == pytest.approx(scores[name], abs=1e-4)
        assert np.abs(ours.boxes_M4[0] - box).max() < 0.1


def test_it_teaches_but_cannot_be_a_student(spec: str, unlabeled: Path) -> None:
    with pytest.raises(DmcError) as error:
        Detector.untrained(ARCH, "ab")
    assert (
        str(error.value) == f"{ARCH} can teach, but not learn: a student is a one-stage detector; choose one (`arch`)"
    )
    quick = dmc.Schedule(epochs=1, lr=1e-4, algorithm="adam", batch_size=4)
    pair = [dmc.load(spec), small("c")]
    merged = dmc.consolidate(pair, unlabeled, weights=None, schedule=quick, aux_limit=4)
    assert merged.names == ("cat", "dog", "c")
    assert isinstance(merged.module, OneStage)
    assert merged.arch == pair[1].arch  # not the larger one's, which cannot learn
