"""The distinctive quantity of every other method, against values worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dmc.data.batch import Batch
from dmc.data.preprocess import Preprocessing
from dmc.data.readers import ArrayImages
from dmc.data.sources import Source
from dmc.distill.teachers import Teachers
from dmc.methods import exemplars
from dmc.methods.base import Learned, Lesson
from dmc.methods.dmc import DMC
from dmc.methods.dmc_plus import DMCPlus
from dmc.methods.exemplars import herding
from dmc.methods.fixed_representation import FixedRepresentation
from dmc.methods.icarl import ICaRL, NearestMean, SigmoidDistillation
from dmc.methods.inference_twice import InferenceTwice
from dmc.methods.lwf import LwF, WithoutForgetting
from dmc.methods.lwf_mc import LwFMC
from dmc.models.specialist import Specialist
from dmc.schedule import Schedule
from dmc.training.classification import Supervised
from tests.conftest import load_specialist, require_unlike, tiny
from tests.methods.conftest import lesson


def test_lwf_distils_each_earlier_group_in_a_softmax_of_its_own() -> None:
    old = tiny("abc", 1)
    wide = old.widened("de")
    images = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 1, 0])
    found = WithoutForgetting(wide, old, ("d", "e"), [2, 1], strength=3.0).losses(wide.module, Batch(images, labels))
    assert found["distillation"].item() == pytest.approx(0, abs=1e-6)  # nothing has been forgotten yet
    other = tiny("abcf", 2)
    wider = wide.widened("f")
    found = WithoutForgetting(wider, other, ("d", "e"), [2, 2], strength=3.0).losses(
        wider.module, Batch(images, labels)
    )
    logits, before = wide.widened("f").logits(images), other.logits(images)
    total = torch.zeros(())
    for head in (slice(0, 2), slice(2, 4)):
        p, q = (before[:, head] / 2).softmax(1), (logits[:, head] / 2).softmax(1)
        total = total + (p * (p / q).log()).sum(1).mean()
    assert found["distillation"].item() == pytest.approx(total.item(), rel=1e-4)
    wanted = F.cross_entropy(logits[:, 3:5], labels) + 3 * total  # the new ones have a head of their own, too
    assert found["loss"].item() == pytest.approx(wanted.item(), rel=1e-5)


def test_lwf_remembers_its_groups(tmp_path: Path) -> None:
    method = LwF()
    learned = method.begin(Learned([tiny("ab", 1)]), lesson(noise(["a", "b"]), tmp_path / "0"))
    for i, names in enumerate((["c", "d"], ["e"]), start=1):
        learned = method.learn(learned, lesson(noise(names), tmp_path / str(i)))
    assert learned.notes["heads"].tolist() == [2, 2, 1]
    assert learned.specialists[0].names == tuple("abcde")


def noise(names: list[str], seed: int = 0, count: int = 16) -> ArrayImages:
    images = np.random.default_rng(seed).integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
    return ArrayImages(images, np.arange(count) % len(names), names)


@pytest.mark.parametrize("method", ["lwf", "lwf.mc"])
def test_the_old_model_is_no_part_of_the_graph(method: str) -> None:
    old = tiny("ab", 1)
    wide = old.widened("cd")
    losses: dict[str, Supervised] = {
        "lwf": WithoutForgetting(wide, old, ("c", "d"), [2], strength=1.0),
        "lwf.mc": SigmoidDistillation(wide, old, ("c", "d")),
    }
    images = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    found = losses[method].losses(wide.module, Batch(images, torch.tensor([0, 1, 1, 0])))
    found["loss"].backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in wide.module.parameters())
    assert all(parameter.grad is None for parameter in old.module.parameters())


def test_lwf_weighs_the_old_answers_by_the_lessons_strength(tmp_path: Path) -> None:
    """By default with 1, as its paper does (section 4: lambda_o)."""
    assert LwF.strength == 1.0
    start = LwF().begin(Learned([tiny("ab", 1)]), lesson(noise(["a", "b"]), tmp_path / "0"))
    for strength in (0.0, 0.5, 8.0):
        folder = tmp_path / str(strength)
        LwF().learn(start, lesson(noise(["c", "d"]), folder, strength))
        for line in (folder / "lwf" / "metrics.jsonl").read_text().splitlines():
            mean = json.loads(line)
            assert mean["distillation"] > 0
            assert mean["loss"] == pytest.approx(mean["classification"] + strength * mean["distillation"], rel=1e-5)


def test_fixed_representation_moves_nothing_but_the_new_rows(tmp_path: Path) -> None:
    old = tiny("ab", 1)
    learned = FixedRepresentation().learn(Learned([old]), lesson(noise(["c", "d"]), tmp_path)).specialists[0]
    before, after = old.module.state_dict(), learned.module.state_dict()
    for key, value in after.items():
        if key.startswith("fc."):
            assert torch.equal(value[:2], before[key])
            assert not torch.equal(value[2:], old.widened("cd").module.state_dict()[key][2:])
        else:
            assert torch.equal(value, before[key]), key
    assert all(p.requires_grad for p in learned.module.parameters())


def test_inference_twice_keeps_every_specialist(tmp_path: Path) -> None:
    old = tiny("ab", 1)
    learned = InferenceTwice().learn(Learned([old]), lesson(noise(["c", "d"]), tmp_path))
    assert isinstance(learned.model, Teachers)
    assert learned.model.classes.names == ("a", "b", "c", "d")
    images = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)
    parts = [specialist.logits(images) for specialist in (old, learned.specialists[1])]
    expected = torch.cat([logits - logits.mean(1, keepdim=True) for logits in parts], dim=1)
    torch.testing.assert_close(learned.model.logits(images), expected)
    learned.notes["x"] = torch.ones(2)
    learned.save(tmp_path / "saved")
    again = Learned.load(tmp_path / "saved")
    torch.testing.assert_close(again.model.logits(images), learned.model.logits(images))
    assert torch.equal(again.notes["x"], torch.ones(2))


def test_herding_follows_the_mean() -> None:
    """On a line, by hand: the mean is 2; 2 is nearest; then {2, 3} (2.5) ties {2, 1} (1.5) and the first wins."""
    features = torch.tensor([[0.0], [3.0], [2.0], [1.0], [4.0]])
    assert herding(features, 3) == [2, 1, 3]
    assert sorted(herding(features, 9)) == [0, 1, 2, 3, 4]  # never the same image twice


def test_icarl_distils_with_sigmoids() -> None:
    old = tiny("ab", 1)
    wide = tiny("abc", 2)
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    task = SigmoidDistillation(wide, old, ("c", "a"))
    found = task.losses(wide.module, Batch(images, torch.tensor([0, 1])))["loss"].item()  # a new image, an exemplar
    expected = 0.0
    for y, q, truth in zip(wide.logits(images), old.logits(images).sigmoid(), (1.0, 0.0), strict=True):
        for answer, wanted in zip(y.sigmoid().tolist(), [*q.tolist(), truth], strict=True):
            expected -= wanted * np.log(answer) + (1 - wanted) * np.log(1 - answer)
    assert found == pytest.approx(expected / 2, rel=1e-4)


def test_methods_that_distil_sigmoids_begin_with_a_model_trained_with_them(tmp_path: Path) -> None:
    """On images of other classes, a softmax leaves the level of its outputs open; sigmoids learn to stay low."""
    data = noise(["a", "b"])
    shared = Learned([tiny("ab", 1)])
    for method in (LwFMC(), ICaRL()):
        (own,) = method.begin(shared, lesson(data, tmp_path)).specialists  # the second one finds the first one's
        assert own.output == "sigmoid"
        assert own.name == str(tmp_path / "sigmoids")


def test_the_nearest_mean_of_exemplars_wins() -> None:
    class Pixels(nn.Module):
        """Give the mean colours as features."""

        def forward_features(self, x: Tensor) -> Tensor:
            return x

        def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
            return x.mean((2, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.forward_head(x)

    model = Specialist(Pixels(), "abc", Preprocessing(4, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)))
    red, blue = (torch.zeros(3, 3, 4, 4, dtype=torch.uint8) for _ in range(2))
    red[:, 0], blue[:, 2] = 200, 100
    rule = NearestMean(model, {"red": red, "blue": blue})
    purple = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
    purple[:, 0], purple[:, 2] = 30, 60
    answer = rule.logits(purple)
    assert rule.classes.names[int(answer.argmax())] == "blue"
    direction = torch.tensor([30.0, 0, 60]) / 4500**0.5  # unit length
    to_red = (direction - torch.tensor([1.0, 0, 0])).norm()
    assert answer[0, 0].item() == pytest.approx(-to_red.item(), rel=1e-4)


def test_icarl_shares_its_budget_among_all_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ICaRL, "memory", 10)
    method = ICaRL()
    first = method.begin(Learned([tiny("ab", 1)]), lesson(noise(["a", "b"]), tmp_path / "0"))
    assert {name: len(images) for name, images in exemplars.of(first.notes).items()} == {"a": 5, "b": 5}
    second = method.learn(first, lesson(noise(["c", "d"], 1), tmp_path / "1"))
    kept = exemplars.of(second.notes)
    assert {name: len(images) for name, images in kept.items()} == {"a": 2, "b": 2, "c": 2, "d": 2}
    assert torch.equal(kept["a"], exemplars.of(first.notes)["a"][:2])  # the best stay
    assert method.predictor(second).classes.names == ("a", "b", "c", "d")


def test_icarl_and_dmc_plus_may_keep_2000_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """K of both papers: of two classes, 1000 images each."""
    monkeypatch.setattr("dmc.methods.icarl.model_with_sigmoids", lambda _: tiny("ab", 1))
    given = lesson(noise(["a", "b"], count=2020), tmp_path)
    for method in (ICaRL(), DMCPlus()):
        kept = exemplars.of(method.begin(Learned([tiny("ab", 1)]), given).notes)
        assert {name: len(images) for name, images in kept.items()} == {"a": 1000, "b": 1000}


def still(given: Lesson) -> Lesson:
    """Let the lesson's trainings change nothing but what batch norms have seen."""
    frozen = Schedule(epochs=1, batch_size=16, lr=1e-12, weight_decay=0)
    return replace(given, profile=given.profile.model_copy(update={"specialist": frozen, "consolidation": frozen}))


@pytest.mark.parametrize("answer", [0, 1])
def test_what_dmcs_old_model_answers_reaches_the_student(answer: int, tmp_path: Path) -> None:
    """A model that always prefers one of its classes, by eight, and then the other."""
    old = tiny("ab", 1)
    with torch.no_grad():
        old.module.get_parameter("fc.weight").zero_()
        old.module.get_parameter("fc.bias").copy_(8 * torch.eye(2)[answer])
    aux = ArrayImages(np.random.default_rng(0).integers(0, 256, (64, 16, 16, 3), dtype=np.uint8))
    given = still(lesson(noise(["c", "d"]), tmp_path))
    taught = Schedule(epochs=10, batch_size=16, lr=0.02, shape="one-cycle", pad=0, flip=False)
    profile = given.profile.model_copy(update={"consolidation": taught})
    learned = DMC().learn(Learned([old]), replace(given, aux=aux, profile=profile)).specialists[0]
    with torch.no_grad():
        logits_N4 = learned.logits(torch.from_numpy(aux.images).permute(0, 3, 1, 2))
    assert (logits_N4[:, answer] - logits_N4[:, 1 - answer]).mean().item() == pytest.approx(8, abs=2)


def test_the_specialist_for_new_classes_knows_nothing_of_the_old_model(tmp_path: Path) -> None:
    """Trained by next to nothing, it is as far from the old weights as any two random networks are."""
    old = tiny("ab", 1)
    aux = ArrayImages(np.random.default_rng(0).integers(0, 256, (16, 16, 16, 3), dtype=np.uint8))
    begun = still(replace(lesson(noise(["c", "d"]), tmp_path), aux=aux))
    for method in (DMC(), InferenceTwice()):
        method.learn(Learned([old]), replace(begun, shared=tmp_path / method.name, folder=tmp_path / "l" / method.name))
        new = load_specialist(tmp_path / method.name / "specialist")
        require_unlike(new, old)


def test_dmc_plus_has_the_appendixs_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """K = 12, g = 2: K/g = 6 of each; in session 1 six of each new class join and K/2g = 3 of each stay; in session 2
    three of each new class join (K/2g), and K/3g = 2 of each stay."""
    monkeypatch.setattr(DMCPlus, "memory", 12)
    tuned_on: list[dict[str, int]] = []
    real = exemplars.as_source

    def counted(kept: dict[str, Tensor]) -> Source:
        tuned_on.append({name: len(images) for name, images in kept.items()})
        return real(kept)

    monkeypatch.setattr("dmc.methods.exemplars.as_source", counted)
    method = DMCPlus()
    aux = ArrayImages(np.random.default_rng(0).integers(0, 256, (16, 16, 16, 3), dtype=np.uint8))
    learned = method.begin(Learned([tiny("ab", 1)]), lesson(noise(["a", "b"]), tmp_path / "0"))
    kept = [{name: len(images) for name, images in exemplars.of(learned.notes).items()}]
    for i, names in enumerate((["c", "d"], ["e", "f"]), start=1):
        learned = method.learn(learned, replace(lesson(noise(names, i), tmp_path / str(i)), aux=aux))
        kept.append({name: len(images) for name, images in exemplars.of(learned.notes).items()})
    assert kept == [dict.fromkeys("ab", 6), dict.fromkeys("abcd", 3), dict.fromkeys("abcdef", 2)]
    assert tuned_on == [dict.fromkeys("abcd", 6), dict.fromkeys("abcdef", 3)]
    short = DMCPlus._short(Schedule(epochs=200))
    assert (short.epochs, short.lr_at(0, 10), short.lr_at(149, 10)) == (15, 1e-3, 1e-3)
    ran = json.loads((tmp_path / "1" / "tuned" / "run.json").read_text())["schedule"]
    assert (ran["lr"], ran["drops"], ran["epochs"]) == (1e-3, [], 2)  # the test's profile is shorter than 15 epochs


def test_dmc_plus_selects_as_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DMCPlus, "memory", 6)
    model, given = tiny("ab", 1), lesson(noise(["a", "b"]), tmp_path)
    herders = replace(given, profile=given.profile.model_copy(update={"selection": "herding"}))
    kept = [exemplars.of(DMCPlus().begin(Learned([model]), one).notes) for one in (given, herders)]
    images_N3HW = exemplars.by_class(given.data, model)["a"]
    best = herding(exemplars.unit_features(model, images_N3HW), 3)
    assert torch.equal(kept[1]["a"], images_N3HW[best])
    assert not torch.equal(kept[0]["a"], kept[1]["a"])
