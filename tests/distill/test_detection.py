"""Section 3.2 by hand: which anchors are selected, what the student should answer there, the loss, inference twice."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from dmc.data.batch import Batch
from dmc.data.detection_batch import DetectionBatch
from dmc.distill.anchor_teachers import AnchorTeachers
from dmc.distill.detector_objective import DetectionDistillation
from dmc.distill.detector_teachers import filled
from dmc.methods.adapted_shmelkov import WithOldOutputs
from dmc.models.detector import Detector
from dmc.models.one_stage import Answers, OneStage


class Fixed(OneStage, nn.Module):
    """A detector of three anchors that answers every image with given logits and boxes."""

    def __init__(self, logits_AK: list[list[float]], boxes_AB: list[list[float]]) -> None:
        super().__init__()
        self.logits_AK = nn.Parameter(torch.tensor(logits_AK))
        self.boxes_AB = nn.Parameter(torch.tensor(boxes_AB))

    def forward(self, images_N3HW: Tensor) -> Answers:
        n = len(images_N3HW)
        anchors_A4 = torch.tensor([[10.0 * i, 0, 10.0 * i + 8, 8] for i in range(len(self.logits_AK))])
        return Answers(self.logits_AK.repeat(n, 1, 1), self.boxes_AB.repeat(n, 1, 1), anchors_A4, [len(anchors_A4)])

    def answer(self, head: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def objective(self, answers: Answers, targets: object) -> dict[str, Tensor]:
        raise NotImplementedError

    def scores(self, logits_NAK: Tensor, boxes_NAB: Tensor) -> Tensor:
        return logits_NAK.sigmoid()

    def decoded(self, boxes_MB: Tensor, anchors_M4: Tensor) -> Tensor:
        return anchors_M4 + boxes_MB

    def encoded(self, boxes_M4: Tensor, anchors_M4: Tensor) -> Tensor:
        return boxes_M4 - anchors_M4


def fixed(names: str, logits: list[list[float]], shift: float) -> Detector:
    boxes = [[float(shift + i)] * 4 for i in range(len(logits))]
    return Detector(Fixed(logits, boxes), names, output="sigmoid", name=f"fixed {names}")


IMAGES = torch.zeros((2, 3, 32, 32), dtype=torch.uint8)
OLD = [[-5.0, 1.0], [3.0, -2.0], [-6.0, -7.0]]
NEW = [[2.0], [-4.0], [-5.5]]


def test_the_most_probable_anchors_are_selected_with_their_owners_boxes() -> None:
    """Each anchor's highest logit is 2 (new model), 3 (old), -5.5 (new), so the best two are anchors 1 and 0."""
    teachers = AnchorTeachers([fixed("ab", OLD, 0), fixed("c", NEW, 100)], "none")
    places_NS, logits_NST, boxes_NSB, _ = teachers.select(IMAGES, 2)
    assert places_NS.tolist() == [[1, 0], [1, 0]]
    assert logits_NST[0].tolist() == [[3, -2, -4], [-5, 1, 2]]
    assert boxes_NSB[0].tolist() == [[1] * 4, [100] * 4]  # the old model's at anchor 1, the new one's at anchor 0
    centred = AnchorTeachers(
        [fixed("ab", OLD, 0), fixed("cd", [[2.0, 0.0], [-4.0, -6.0], [0.0, 0.0]], 100)], "per-teacher"
    )
    assert centred.select(IMAGES, 1).logits_NST[0].tolist() == [[2.5, -2.5, 1, -1]]  # Eq. 4 at anchor 1


def test_a_narrow_image_has_its_best_anchors_twice_where_as_many_are_kept_of_all() -> None:
    """Three anchors, of which five are to be kept: the best, the second, the third, and the first two again."""
    found = AnchorTeachers([fixed("ab", OLD, 0), fixed("c", NEW, 100)], "none").select(IMAGES, 5)
    places_NS, logits_NST, _ = filled(found, 5)
    assert places_NS.tolist() == [[1, 0, 2, 1, 0]] * 2
    assert torch.equal(logits_NST[:, 3:], logits_NST[:, :2])


def test_a_third_teacher_is_one_like_the_others() -> None:
    """Its class d is the most probable at anchors 2 (logit 4) and 0 (2.5); at anchor 1 the old model's still is."""
    third = fixed("d", [[2.5], [-9.0], [4.0]], 200)
    teachers = AnchorTeachers([fixed("ab", OLD, 0), fixed("c", NEW, 100), third], "none")
    places_NS, logits_NST, boxes_NSB, _ = teachers.select(IMAGES, 3)
    assert places_NS[0].tolist() == [2, 1, 0]
    assert logits_NST[0].tolist() == [[-6, -7, -5.5, 4], [3, -2, -4, -9], [-5, 1, 2, 2.5]]
    assert boxes_NSB[0].tolist() == [[202] * 4, [1] * 4, [200] * 4]


def test_overlapping_classes_are_averaged() -> None:
    teachers = AnchorTeachers([fixed("ab", OLD, 0), fixed("b", NEW, 100)], "none")
    assert teachers.classes.names == ("a", "b")
    assert teachers.select(IMAGES, 1).logits_NST[0].tolist() == [[3.0, (-2.0 - 4.0) / 2]]


def test_the_loss_is_eq_8() -> None:
    """Squares are summed and divided by t, smooth L1 is summed over box sides; both are averaged over the anchors."""
    teachers = AnchorTeachers([fixed("ab", OLD, 0), fixed("c", NEW, 100)], "none", anchors=2)
    student = fixed("abc", [[-5.0, 1.0, 0.0], [3.0, -2.0, -1.0], [9.0, 9.0, 9.0]], 0.25)
    found = DetectionDistillation(student, teachers, "l2", box_weight=0.5).losses(
        student.module, Batch(IMAGES, torch.zeros(2))
    )
    classes = (2.0**2 / 3 + 3.0**2 / 3) / 2  # anchor 0 is off by 2 in c, anchor 1 by 3
    boxes = (4 * 0.25**2 / 2 + 4 * (100 - 0.25 - 0.5)) / 2  # anchor 1: 1.25 against 1; anchor 0: 0.25 against 100
    assert found["classes"].item() == pytest.approx(classes)
    assert found["boxes"].item() == pytest.approx(boxes)
    assert found["loss"].item() == pytest.approx(classes + 0.5 * boxes)
    found["loss"].backward()  # type: ignore[no-untyped-call]
    gradient = student.module.get_parameter("logits_AK").grad
    assert gradient is not None
    assert gradient[2].tolist() == [0, 0, 0]  # an anchor that is not selected is not touched


class Learning(Fixed):
    """A detector that has a training loss, too."""

    def objective(self, answers: Answers, targets: object) -> dict[str, Tensor]:
        return {"own": torch.tensor(7.0)}


def test_adapted_shmelkov_adds_the_old_outputs_at_the_old_models_best_anchors() -> None:
    """The old model's best anchors are 1 and 0. There, old classes are off by (1, 0) and (0, 2), and boxes by 1/2."""
    wide = Detector(
        Learning([[-5.0, 3.0, 0.0], [2.0, -2.0, 0.0], [9.0, 9.0, 9.0]], [[0.5 + i] * 4 for i in range(3)]),
        "abc",
        output="sigmoid",
    )
    task = WithOldOutputs(wide, fixed("ab", OLD, 0), ("c",), anchors=2)
    scene = DetectionBatch(
        IMAGES, torch.zeros(2), [(32, 32)] * 2, [torch.zeros(0, 4)] * 2, [torch.zeros(0).long()] * 2, []
    )
    found = task.losses(wide.module, scene)
    assert found["old classes"].item() == pytest.approx((1**2 + 2**2) / 4)
    assert found["old boxes"].item() == pytest.approx(4 * 0.5**2 / 2)
    assert found["loss"].item() == pytest.approx(7 + 5 / 4 + 0.5)


def test_inference_twice_takes_the_best_class_with_its_box() -> None:
    teachers = AnchorTeachers([fixed("ab", OLD, 0), fixed("c", NEW, 5)], "none")
    found = teachers.detections(IMAGES[:1], [(32, 32)])[0]
    assert found.labels_M.tolist() == [0, 2]  # anchor 1 is class a; anchor 0 is class c, not b
    assert found.scores_M == pytest.approx([1 / (1 + math.exp(-3)), 1 / (1 + math.exp(-2))])
    assert found.boxes_M4.tolist() == [[11, 1, 19, 9], [5, 5, 13, 13]]


def test_a_centred_teacher_of_one_class_teaches_nothing() -> None:
    """In the paper's literal form such a teacher's logit is always 0."""
    teachers = AnchorTeachers([fixed("ab", OLD, 0), fixed("c", NEW, 100)], "per-teacher")
    assert teachers.select(IMAGES, 3).logits_NST[..., 2].abs().max() == 0
