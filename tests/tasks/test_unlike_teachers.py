"""Two teachers whose logits differ in size: one drowns the other in the paper's form, but not by default."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import dmc
from dmc.bench.digits import digits, letters
from dmc.config import ClassifierConsolidateConfig
from dmc.data.decode import decode
from dmc.data.sources import Source
from dmc.data.subsets import ListedImages, split_off
from dmc.demos.classification import NETWORK, NEW, OLD, PREPROCESSING
from dmc.errors import DmcError
from dmc.estimate import estimated
from dmc.models.specialist import Specialist
from dmc.tasks.classifier_consolidation import ClassifierConsolidation
from tests.conftest import as_specialist, classifiers, tiny

QUICK = dmc.Schedule(epochs=8, shape="one-cycle", batch_size=32, flip=False, weight_decay=5e-3)
SHORT = QUICK.changed({"epochs": 6, "weight_decay": 1e-4})
FAINT = 0.15


@pytest.fixture(scope="module")
def teachers() -> list[Specialist]:
    """Give two teachers; the second answers as surely as the first, but its logits are a seventh as large."""
    data = digits(0, test=False)
    loud, faint = (
        as_specialist(dmc.train(data, keep=part, arch=NETWORK.arch, preprocessing=PREPROCESSING, schedule=QUICK))
        for part in (OLD, NEW)
    )
    with torch.no_grad():
        for parameter in faint.module.get_submodule("fc").parameters():
            parameter.mul_(FAINT)
    loud.name, faint.name = "loud", "faint"
    return [loud, faint]


@pytest.fixture(scope="module")
def mended(teachers: list[Specialist]) -> Specialist:
    return classifiers(teachers, letters(2000, 0), SHORT).run()


@pytest.mark.slow
def test_the_faint_teacher_is_drowned_in_the_papers_form_only(teachers: list[Specialist], mended: Specialist) -> None:
    test = digits(0, test=True)
    literal = classifiers(teachers, letters(2000, 0), SHORT, **ClassifierConsolidateConfig.paper_form).run()
    before, after = dmc.evaluate(literal, test), dmc.evaluate(mended, test)
    assert before.of(NEW) < 0.35 < 0.75 < before.of(OLD)
    assert min(after.of(OLD), after.of(NEW)) > 0.6
    assert after.accuracy > before.accuracy + 0.1
    assert mended.parameter_count == literal.parameter_count  # an ordinary model

    (warning,) = [line for line in literal.provenance["warning"] if "faint" in line]
    assert warning.startswith("the classes of faint win only ")
    assert "balance" in warning
    assert "warning" not in mended.provenance


@pytest.mark.slow
def test_balanced_blocks_win_by_their_number_of_classes_on_unseen_images(
    teachers: list[Specialist], tmp_path: Path
) -> None:
    """The numbers of classes may differ: five and two."""
    cut = [teachers[0], teachers[1].keep(["5", "6"])]
    plan = ClassifierConsolidation(cut, letters(2000, 0), schedule=SHORT.changed({"epochs": 2}))
    assert plan.held_out == 200
    _, unseen = plan.open_loaders(tmp_path)
    student = plan.run()
    images = next(unseen.in_order(200)).images_N3HW
    answers = student.logits(images).argmax(dim=1)
    assert (answers >= 5).float().mean() == pytest.approx(2 / 7, abs=0.02)


@pytest.mark.slow
def test_probabilities_mean_what_the_teachers_own_do(teachers: list[Specialist], mended: Specialist) -> None:
    """Among a teacher's classes the student is, on average, about as sure as that teacher is."""
    images = torch.stack([decode(record, mended.transform) for record in letters(200, 1).records()])
    with torch.no_grad():
        own = [float(teacher.logits(images).softmax(dim=1).amax(dim=1).mean()) for teacher in teachers]
        logits_NT = mended.logits(images)
        mine = [float(part.softmax(dim=1).amax(dim=1).mean()) for part in (logits_NT[:, :5], logits_NT[:, 5:])]
    assert sum(mine) == pytest.approx(sum(own), abs=0.2)


@pytest.mark.slow
def test_check_shows_who_would_be_drowned(teachers: list[Specialist]) -> None:
    found = estimated(ClassifierConsolidation(teachers, letters(600, 0), schedule=QUICK)).teachers
    assert found["drowned"] == ["faint"]
    assert found["wins"][1] < 0.25 < 0.5 == found["fair"][1]
    assert sum(found["wins"]) == pytest.approx(1)
    assert found["scale"] == "auto"


@pytest.mark.slow
def test_balance_is_for_outputs_that_compete() -> None:
    sigmoid = [
        Specialist(tiny(n, s).module, n, tiny("a").preprocessing, "sigmoid", "cifar_resnet8")
        for n, s in (("ab", 1), ("cd", 2))
    ]
    noise = np.zeros((8, 16, 16, 3), np.uint8)
    plain = ClassifierConsolidation(sigmoid, noise)
    assert (plain.config.scale, plain.config.balance) == ("none", False)
    with pytest.raises(DmcError, match="balance is for softmax outputs"):
        classifiers(sigmoid, noise, QUICK, balance=True)


@pytest.mark.slow
def test_held_out_images_are_not_among_the_others(tmp_path: Path) -> None:
    source: Source = letters(100, 0)
    sample, rest = split_off(source, 30, seed=5)
    assert (len(sample), len(rest)) == (30, 70)
    names = {record.name for record in sample.records()}
    for seed in (None, 1, 2):
        others = {record.name for record in rest.records(seed)}
        assert len(others) == 70
        assert not names & others
    assert isinstance(sample, ListedImages)
    again, _ = split_off(source, 30, seed=5)
    assert {record.name for record in again.records()} == names
