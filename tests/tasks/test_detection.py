"""Detectors as users handle them: networks and files; train, merge, learn, evaluate, predict."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import dmc
from dmc.api import predict
from dmc.config import DetectorConsolidateConfig
from dmc.data.annotations import Objects, open_annotated
from dmc.data.batch import Batch
from dmc.distill.anchor_teachers import AnchorTeachers
from dmc.distill.detector_objective import DetectionDistillation
from dmc.distill.detector_teachers import Selected
from dmc.errors import DmcError
from dmc.evaluation.detection import coco_average_precision, evaluate
from dmc.metrics.average_precision import Detections
from dmc.models.detector import MIN_SCORE, Detector
from dmc.models.pyramids import IMAGENET
from dmc.recipes.profile import load_profile
from dmc.tasks.detection import Detection
from dmc.tasks.detector_consolidation import DetectorConsolidation
from dmc.training.detection import DetectionLoss
from dmc.training.objective import Objective
from dmc.training.step import Step
from tests.conftest import Answer, load_detector, require_unlike, tiny
from tests.detectors import TINY, untrained

Dmc = Callable[..., Answer]


FAMILIES = (
    "retinanet_resnet18_fpn,width=16,depth=1",
    TINY,
    "fcos:timm/test_resnet,width=64,depth=1",
    "ssdlite320_mobilenet_v3_large",
    "retinanet:timm/test_mambaout,width=16,depth=1",  # N x H x W x C
)


def test_cocos_precision_counts_overlaps_up_to_the_boxs_own() -> None:
    """A box that covers 3/5 of the truth passes at 0.5, 0.55 and 0.6: three of COCO's ten overlaps."""
    truth = [Objects(np.array([[0, 0, 10, 10]], np.float32), np.array([4]), np.array([False]), 20, 20)]
    found = [Detections(np.array([[0, 0, 10, 6]], np.float32), np.ones(1, np.float32), np.array([4]))]
    assert coco_average_precision(found, truth, [4]) == pytest.approx((0.3, 1.0))
    hard = [truth[0]._replace(difficult_M=np.array([True]))]
    assert all(math.isnan(value) for value in coco_average_precision(found, hard, [4]))


class Steep(Objective):
    """A loss whose gradient is 10,000 for every weight."""

    name = "Steep"

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"loss": 1e4 * torch.stack([weight.sum() for weight in network.parameters()]).sum()}


def test_detectors_train_with_adam_on_clipped_gradients(unlabeled: Path) -> None:
    """By hand: four gradients of 10,000 have the norm 20,000; clipped to 0.1 each is 0.05, so Adam's first moment
    is 0.1 * 0.05. Adam's first step is as long as the rate, whatever the gradient; that of SGD would be 0.05 times it.
    """
    teachers, size_64 = [untrained("ab"), untrained("c", seed=1)], DetectorConsolidateConfig(size=64, weights=None)
    bench, task = load_profile("paper", "voc"), Detection()
    as_paper = [
        DetectorConsolidation(teachers, unlabeled, size_64).schedule,
        bench.specialist,
        bench.consolidation,
        *task.paper_schedules,
    ]
    fitting = [usual(500, pretrained=True) for usual in (task.supervised_schedule, task.distillation_schedule)]
    for schedule in (*as_paper, *fitting):
        module = nn.Linear(4, 1, bias=False)
        before = module.weight.detach().clone()
        step = Step(module, Steep(), schedule)
        step.begin()
        step(Batch(torch.zeros((1, 3, 4, 4), dtype=torch.uint8), torch.zeros(1)), lr=1e-3, whole=1)
        assert step.optimizer.state[module.weight]["exp_avg"].norm().item() == pytest.approx(0.1 * 0.1, rel=1e-4)
        torch.testing.assert_close(before - module.weight.detach(), torch.full((1, 4), 1e-3), rtol=1e-3, atol=0)
    for schedule in as_paper:  # section "Training details for the object detection experiments"
        assert (schedule.epochs, schedule.batch_size, schedule.flip) == (100, 12, True)
        assert {schedule.lr_at(step, 10) for step in range(1000)} == {1e-3}


def test_detectors_are_trained_as_was_measured_best() -> None:
    """Of 6,200 and 1,200 images, and with ImageNet's weights at a third of the paper's rate."""
    merging, labeled = Detection().distillation_schedule, Detection().supervised_schedule
    chosen = [merging(6_200, True), merging(1_200, True), labeled(640, True), merging(100_000, False)]
    assert [(s.epochs, s.lr, s.shape) for s in chosen] == [
        (4, 3e-4, "one-cycle"),
        (20, 3e-4, "one-cycle"),
        (19, 3e-4, "one-cycle"),
        (4, 1e-3, "one-cycle"),
    ]


@pytest.mark.parametrize("arch", [TINY, "retinanet_resnet18_fpn,width=16,depth=1", "fcos:timm/test_resnet,width=64"])
def test_the_shorter_side_has_640_pixels_unless_asked_otherwise(arch: str) -> None:
    assert untrained("ab", arch).transform(Image.new("RGB", (100, 80))).shape == (3, 640, 800)
    assert load_profile("paper", "voc").network.size is None  # what the architecture was designed for


def test_no_layer_of_the_student_comes_from_a_teacher(unlabeled: Path) -> None:
    """Trained by next to nothing, it is still what it was at the start."""
    teachers = [untrained("abc"), untrained("de", seed=1)]
    still = dmc.Schedule(epochs=1, batch_size=20, lr=1e-12, algorithm="adam", weight_decay=0)
    merged = dmc.consolidate(teachers, unlabeled, size=64, weights=None, schedule=still, seed=2)
    for teacher in teachers:
        require_unlike(merged, teacher)


@pytest.mark.parametrize("arch", FAMILIES)
def test_every_family_trains_saves_and_loads(arch: str, tmp_path: Path) -> None:
    detector = untrained("ab", arch)
    images = torch.randint(0, 256, (2, 3, 320, 320), dtype=torch.uint8)
    answers = detector.answers(images)
    targets = [{"boxes": torch.tensor([[20.0, 30, 120, 140]]), "labels": torch.tensor([1])}]
    targets.append({"boxes": torch.zeros((0, 4)), "labels": torch.zeros(0, dtype=torch.long)})
    detector.module.train()
    losses = detector.one_stage.objective(detector.answers(images), targets)
    torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
    assert all(torch.isfinite(loss) for loss in losses.values())
    detector.module.eval()
    loaded = dmc.load(detector.save(tmp_path / "d"))
    assert isinstance(loaded, Detector)
    assert (loaded.arch, loaded.names, loaded.preprocessing) == (detector.arch, ("a", "b"), detector.preprocessing)
    torch.testing.assert_close(loaded.answers(images).logits_NAK, detector.answers(images).logits_NAK)
    assert answers.logits_NAK.shape[1] == len(answers.anchors_A4) == sum(answers.levels)
    assert "object-detection" in (tmp_path / "d" / "README.md").read_text()


@pytest.mark.parametrize("arch", FAMILIES)
def test_a_widened_detector_answers_as_before(arch: str) -> None:
    old = untrained("ab", arch)
    wide = old.widened("cde")
    images = torch.randint(0, 256, (1, 3, 320, 320), dtype=torch.uint8)
    with torch.no_grad():
        before, after = old.answers(images), wide.answers(images)
    torch.testing.assert_close(after.logits_NAK[..., :2], before.logits_NAK)
    torch.testing.assert_close(after.boxes_NAB, before.boxes_NAB)


@pytest.mark.slow
@pytest.mark.parametrize("arch", FAMILIES)
def test_every_family_consolidates(arch: str, unlabeled: Path, tmp_path: Path) -> None:
    """The student comes closer to its teachers in classes and in boxes."""
    schedule = dmc.Schedule(epochs=5, lr=1e-3, algorithm="adam", batch_size=2)
    teachers = [untrained("ab", arch), untrained("c", arch, seed=1)]
    size = 64 if "ssd" not in arch else None
    images = np.stack([np.asarray(Image.open(path)) for path in sorted(unlabeled.iterdir())[:4]])
    merged = dmc.consolidate(teachers, images, tmp_path / "m", size=size, weights=None, schedule=schedule)
    assert merged.names == ("a", "b", "c")
    first, *_, last = (json.loads(line) for line in (tmp_path / "m" / "metrics.jsonl").read_text().splitlines())
    assert last["classes"] < 0.9 * first["classes"]
    assert last["boxes"] < first["boxes"]


@pytest.mark.slow
def test_an_interrupted_run_ends_with_the_same_weights_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, squares: Path, unlabeled: Path, tmp_path: Path
) -> None:
    schedule = dmc.Schedule(epochs=2, lr=1e-3, algorithm="adam", batch_size=20)
    usual: dict[str, Any] = {"size": 64, "weights": None, "schedule": schedule, "resume": True, "checkpoint_every": 0}
    teachers = [untrained("ab"), untrained("c", seed=1)]
    runs: dict[type[Objective], Callable[[Path], Any]] = {
        DetectionLoss: lambda out: dmc.train(squares, out, arch=TINY, **usual),
        DetectionDistillation: lambda out: dmc.consolidate(teachers, unlabeled, out, **usual),
    }
    for task, run in runs.items():
        whole, parts = tmp_path / f"whole-{task.__name__}", tmp_path / f"parts-{task.__name__}"
        run(whole)
        real, steps = task.losses, count()

        def stopping(
            self: Objective, network: nn.Module, batch: Batch, real: Any = real, steps: count[int] = steps
        ) -> dict[str, Tensor]:
            if next(steps) == 2:  # within an epoch
                raise KeyboardInterrupt
            found: dict[str, Tensor] = real(self, network, batch)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(task, "losses", stopping)
            with pytest.raises(KeyboardInterrupt):
                run(parts)
        assert not (parts / "model.safetensors").exists()
        run(parts)
        assert (whole / "model.safetensors").read_bytes() == (parts / "model.safetensors").read_bytes()


def test_training_asks_folded_teachers_without_autograd(monkeypatch: pytest.MonkeyPatch, unlabeled: Path) -> None:
    teachers = [untrained("ab"), untrained("c", seed=1)]
    assert all(any(isinstance(part, nn.BatchNorm2d) for part in teacher.module.modules()) for teacher in teachers)
    asked: list[tuple[bool, bool]] = []
    select = AnchorTeachers.select

    def watched(self: AnchorTeachers, images_N3HW: Tensor, count: int, sizes: Any) -> Selected:
        found = select(self, images_N3HW, count, sizes)
        folded = not any(isinstance(part, nn.BatchNorm2d) for d in self.inference_models for part in d.module.modules())
        asked.append((folded, found.logits_NST.requires_grad or found.boxes_NSB.requires_grad))
        return found

    monkeypatch.setattr(AnchorTeachers, "select", watched)
    schedule = dmc.Schedule(epochs=1, lr=1e-4, algorithm="adam", batch_size=20)
    config = DetectorConsolidateConfig(size=64, weights=None)
    DetectorConsolidation(teachers, unlabeled, config, schedule).run()
    assert asked == [(True, False)] * 2  # 40 images
    assert all(parameter.grad is None for teacher in teachers for parameter in teacher.module.parameters())


def test_a_broken_image_does_not_shift_the_others_truth(squares: Path, tmp_path: Path) -> None:
    """A detector that knows the truth is perfect, whether images are held in memory or streamed."""
    folder = shutil.copytree(squares, tmp_path / "squares")
    (folder / "JPEGImages" / "val_003.jpg").write_bytes(b"no image")
    scenes = open_annotated(f"{folder},split=val")

    class Seer(Detector):
        def detections(
            self, images_N3HW: Tensor, sizes: Sequence[tuple[int, int]], min_score: float = 0, shown: int | None = None
        ) -> list[Detections]:
            found = []
            for image, (_, width) in zip(images_N3HW, sizes, strict=True):
                boxes, labels = [], []
                for label, name in enumerate(self.names):
                    channel = ("red", "green", "blue").index(name)
                    others = [c for c in range(3) if c != channel]
                    mask = (image[channel] > 170) & (image[others].amax(dim=0) < 120)
                    for columns in (slice(0, width // 2), slice(width // 2, width)):  # one square in each half
                        ys, xs = mask[:, columns].nonzero(as_tuple=True)
                        if len(ys) > 60:
                            left = columns.start
                            boxes.append(
                                [left + int(xs.min()), int(ys.min()), left + int(xs.max()) + 1, int(ys.max()) + 1]
                            )
                            labels.append(label)
                found.append(
                    Detections(
                        np.array(boxes, np.float32).reshape(-1, 4),
                        np.ones(len(boxes), np.float32),
                        np.array(labels, np.int64),
                    )
                )
            return found

    seer = Seer(Detector.architectures.create(TINY, 3).eval(), scenes.classes, replace(IMAGENET, size=80))
    result = evaluate(seer, scenes)
    assert (result.images, result.skipped) == (19, 1)
    assert result.mean > 0.9


def test_mixed_backbones_merge_and_other_anchors_do_not_one_by_one(unlabeled: Path) -> None:
    quick = dmc.Schedule(epochs=1, lr=1e-4, batch_size=40)
    other = untrained("c", "retinanet:timm/test_efficientnet,width=24,depth=2,scale=2", seed=1)
    assert dmc.consolidate([untrained("ab"), other], unlabeled, size=64, weights=None, schedule=quick).names == tuple(
        "abc"
    )
    for arch in ("retinanet:timm/test_resnet,width=16,depth=1", "fcos:timm/test_resnet,width=64"):
        with pytest.raises(DmcError, match="lay their anchors differently"):
            dmc.consolidate([untrained("ab"), untrained("c", arch)], unlabeled, weights=None, matching="anchors")


def test_bad_combinations(tmp_path: Path, unlabeled: Path) -> None:
    detector = untrained("ab")
    cases: tuple[tuple[list[Any], dict[str, Any], str], ...] = (
        ([detector, tiny("cd")], {}, "detector-0 is a detector and tiny-0 a classifier"),
        ([detector, untrained("c")], {"loss": "kd"}, "detectors have log-odds"),
        ([detector, untrained("c")], {"temperature": 3.0}, "temperature is a setting of classifiers"),
        ([tiny("ab"), tiny("cd")], {"anchors": 5}, "anchors is a setting of detectors"),
        ([detector, untrained("c")], {"anchors": 0}, "anchors 0 should be greater than or equal to 1"),
        ([detector, untrained("c")], {"box_weight": float("nan")}, "box_weight nan should be a finite number"),
        ([detector, untrained("c")], {"arch": f"{TINY},norm=frozen"}, "random weights cannot stay as they are"),
        ([detector, untrained("c")], {"arch": "retinanet_resnet19_fpn"}, "unknown detector 'retinanet_resnet19_fpn'"),
        ([detector, untrained("c")], {"weights": "nowhere.pth"}, "no such weights: nowhere.pth"),
        ([detector, untrained("c")], {"arch": "retinanet:timm/vit_tiny_patch16_224"}, "a pyramid needs 8, 16 and 32"),
        ([detector, untrained("c")], {"arch": "retinanet:timm/nonsense"}, "cannot make a backbone of timm/nonsense"),
    )
    for teachers, settings, words in cases:
        given = settings if isinstance(teachers[0], dmc.Specialist) else {"weights": None, **settings}
        with pytest.raises(DmcError, match=words):
            dmc.consolidate(teachers, unlabeled, **given)


@pytest.mark.slow
def test_the_whole_story_on_the_command_line(dmc: Dmc, squares: Path, unlabeled: Path, tmp_path: Path) -> None:
    """Two detectors that know different squares become one, which then learns a third."""
    short = ("--weights", "random", "--lr-shape", "one-cycle", "--lr", 0.005, "--size", 64)
    arch = ("--arch", TINY)
    for name, kinds, val in (("rg", "red,green", f"{squares},split=val"), ("b", "blue", "auto")):
        command = ("train", squares, "-o", tmp_path / name, *arch, "--keep", kinds, "--epochs", 15, *short)
        said = dmc(*command, "--val", val)
        assert said.code == 0, said.err
        assert ("held-out mAP" in said.out) == (name == "rg")
    tested = evaluate(load_detector(tmp_path / "rg"), f"{squares},split=val", keep=["red", "green"])
    line = f"{tested.mean:.1%} on 20 images ({squares} (val))"
    assert f"- held-out mAP: {line}" in (tmp_path / "rg" / "README.md").read_text()
    said = dmc("check", tmp_path / "rg", tmp_path / "b", "--aux", unlabeled, "--weights", "random")
    assert said.code == 0, said.err
    assert "64 pixels on the shorter side" in said.out
    merge = ("consolidate", tmp_path / "rg", tmp_path / "b", "--aux", unlabeled, "-o", tmp_path / "m")
    said = dmc(*merge, "--epochs", 25, *short)
    assert said.code == 0, said.err
    assert json.loads((tmp_path / "m" / "config.json").read_text())["dmc"]["task"] == "object-detection"
    test = f"{squares},split=val"
    found = json.loads(dmc("evaluate", tmp_path / "m", test, "--json").out)
    assert found["images"] == 20
    assert found["per_class"]["red"]["area"] > 0.5
    assert found["per_class"]["green"]["area"] > 0.5
    assert found["per_class"]["blue"]["area"] > 0.2  # its teacher had one class
    assert found["data"].endswith("(val)")
    assert "VOC07 AP" in dmc("evaluate", tmp_path / "m", test).out
    image = squares / "JPEGImages" / "val_000.jpg"
    said = dmc("predict", tmp_path / "m", image, "--json", "--draw", tmp_path / "drawn", "--min-score", 0.2)
    (answer,) = json.loads(said.out)
    assert {"class", "score", "box"} == set(answer["objects"][0])
    with Image.open(tmp_path / "drawn" / "val_000.png") as picture:
        assert picture.size == (96, 80)
    assert "val_000.jpg: " in dmc("predict", tmp_path / "m", image).out
    (answer,) = json.loads(dmc("predict", tmp_path / "m", image, "--json", "--min-score", 0.001).out)
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    said = dmc("predict", tmp_path / "m", tmp_path / "broken.jpg", image, "--json", "--draw", tmp_path / "beside")
    broken, good = json.loads(said.out)
    assert (said.code, broken) == (2, {"image": str(tmp_path / "broken.jpg"), "error": "it is not an image"})
    assert good["image"] == str(image)
    assert [path.name for path in (tmp_path / "beside").iterdir()] == ["val_000.png"]
    with Image.open(image) as picture:
        one, none, same = predict(tmp_path / "m", [image, tmp_path / "broken.jpg", np.array(picture)])
    assert none is None
    assert [sighting.box for sighting in same] == [sighting.box for sighting in one] != []
    scores = [found["score"] for found in answer["objects"]]
    assert 0.001 <= min(scores) < MIN_SCORE  # below the scores that an evaluation counts
    for wrong, words in (
        (("--min-score", 1.1), "less than or equal to 1"),
        ((image, "--draw", tmp_path / "d"), "both would be drawn"),
        ((tmp_path / "drawn" / "val_001.png", "--draw", tmp_path / "drawn"), "val_001.png would be overwritten"),
        (("--top", 1), "top is a setting of classifiers"),
    ):
        said = dmc("predict", tmp_path / "m", image, *wrong)
        assert (said.code, words in said.err) == (2, True), said.err
    said = dmc("learn", tmp_path / "rg", squares, "--keep", "blue", "--aux", unlabeled, "-o", tmp_path / "l",
               "--specialist-epochs", 1, "--epochs", 1, *short)  # fmt: skip
    assert said.code == 0, said.err
    assert "3 classes" in said.out
    assert f"dmc learn, new classes from {squares}" in said.out
    assert dmc("evaluate", tmp_path / "rg", test).code == 2  # it does not know blue
