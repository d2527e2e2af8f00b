"""What is chosen where the user says nothing: by the images, by the teachers, by the time available."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import dmc as library
from dmc.choices import clamped, shorter_side, timed
from dmc.config import ConsolidateConfig, Length, NetworkConfig
from dmc.cost import Cost, measured
from dmc.data.open import open_images, open_labeled
from dmc.data.preprocess import Preprocessing
from dmc.data.readers import ArrayImages
from dmc.errors import DmcError
from dmc.jobs import student_for
from dmc.models.specialist import Specialist
from dmc.schedule import CONSOLIDATION, SPECIALIST, Schedule
from dmc.tasks import task_for, task_of
from dmc.tasks.classification import Classification
from dmc.tasks.detection import Detection
from tests.conftest import Answer, bad, tiny, write_images

Dmc = Callable[..., Answer]
CLASSES = Classification()


def images(side: int) -> ArrayImages:
    return ArrayImages(np.zeros((4, side, side + 20, 3), np.uint8))


@pytest.mark.parametrize(
    ("side", "arch", "size"),
    [(8, "cifar_resnet32", 8), (32, "cifar_resnet32", 32), (48, "cifar_resnet32", 32), (96, "resnet18", 96),
     (333, "resnet18", 128)],
)  # fmt: skip
def test_the_network_suits_the_images(side: int, arch: str, size: int) -> None:
    assert shorter_side(images(side)) == side
    chosen = CLASSES.network_for(images(side), NetworkConfig(weights=None))
    assert (chosen.arch, chosen.size) == (arch, size)
    assert f"about {side} pixels" in str(chosen)
    assert (
        CLASSES.network_for(images(side), NetworkConfig(size=64, weights=None)).size == 64
    )  # what the user asks for is taken


def test_a_detector_is_chosen_where_there_are_boxes(tmp_path: Path) -> None:
    (tmp_path / "VOC" / "Annotations").mkdir(parents=True)
    assert isinstance(task_for(tmp_path / "VOC", None), Detection)
    assert isinstance(task_for(tmp_path / "VOC", "resnet18"), Classification)
    assert isinstance(task_for("instances.json,images=here", None), Detection)
    assert isinstance(task_for(tmp_path, None), Classification)
    chosen = Detection().network_for(images(200), NetworkConfig())
    assert (chosen.arch, chosen.size, chosen.weights) == ("retinanet_resnet18_fpn", 192, "imagenet")


def test_schedules_are_as_long_as_the_images_ask_for() -> None:
    few = CLASSES.supervised_schedule(500, pretrained=False)
    many = CLASSES.supervised_schedule(50_000, pretrained=False)
    assert (few.epochs, few.batch_size, many.epochs, many.batch_size) == (200, 32, 10, 128)
    assert CLASSES.paper_schedules == (SPECIALIST, CONSOLIDATION)
    assert CLASSES.distillation_schedule(4_000, pretrained=False).epochs == 75
    tuned = CLASSES.supervised_schedule(1_000, pretrained=True)
    assert (tuned.epochs, tuned.lr) == (20, 0.01)
    assert [clamped(wanted, 4, 10) for wanted in (0.2, 5.1, 99)] == [4, 6, 10]


def test_the_student_is_as_the_largest_of_all_teachers() -> None:
    """The first teacher is not the largest."""
    large = Specialist.untrained("cifar_resnet14", "cd", Preprocessing(size=24))
    large.name = "large"
    teachers = [tiny("ab"), large]
    chosen = student_for(task_of(teachers), teachers, images(32), ConsolidateConfig(weights=None))
    assert (chosen.arch, chosen.size, chosen.why) == ("cifar_resnet14", 24, "as the largest of the teachers, large")
    nameless = Specialist(tiny("ab").module, "ab", Preprocessing(size=16))
    chosen = student_for(task_of([nameless]), [nameless], images(32), ConsolidateConfig(weights=None))
    assert (chosen.arch, chosen.size) == ("cifar_resnet32", 32)  # by the images


def test_a_budget_of_time_becomes_epochs(caplog: pytest.LogCaptureFixture) -> None:
    """Ten minutes at 50 images/s are 30,000 images: 7 passes over 4,000."""
    usual, cost = Schedule(epochs=50), Cost(student_flops=1, student_seconds=1 / 50)
    with caplog.at_level(logging.INFO, "dmc"):
        assert timed(Length(minutes=10), usual, 4_000, cost, "net").epochs == 7
        assert timed(Length(minutes=10, share=0.5), usual, 4_000, cost, "net").epochs == 3
        assert timed(Length(), usual, 4_000, cost, "net") == usual
    assert [record.getMessage() for record in caplog.records] == [
        "net: 7 epochs of 4,000 images, about 9 min 20 s",
        "net: 3 epochs of 4,000 images, about 4 min 00 s",
        "net: 50 epochs of 4,000 images, about 1 h 06 min",
    ]
    with pytest.raises(DmcError, match="a pass over 4,000 images takes 1 min 20 s: allow more"):
        timed(Length(minutes=1), usual, 4_000, cost, "net")
    # What passes before the first epoch counts: eight of ten minutes are left for 24,000 images.
    assert timed(Length(minutes=10), usual, 4_000, cost, "net", before=119).epochs == 6
    with pytest.raises(DmcError, match=r"takes 1 min 20 s, and to select them 10 min 00 s: allow more"):
        timed(Length(minutes=10), usual, 4_000, cost, "net", before=600)
    with pytest.raises(DmcError, match="give epochs or minutes, not both"):
        Length.taken_from({"minutes": 1, "epochs": 2})


def test_photographs_get_a_network_for_photographs(dmc: Dmc, tmp_path: Path) -> None:
    """They may begin with random weights, and a time too short for one pass is refused before anything is written."""
    for name in ("cat", "dog"):
        write_images(tmp_path / "photos" / name, 3, size=140)
    said = dmc("train", tmp_path / "photos", "-o", tmp_path / "m", "--minutes", 0.001, "--weights", "random")
    bad(said, "a pass over 6 images takes ", "allow more")
    assert not (tmp_path / "m").exists()


def test_python_takes_what_the_command_line_takes(tmp_path: Path, labeled_folder: Path, aux_folder: Path) -> None:
    teachers = [tiny("ab", 1), tiny("cd", 2)]
    merged = library.consolidate(teachers, aux_folder, tmp_path / "m", epochs=2, batch_size=8, lr=0.05)
    run = json.loads((tmp_path / "m" / "run.json").read_text())
    assert (run["schedule"]["epochs"], run["schedule"]["batch_size"], run["schedule"]["lr"]) == (2, 8, 0.05)
    assert (run["schedule"]["shape"], run["scale"], run["balance"]) == ("one-cycle", "auto", True)
    assert merged.names == ("a", "b", "c", "d")
    found = library.check(teachers, aux_folder, epochs=3)
    assert (found["estimate"]["epochs"], found["estimate"]["images"]) == (3, 72)
    with pytest.raises(DmcError, match=r"epochs 0 should be greater than or equal to 1"):
        library.consolidate(teachers, aux_folder, epochs=0)
    with pytest.raises(DmcError, match=r"profile 'papper' should be 'auto' or 'paper'; did you mean 'paper'\?"):
        library.train(labeled_folder, arch="cifar_resnet8", profile="papper")  # type: ignore[arg-type]


def test_the_papers_profile_is_the_papers(tmp_path: Path, aux_folder: Path) -> None:
    """It has the paper's schedule and literal method, all images to train on, the first teacher's architecture."""
    teachers = [tiny("ab", 1), Specialist.untrained("cifar_resnet14", "cd", Preprocessing(size=16))]
    library.consolidate(teachers, aux_folder, tmp_path / "m", profile="paper", epochs=1)
    run = json.loads((tmp_path / "m" / "run.json").read_text())
    assert run["schedule"] == json.loads(CONSOLIDATION.changed({"epochs": 1}).model_dump_json())
    assert (run["scale"], run["balance"], run["aux"]["held_out"]) == ("none", False, 0)
    assert (run["student"]["arch"], run["weights"]) == ("cifar_resnet8", None)


def test_a_resumed_run_keeps_what_was_chosen(
    dmc: Dmc, tmp_path: Path, two_models: tuple[Path, Path], aux_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a faster machine the minutes would allow more epochs; the run keeps those it began with."""
    from dmc.training import loop

    merge = ("consolidate", *two_models, "--aux", aux_folder, "-o", tmp_path / "m", "--minutes", 0.01)
    monkeypatch.setattr("dmc.estimate.measured", lambda *_: (0.0, 0.0))
    monkeypatch.setattr("dmc.estimate.step_cost", lambda *_: (1.0, 1 / 100))  # 60 images: 2 passes over 24
    steps = loop.require_finite
    monkeypatch.setattr(loop, "require_finite", lambda at, network: 1 / 0 if at.step > 1 else steps(at, network))
    monkeypatch.delenv("DMC_TRACEBACK")
    assert dmc(*merge, "--checkpoint-every", 0).code == 2
    monkeypatch.setattr(loop, "require_finite", steps)
    monkeypatch.setattr("dmc.estimate.step_cost", lambda *_: (1.0, 1 / 900))
    said = dmc(*merge, "--resume")
    assert said.code == 0, said.err
    assert json.loads((tmp_path / "m" / "run.json").read_text())["schedule"]["epochs"] == 2
    assert "2 epochs, 48 images seen" in said.out


def test_train_and_val_are_found_by_the_sources(labeled_folder: Path, aux_folder: Path) -> None:
    assert shorter_side(open_labeled(labeled_folder)) == shorter_side(open_images(aux_folder)) == 20


def test_the_cost_of_a_run_counts_the_passes_that_ask_the_teachers() -> None:
    """A pass over 100 images takes 3 s if the teachers are asked, 1 s if not; the cache has two views."""
    cost = Cost(student_flops=6e9, student_seconds=0.01, asking_flops=4e9, asking_seconds=0.02, views=2)
    assert cost.seconds(100, epochs=1) == pytest.approx(3)
    assert cost.seconds(100, epochs=10) == pytest.approx(2 * 3 + 8 * 1)
    assert [cost.epochs_in(seconds, 100) for seconds in (2.9, 3.1, 6.1, 7.1, 14.1)] == [0, 1, 2, 3, 10]
    assert cost.flops(100, epochs=10) == pytest.approx(100 * (10 * 6e9 + 2 * 4e9))
    assert cost.flops_per_second == pytest.approx(1e10 / 0.03)
    every = replace(cost, views=None)
    assert every.seconds(100, epochs=10) == pytest.approx(30)
    assert every.epochs_in(14.1, 100) == 4


@pytest.mark.parametrize("groups", [1, 4, 8])
@pytest.mark.parametrize("wanted", [True, False])
def test_a_step_of_grouped_convolutions_has_the_operations_that_it_has(groups: int, wanted: bool) -> None:
    """Forward, 2 x 9 operations for each pixel and each pair of channels in a group; backward as many per gradient."""
    images = torch.zeros(2, 8, 6, 5, requires_grad=wanted)
    convolution = nn.Conv2d(8, 8, 3, padding=1, groups=groups)
    forward = 2 * 9 * (6 * 5) * (8 * 8 // groups)
    flops, _ = measured(lambda: convolution(images).sum().backward(), images=2)
    assert flops == (3 if wanted else 2) * forward
