"""Teachers that have no anchors in common with the student: what they find, at the student's anchors, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dmc
from dmc.config import DetectorConsolidateConfig
from dmc.data.batch import Batch
from dmc.data.preprocess import Preprocessing
from dmc.distill.anchor_teachers import AnchorTeachers
from dmc.distill.box_targets import LOWEST, at_anchors
from dmc.distill.box_teachers import BoxTeachers, side_by_side
from dmc.distill.cache import AnswerCache
from dmc.distill.detector_objective import DetectionDistillation
from dmc.errors import DmcError
from dmc.models.detector import Candidates, Detector, hidden
from dmc.models.free_boxes import NOTHING, FreeBoxes, free_boxes
from dmc.models.one_stage import Answers, OneStage, overlaps
from dmc.tasks.detector_consolidation import DetectorConsolidation
from tests.detectors import small, untrained
from tests.distill.test_detection import Fixed, fixed

IMAGES = torch.zeros((2, 3, 32, 32), dtype=torch.uint8)


# The student has anchors of 8 x 8 pixels that begin at 0, 10, 20, ... in the first row.
STUDENT = Fixed([[0.0] * 3] * 4, [[0.0] * 4] * 4)


ANCHORS = STUDENT(IMAGES).anchors_A4


RETINANET = "retinanet:timm/test_resnet,width=16,depth=1,scale=2"


FAMILIES = (RETINANET, "fcos:timm/test_resnet,width=64,depth=1", "ssdlite320_mobilenet_v3_large")


class Sightings(FreeBoxes):
    """A detector that finds the same boxes in every image, with given scores."""

    def __init__(self, boxes: list[list[float]], scores: list[list[float]]) -> None:
        super().__init__()
        self.register_buffer("boxes_M4", torch.tensor(boxes))
        self.register_buffer("odds_MK", torch.tensor(scores).logit())

    def forward(self, images_N3HW: Tensor) -> Answers:
        n = len(images_N3HW)
        return free_boxes(self.boxes_M4.repeat(n, 1, 1), self.odds_MK.repeat(n, 1, 1))  # type: ignore[operator]


def sees(names: str, boxes: list[list[float]], scores: list[list[float]], size: int = 32) -> Detector:
    return Detector(Sightings(boxes, scores), names, Preprocessing(size), "sigmoid", name=f"sees {names}")


def student(names: str) -> Detector:
    return Detector(Fixed([[0.0] * len(names)] * 4, [[0.0] * 4] * 4), names, Preprocessing(32), "sigmoid")


def odds(score: float) -> float:
    return math.log(score / (1 - score))


def test_a_find_is_taught_where_it_overlaps_an_anchor_and_all_else_is_background() -> None:
    """The first teacher's box covers 6/8 of anchor 0, the second's all of anchor 2."""
    first = sees("ab", [[0.0, 0, 6, 8]], [[0.9, 0.2]])
    second = sees("c", [[20.0, 0, 28, 8], [100, 100, 108, 108]], [[0.6], [0.001]])
    teachers = BoxTeachers([first, second], student("abc"), anchors=4)
    target = teachers.select(IMAGES, 4)
    assert target.places_NS[0, :2].tolist() == [0, 2]  # by score: 0.9, then 0.6
    assert sorted(target.places_NS[0].tolist()) == [0, 1, 2, 3]
    want = [[odds(0.9), odds(0.2), LOWEST], [LOWEST, LOWEST, odds(0.6)], [LOWEST] * 3, [LOWEST] * 3]
    torch.testing.assert_close(target.logits_NST[0], torch.tensor(want))
    assert target.box_weights_NS is not None
    assert target.box_weights_NS[0].tolist() == [1, 1, 0, 0]  # no box is taught in the background
    assert target.boxes_NSB[0, :2].tolist() == [[0, 0, -2, 0], [0, 0, 0, 0]]  # corners less those of the anchor


def test_between_foreground_and_background_a_find_counts_in_part() -> None:
    """A box of 4.5 x 8 pixels begins where all anchors do, which are as tall."""
    found = Candidates(torch.tensor([[[0.0, 0, 4.5, 8]]]), torch.tensor([[[4.0]]]))
    wide = torch.tensor([[0.0, 0, 4.5, 8], [0.0, 0, 8, 8], [0.0, 0, 10, 8], [0.0, 0, 40, 8]])
    at = at_anchors([found], wide, STUDENT, 4, torch.zeros(1).long())
    level = dict(zip(at.places_NS[0].tolist(), ((at.odds[0][0, :, 0] - LOWEST) / (4 - LOWEST)).tolist(), strict=True))
    # 4.5/4.5 is enough; 4.5/8 = 0.5625 and 4.5/10 = 0.45 lie between 0.2 and 0.65, and 4.5/40 below.
    assert level == pytest.approx({0: 1, 1: 0.3625 / 0.45, 2: 0.25 / 0.45, 3: 0}, abs=1e-5)


def test_a_box_that_fits_no_anchor_is_taught_at_its_best() -> None:
    """A box of 2 x 2 pixels covers anchor 1 by 4/64, and no other."""
    found = Candidates(torch.tensor([[[12.0, 2, 14, 4]]]), torch.tensor([[[2.0]]]))
    at = at_anchors([found], ANCHORS, STUDENT, 4, torch.zeros(1).long())
    assert at.places_NS[0, 0] == 1
    assert at.odds[0][0, :, 0].tolist() == pytest.approx([2, LOWEST, LOWEST, LOWEST])
    assert at.box_weights_NS[0].tolist() == [1, 0, 0, 0]


def test_every_object_has_its_best_anchor_before_any_has_its_second() -> None:
    """The first object has 95%, and two anchors with overlaps of 1 and 0.625; the second has 62%."""
    anchors = torch.tensor([[0.0, 0, 8, 8], [0.0, 0, 8, 5], [50.0, 0, 58, 8], [80.0, 0, 88, 8]])
    found = Candidates(torch.tensor([[[0.0, 0, 8, 8], [50.0, 0, 58, 8]]]), torch.tensor([[[3.0, -9], [-9, 0.5]]]))
    at = at_anchors([found], anchors, STUDENT, 2, torch.zeros(1).long())
    assert at.places_NS[0].tolist() == [0, 2]


def test_of_two_finds_at_one_place_the_surest_tells_all_classes() -> None:
    """What the other says of the second class would make the student see two things at once."""
    found = Candidates(torch.tensor([[[0.0, 0, 8, 8], [0.0, 0, 8, 7]]]), torch.tensor([[[1.0, -9.0], [-9.0, 0.5]]]))
    at = at_anchors([found], ANCHORS, STUDENT, 1, torch.zeros(1).long())
    assert at.odds[0][0, 0].tolist() == pytest.approx([1.0, LOWEST])
    assert at.boxes_NSB[0, 0].tolist() == [0, 0, 0, 0]  # the more probable one's box


def test_background_is_drawn_by_the_image() -> None:
    nothing = Candidates(torch.zeros(2, 1, 4), torch.full((2, 1, 1), -16.0))
    many = torch.rand(500, 4).sort(dim=1).values * 50
    at = at_anchors([nothing], many, STUDENT, 20, torch.tensor([1, 777]))
    assert (at.odds[0] == LOWEST).all()
    assert (at.box_weights_NS == 0).all()
    assert at.boxes_NSB.isfinite().all()
    first, second = (set(places.tolist()) for places in at.places_NS)
    assert len(first & second) < 10
    assert max(first) - min(first) > 250  # not the first ones


def test_classes_that_both_teachers_know_are_averaged() -> None:
    pair = [sees("ab", [[0.0, 0, 8, 8]], [[0.9, 0.2]]), sees("b", [[0.0, 0, 8, 8]], [[0.6]])]
    target = BoxTeachers(pair, student("ab"), anchors=1).select(IMAGES, 1)
    assert target.logits_NST[0, 0].tolist() == pytest.approx([odds(0.9), (odds(0.2) + odds(0.6)) / 2])


def test_a_nearly_equal_box_hides_a_worse_one_of_its_class() -> None:
    boxes = torch.tensor([[[0.0, 0, 10, 10], [0.0, 0, 10, 9], [0.0, 0, 10, 9], [0.0, 0, 10, 6]]])
    assert hidden(boxes, torch.tensor([[0, 0, 1, 0]])).tolist() == [[False, True, False, False]]


def test_each_teacher_sees_its_own_size() -> None:
    """A teacher for 64 pixels finds its box in images of twice the size, so it is half as large in the batch."""
    teachers = BoxTeachers([sees("a", [[0.0, 0, 16, 16]], [[0.9]], size=64)], student("a"))
    assert teachers.each(IMAGES)[0].boxes_NM4[0, 0].tolist() == [0, 0, 8, 8]
    assert teachers.finds(IMAGES, [(32, 32)] * 2)[0][0].boxes_M4.tolist() == [[0, 0, 8, 8]]


def test_side_by_side_finds_of_all_are_joined() -> None:
    pair = [
        sees("ab", [[0.0, 0, 8, 8], [0.0, 20, 8, 28]], [[0.9, 0.1], [0.1, 0.8]]),
        sees("b", [[0.0, 20, 8, 27]], [[0.7]]),
    ]
    found = BoxTeachers(pair).detections(IMAGES[:1], [(32, 32)], min_score=0.3)[0]
    assert found.labels_M.tolist() == [0, 1]  # the second detector's b lies on the first one's
    assert found.scores_M.tolist() == pytest.approx([0.9, 0.8])
    with pytest.raises(DmcError, match="to teach, they need a student"):
        BoxTeachers(pair).select(IMAGES, 2)


def test_boxes_that_are_not_finite_are_refused() -> None:
    teachers = BoxTeachers([sees("a", [[math.nan, 0, 8, 8]], [[0.9]])], student("a"))
    teachers.select(IMAGES, 2)
    with pytest.raises(DmcError, match="sees a gives answers that are not finite"):
        teachers.require_finite()


@pytest.mark.parametrize("arch", FAMILIES)
def test_a_student_that_answers_its_target_scores_as_the_teachers_do(arch: str) -> None:
    """Whatever the student's own coding is, its scores and boxes at the taught anchors are then the teachers'."""
    learner = untrained("ab", arch)
    side = learner.transform.size if learner.transform.square else 128
    images = torch.zeros((1, 3, side, side), dtype=torch.uint8)
    box = [20.0, 30, 90, 100]
    learner = Detector(learner.module, "ab", replace(learner.preprocessing, size=side), "sigmoid", arch)
    teachers = BoxTeachers([sees("ab", [box], [[0.8, 0.05]], side)], learner, anchors=8)
    target = teachers.select(images, 8)
    network = learner.one_stage
    anchors = teachers.layout(images)[target.places_NS[0]]
    assert target.box_weights_NS is not None
    taught = target.box_weights_NS[0] > 0.99
    assert taught.any()
    decoded = network.decoded(target.boxes_NSB[0][taught], anchors[taught])
    assert (decoded - torch.tensor(box)).abs().max() < 0.01
    scores = network.scores(target.logits_NST, target.boxes_NSB)[0]
    # SSD's classes compete, so a second one takes some of the first one's probability.
    assert scores[taught][:, 0].max().item() == pytest.approx(0.8, abs=0.04)
    assert scores[taught][:, 1].max().item() == pytest.approx(0.05, abs=0.01)
    if (~taught).any():
        assert scores[~taught].max() < 0.8


def test_with_equal_anchors_both_forms_teach_the_surest_places_alike() -> None:
    """The old model's surest anchor is 1 (logit 3), the new one's 0 (2); boxes are the anchors, moved by a pixel."""
    pair = [fixed("ab", [[-5.0, 1], [3, -2], [-6, -7]], 0), fixed("c", [[2.0], [-4], [-5.5]], 1)]
    learner = Detector(Fixed([[0.0] * 3] * 3, [[0.0] * 4] * 3), "abc", output="sigmoid")
    by_anchor, by_box = AnchorTeachers(pair, "none").select(IMAGES, 2), BoxTeachers(pair, learner).select(IMAGES, 2)
    assert by_anchor.places_NS.tolist() == by_box.places_NS.tolist()
    torch.testing.assert_close(by_anchor.boxes_NSB, by_box.boxes_NSB)
    torch.testing.assert_close(by_anchor.logits_NST.clamp_min(LOWEST), by_box.logits_NST)


def test_the_loss_leaves_out_boxes_where_there_are_none() -> None:
    """Of two anchors, one has a box: two pixels off on one side, so 2 - 1/2, halved by the mean over anchors."""
    teachers = BoxTeachers(
        [sees("a", [[0.0, 0, 6, 8]], [[0.9]]), sees("b", [[200.0, 0, 206, 8]], [[0.02]])], student("ab"), anchors=2
    )
    learner = student("ab")
    found = DetectionDistillation(learner, teachers, "l2", 1.0).losses(learner.module, Batch(IMAGES, torch.zeros(2)))
    assert found["boxes"].item() == pytest.approx(1.5 / 2)


def test_a_cache_gives_the_same_targets_again(tmp_path: Path) -> None:
    asked = []

    class Counting(Sightings):
        def forward(self, images_N3HW: Tensor) -> Answers:
            asked.append(len(images_N3HW))
            return super().forward(images_N3HW)

    counting = Detector(Counting([[0.0, 0, 6, 8]], [[0.9]]), "a", Preprocessing(32), "sigmoid", name="counting")
    teachers = BoxTeachers([counting, sees("b", [[20.0, 0, 28, 8]], [[0.6]])], student("ab"), anchors=3)
    batch = replace(Batch(IMAGES, torch.zeros(2)).in_view(0), ids_N=torch.tensor([5, 6]))
    with AnswerCache(tmp_path, 2**30, 1, 2, {}) as cache:
        teachers.remember(cache)
        first = teachers.targets(batch)
        before = len(asked)
        second = teachers.targets(batch)
    assert len(asked) == before
    for one, other in zip(first, second, strict=True):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one, other)


def test_a_cache_keeps_as_many_anchors_as_are_taught(tmp_path: Path) -> None:
    """A square of noise has fewer than a wide image: 16 places of 9 anchors at 32 pixels are all that there are."""
    teachers = BoxTeachers(
        [small("ab", RETINANET), small("c", RETINANET, seed=1)], small("abc", RETINANET), anchors=999
    )
    (kept,) = teachers.kept()
    assert teachers.anchors == 999
    assert {part.shape[0] for part in kept.parts} == {999}
    found = teachers.select(torch.zeros((1, 3, 32, 32), dtype=torch.uint8), 999)
    assert found.places_NS.shape[1] < 999
    with AnswerCache(tmp_path, 2**30, 1, 2, {}) as cache:
        teachers.remember(cache)
        batch = replace(Batch(IMAGES, torch.zeros(2)).in_view(0), ids_N=torch.tensor([5, 6]))
        assert teachers.targets(batch).places_NS.shape == (2, 999)


def test_unlike_families_merge_into_any_of_them(unlabeled: Path) -> None:
    """Whatever teaches whom, a step lowers the loss to the teachers' finds, and the result is saved and loaded."""
    quick = dmc.Schedule(epochs=1, lr=1e-4, algorithm="adam", batch_size=20)
    pair = [small("ab", RETINANET), small("c", FAMILIES[1], seed=1)]
    merged = dmc.consolidate(pair, unlabeled, arch=FAMILIES[1], weights=None, schedule=quick, aux_limit=8)
    assert merged.names == ("a", "b", "c")
    assert isinstance(merged.module, OneStage)


def test_overlaps_are_torchvisions() -> None:
    from torchvision.ops import box_iou

    some, others = (torch.rand(n, 2, 2).sort(dim=1).values.flatten(1) * 50 for n in (7, 9))
    torch.testing.assert_close(overlaps(some, others), box_iou(some, others))
    assert overlaps(torch.zeros(1, 4), others).abs().max() == 0


def test_teachers_whose_images_will_be_made_larger_are_named(unlabeled: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A letterbox of 64 pixels shows a photo of 64 x 48 pixels as it is."""
    pair = [small("a"), sees("b", [[10.0, 10, 30, 30]], [[0.9]], 64)]
    asked = DetectorConsolidateConfig(weights=None, size=48)
    said = "sees b was made for images of 64 pixels and will see the student's, of 48, made larger: small objects"
    DetectorConsolidation(pair, unlabeled, asked)
    assert f"{said} escape it; `size` sets how many" in caplog.text
    caplog.clear()
    pair[1].network.fit = "letterbox"
    DetectorConsolidation(pair, unlabeled, asked)
    assert said not in caplog.text


@pytest.mark.parametrize(("asked", "given"), [({}, 64), ({"matching": "boxes"}, 512), ({"anchors": 7}, 7)])
def test_boxes_are_taught_at_more_anchors(asked: dict[str, Any], given: int, unlabeled: Path) -> None:
    """The paper's 64 would leave out all background."""
    settings = DetectorConsolidateConfig.of({"weights": None, **asked})
    merge = DetectorConsolidation([small("a"), small("b", seed=1)], unlabeled, settings)
    assert (merge.teachers.anchors, merge.run_json["anchors"]) == (given, given)


def test_objects_are_found_beside_one_with_many_boxes() -> None:
    """A detector without suppression finds the first object two hundred times before it finds the second."""
    crowd = [[0.0, 0, 20 + i / 100, 20] for i in range(200)]
    teacher = sees("a", [*crowd, [24.0, 24, 32, 32]], [*([[0.9]] * 200), [0.5]])
    boxes_NM4, odds_NMK = teacher.candidates(IMAGES, [(32, 32)] * 2, 4, 32)
    assert boxes_NM4[0, :2, 0].tolist() == [0, 24]
    assert odds_NMK[0, :2, 0].sigmoid().tolist() == pytest.approx([0.9, 0.5])
    assert (odds_NMK[0, 2:] == NOTHING).all()  # there are no more, only boxes that others hide


def test_detectors_of_two_sizes_see_their_own_side_by_side() -> None:
    small_one, large_one = small("a", seed=1), untrained("b", seed=2)
    assert small_one.preprocessing.size != large_one.preprocessing.size
    assert type(side_by_side([small_one, large_one])) is BoxTeachers
    assert type(side_by_side([small_one, small("b", seed=2)])) is AnchorTeachers


class Grey(Sightings):
    """A detector that takes images of one channel."""

    def forward(self, images_N3HW: Tensor) -> Answers:
        assert images_N3HW.shape[1] == 1
        return super().forward(images_N3HW)


def test_a_detector_of_grey_images_sees_grey() -> None:
    network = Grey([[0.0, 0, 8, 8]], [[0.9]])
    detector = Detector(network, "a", Preprocessing(32, mean=(0.5,), std=(0.5,)), "sigmoid", name="thermal")
    assert detector.detections(IMAGES, [(32, 32)] * 2)[0].scores_M.tolist() == pytest.approx([0.9])


def test_a_teacher_that_wants_more_pixels_is_named(unlabeled: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked = DetectorConsolidateConfig.of({"weights": "random", "size": 64})
    DetectorConsolidation([small("a"), sees("b", [[0.0, 0, 8, 8]], [[0.9]], size=96)], unlabeled, asked)
    assert "sees b was made for images of 96 pixels and will see the student's, of 64, made larger" in caplog.text
