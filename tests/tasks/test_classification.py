"""Consolidation as a whole, on tiny real models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dmc
from dmc.bench.digits import digits, letters
from dmc.config import ClassifierConsolidateConfig, LossName, Output, RunConfig, Scale
from dmc.data.batch import Batch
from dmc.data.preprocess import Preprocessing
from dmc.demos.classification import NETWORK, NEW, OLD, PREPROCESSING
from dmc.device import index
from dmc.distill.classifier_objective import Distillation
from dmc.distill.teachers import Teachers
from dmc.errors import DmcError
from dmc.methods.importance import Regularised
from dmc.tasks.classifier_consolidation import ClassifierConsolidation
from dmc.training.classification import Supervised
from dmc.training.labeled import fit_labeled
from tests.conftest import SMALL, as_specialist, classifiers, require_unlike, tiny, write_images

NOISE = np.random.default_rng(0).integers(0, 256, (32, 16, 16, 3), dtype=np.uint8)
SCALES: tuple[Scale, ...] = ("none", "pool-std")
QUICK = dmc.Schedule(epochs=2, batch_size=16)


@pytest.mark.slow
def test_learning_from_letters_beats_fine_tuning_on_digits() -> None:
    data, test = digits(0, test=False), digits(0, test=True)
    quick = dmc.Schedule(epochs=8, shape="one-cycle", batch_size=32, flip=False, weight_decay=5e-3)
    old, new = (
        as_specialist(dmc.train(data, keep=part, arch=NETWORK.arch, preprocessing=PREPROCESSING, schedule=quick))
        for part in (OLD, NEW)
    )
    merged = dmc.consolidate([old, new], letters(1200, 0), schedule=quick)
    wide = old.widened(NEW)
    tuned = fit_labeled(wide, data.keep(NEW), Supervised(wide, NEW), quick)
    ours, theirs = dmc.evaluate(merged, test), dmc.evaluate(tuned, test)
    assert ours.images == theirs.images == 540
    assert theirs.of(OLD) < 0.2 < 0.9 < theirs.of(NEW)  # it forgets
    assert min(ours.of(OLD), ours.of(NEW)) > 0.65
    assert ours.accuracy > theirs.accuracy + 0.2
    assert merged.parameter_count == tuned.parameter_count


def test_the_student_starts_at_random_and_teachers_do_not_change() -> None:
    teachers = [tiny("ab", 1), tiny("cd", 2)]
    prints = [t.fingerprint for t in teachers]
    plan = ClassifierConsolidation(teachers, NOISE, schedule=QUICK)
    own = plan.student.module.state_dict()["conv1.weight"]
    assert not any(torch.equal(own, t.module.state_dict()["conv1.weight"]) for t in teachers)
    other = classifiers(teachers, NOISE, QUICK, seed=1).student.module.state_dict()["conv1.weight"]
    assert not torch.equal(own, other)
    merged = plan.run()
    assert merged.names == ("a", "b", "c", "d")
    assert [t.fingerprint for t in teachers] == prints
    assert merged.fingerprint == dmc.consolidate(teachers, NOISE, schedule=QUICK).fingerprint


def test_no_layer_of_the_student_comes_from_a_teacher(labeled_folder: Path, tmp_path: Path) -> None:
    """Trained by next to nothing, a student is still what it was at the start; so is the specialist of `learn`."""
    teachers = [tiny("ab", 1), tiny("cd", 2)]
    still = dmc.Schedule(epochs=1, batch_size=16, lr=1e-12, weight_decay=0)
    merged = dmc.consolidate(teachers, NOISE, schedule=still, balance=False)
    quiet: dict[str, Any] = {"schedule": still, "specialist_schedule": still, "balance": False}
    learned = dmc.learn(teachers[0], labeled_folder, NOISE, tmp_path / "l", **quiet)
    specialist = dmc.load(tmp_path / "l" / "specialist")
    for new, old in ((merged, teachers[0]), (merged, teachers[1]), (learned, teachers[0]), (specialist, teachers[0])):
        require_unlike(new, old)


def test_the_task_is_eq_3_on_the_teachers_targets() -> None:
    """The loss is compared with the formula, spelled out class by class."""
    old, new, student = tiny("ab", 1), tiny("cde", 2), tiny("abcde", 3)
    images = torch.from_numpy(NOISE[:2]).permute(0, 3, 1, 2)
    loss = Distillation(student, Teachers([old, new]), "l2", 1.0).losses(student.module, Batch(images, torch.zeros(2)))[
        "loss"
    ]
    total = 0.0
    for i in range(2):
        answer = student.logits(images)[i].tolist()
        wanted = []
        for teacher in (old, new):
            logits = teacher.logits(images)[i].tolist()
            wanted += [y - sum(logits) / len(logits) for y in logits]
        total += sum((y - w) ** 2 for y, w in zip(answer, wanted, strict=True)) / 5
    assert loss.item() == pytest.approx(total / 2, rel=1e-5)
    assert loss.requires_grad
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is None for t in (old, new) for p in t.module.parameters())


def test_three_teachers_of_different_kinds_and_a_student_of_another() -> None:
    """Architecture, input size, colour, interpolation and number of classes may all differ."""
    grey = Preprocessing(12, (0.4,), (0.2,), "bicubic")
    linear = nn.Sequential(nn.Flatten(), nn.Linear(12 * 12, 2))
    teachers = [
        dmc.Specialist(linear, ["x", "y"], grey, name="mine"),
        dmc.Specialist.untrained("test_resnet", "abc", Preprocessing(24, interpolation="nearest")),
        tiny("bcd", 2),
    ]
    plan = classifiers(teachers, NOISE, QUICK, arch="cifar_resnet8", size=8)
    assert plan.transform.size == 24
    merged = plan.run()
    assert merged.names == ("x", "y", "a", "b", "c", "d")
    assert merged.preprocessing.size == 8
    with pytest.raises(DmcError, match="mine has no architecture name; say which one the student has"):
        ClassifierConsolidation(teachers, NOISE)


@pytest.mark.parametrize("loss", ["l1", "kd"])
def test_other_losses_train_too(loss: LossName) -> None:
    teachers = [tiny("ab", 1), tiny("cd", 2)]
    losses = []
    for epochs in (1, 12):
        schedule = dmc.Schedule(epochs=epochs, batch_size=16, lr=0.02, drops=(), pad=0, flip=False)
        student = dmc.consolidate(
            teachers, NOISE, loss=loss, schedule=schedule, **ClassifierConsolidateConfig.paper_form
        )
        images = torch.from_numpy(NOISE).permute(0, 3, 1, 2)
        task = Distillation(student, Teachers(teachers), loss, 2.0)
        losses.append(task.losses(student.module, Batch(images, torch.zeros(32)))["loss"].item())
    assert losses[1] < 0.7 * losses[0]


def test_learn_trains_a_specialist_and_merges_it(tmp_path: Path, labeled_folder: Path, aux_folder: Path) -> None:
    old = tiny("ab", 1)
    merged = dmc.learn(old, labeled_folder, aux_folder, tmp_path / "next", specialist_schedule=QUICK, schedule=QUICK)
    assert merged.names == ("a", "b", "green", "red")
    specialist = dmc.load(tmp_path / "next" / "specialist")
    assert specialist.names == ("green", "red")
    assert specialist.preprocessing == merged.preprocessing == old.preprocessing
    assert dmc.load(tmp_path / "next").fingerprint == merged.fingerprint


def test_specialists_learn_what_they_are_shown(labeled_folder: Path) -> None:
    schedule = dmc.Schedule(epochs=6, batch_size=8, lr=0.02)
    outputs: tuple[Output, ...] = ("softmax", "sigmoid")
    for output in outputs:
        model = dmc.train(labeled_folder, arch="cifar_resnet8", size=16, schedule=schedule, output=output)
        assert model.output == output
        assert dmc.evaluate(as_specialist(model), labeled_folder).accuracy == 1.0


def test_evaluation_matches_classes_by_name_and_counts_each(labeled_folder: Path) -> None:
    class Answer(nn.Module):
        """A network that always answers with the second class."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor([0.0, 1.0, 0.5]).expand(len(x), -1)

    said_red = dmc.evaluate(dmc.Specialist(Answer(), ["green", "red", "blue"], SMALL), labeled_folder)
    assert said_red.per_class == {"green": 0.0, "red": 1.0}
    assert (said_red.accuracy, said_red.images, said_red.skipped) == (0.5, 32, 0)
    said_other = dmc.evaluate(dmc.Specialist(Answer(), ["red", "blue", "green"], SMALL), labeled_folder)
    assert said_other.accuracy == 0.0  # single-head: a class that is not in the data may win
    with pytest.raises(DmcError, match=r"tiny-0 does not know 2 of the 2 classes in .*labeled: 'green', 'red'; known"):
        dmc.evaluate(tiny("ab"), labeled_folder)


def test_broken_teachers_stop_the_run_and_leave_nothing(tmp_path: Path, aux_folder: Path) -> None:
    broken = tiny("cd", 2)
    torch.nn.init.constant_(broken.module.fc.bias, float("inf"))  # type: ignore[union-attr, arg-type]
    broken.name = "broken-one"
    with pytest.raises(DmcError, match="broken-one gives answers that are not finite"):
        dmc.consolidate([tiny("ab"), broken], aux_folder, tmp_path / "out", schedule=QUICK)
    assert not (tmp_path / "out").exists()


class Breaking(nn.Module):
    """A teacher that fails at its third answer."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.answers += 1
        return x.mean((2, 3)) * (float("nan") if self.answers > 3 else 1.0)  # the first answer was the head check


def test_a_teacher_that_breaks_in_mid_run_keeps_the_last_checkpoint(tmp_path: Path, aux_folder: Path) -> None:
    breaking = dmc.Specialist(Breaking(), "cde", SMALL, name="breaking")
    plan = classifiers([tiny("ab"), breaking], aux_folder, QUICK, scale="none")
    with pytest.raises(DmcError, match="breaking gives answers that are not finite"):
        plan.run(tmp_path / "out", RunConfig(checkpoint_every=0))
    state = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)
    assert state["position"]["step"] == 2
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_a_stream_with_a_few_broken_images_reaches_its_end(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "aux", 38)
    for i in range(2):
        (folder / f"broken-{i}.png").write_bytes(b"no")
    merged = dmc.consolidate([tiny("ab", 1), tiny("cd", 2)], folder, schedule=QUICK, memory=0)
    assert merged.provenance["auxiliary images"] == f"{folder} (40, 2 skipped)"


def test_pool_std_reaches_the_training() -> None:
    teachers = [tiny("ab", 1), tiny("cd", 2)]
    plain, scaled = (dmc.consolidate(teachers, NOISE, schedule=QUICK, scale=s) for s in SCALES)
    assert plain.fingerprint != scaled.fingerprint


def test_learn_finds_mistakes_before_it_trains(tmp_path: Path, labeled_folder: Path, aux_folder: Path) -> None:
    with pytest.raises(DmcError, match="temperature 0 should be greater than 0"):
        dmc.learn(tiny("ab"), labeled_folder, aux_folder, tmp_path / "out", loss="kd", temperature=0)
    for i in range(5):
        (aux_folder / f"broken-{i}.png").write_bytes(b"no")
    with pytest.raises(DmcError, match=r"5 of 29 images .* cannot be decoded"):
        dmc.learn(tiny("ab"), labeled_folder, aux_folder, tmp_path / "out", schedule=QUICK)
    assert not (tmp_path / "out").exists()


def test_settings_that_cannot_be() -> None:
    sigmoid = [
        dmc.Specialist(tiny(n, s).module, n, SMALL, "sigmoid", "cifar_resnet8") for n, s in (("ab", 1), ("cd", 2))
    ]
    with pytest.raises(DmcError, match="'kd' compares softmax distributions"):
        classifiers(sigmoid, NOISE, QUICK, loss="kd")
    with pytest.raises(DmcError, match="temperature 0 should be greater than 0"):
        classifiers([tiny("ab"), tiny("cd")], NOISE, QUICK, loss="kd", temperature=0)


def test_a_teacher_that_breaks_after_the_training_is_refused_before_it_is_compared(
    aux_folder: Path, tmp_path: Path
) -> None:
    """The student would be balanced by answers that are not numbers."""
    merge = classifiers([tiny("ab", 1), tiny("cd", 2)], aux_folder, QUICK)
    _, unseen = merge.open_loaders(tmp_path)
    parameter = next(merge.teachers.specialists[1].module.parameters())
    with torch.no_grad():
        parameter.fill_(float("nan"))
    for act in (merge.adjust, merge.compare):
        with pytest.raises(DmcError, match="tiny-2 gives answers that are not finite"):
            act(unseen)


def test_a_sample_of_the_images_is_taken_by_whoever_merges(aux_folder: Path) -> None:
    assert len(classifiers([tiny("ab", 1), tiny("cd", 2)], aux_folder, QUICK, aux_limit=5).aux) == 5
    assert dmc.check([tiny("ab", 1), tiny("cd", 2)], aux_folder, aux_limit=5)["aux"]["images"] == 5


def test_several_models_are_evaluated_side_by_side(labeled_folder: Path) -> None:
    first, second = tiny(["red", "a"], 1), tiny(["green", "b"], 2)
    together = dmc.evaluate(Teachers([first, second]), labeled_folder)
    listed = dmc.evaluate([first, second], labeled_folder)
    assert listed.as_dict() == together.as_dict()


def test_what_inference_has_made_does_not_spoil_a_training() -> None:
    """An index is made once for each device, perhaps within a user's inference mode; gradients need it later."""
    index.cache_clear()
    model, images = tiny("abx", 1), torch.zeros((2, 3, 16, 16), dtype=torch.uint8)
    with torch.inference_mode():
        model.keep("ab").logits(images)  # the first two columns
    loss = Regularised(model, "ab").losses(model.module, Batch(images, torch.tensor([0, 1])))["loss"]
    loss.backward()  # type: ignore[no-untyped-call]


def test_a_fingerprint_does_not_change_with_the_names_of_classes_in_the_code() -> None:
    """Runs of earlier versions are known by it."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    for parameter in module.parameters():
        nn.init.constant_(parameter, 0.5)
    model = dmc.Specialist(module, ["a", "b"], Preprocessing(2), name="plain")
    assert model.fingerprint == "4871e42e432c0349"
