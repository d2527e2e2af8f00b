"""Importance and penalties of regularisers, against values worked out by hand or derived in closed form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dmc.data.batch import Batch
from dmc.data.preprocess import Preprocessing
from dmc.data.readers import ArrayImages
from dmc.methods.base import Learned
from dmc.methods.ewc import EWC
from dmc.methods.ewc_plus_plus import EWCPlusPlus, FisherTracker, diagonal
from dmc.methods.importance import Penalty, Regularised, grown, normalised, stiffest
from dmc.methods.mas import MAS
from dmc.methods.rewc import REWC, RotatedPenalty, Rotation, rotations_of
from dmc.methods.rwalk import RWalk, WalkTracker
from dmc.methods.si import SI, PathTracker
from dmc.models.specialist import Specialist
from dmc.schedule import Schedule
from tests.conftest import tiny
from tests.methods.conftest import lesson

Floats = npt.NDArray[np.float64]
PIXEL = Preprocessing(1, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def one_weight() -> nn.Linear:
    module = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(module.weight)
    return module


def step(tracker: FisherTracker | PathTracker, gradient: float, change: float) -> None:
    weight = tracker.module.get_parameter("weight")
    weight.grad = torch.tensor([[float(gradient)]])
    tracker.gradients_ready()
    with torch.no_grad():
        weight.add_(change)
    tracker.weights_stepped()


def bare(module: nn.Module) -> Specialist:
    """Make a specialist that has only a module."""
    specialist = Specialist.__new__(Specialist)
    specialist.module = module
    return specialist


def test_ewc_plus_plus_averages_the_fisher_while_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmc.methods.ewc_plus_plus.INTERVAL", 2)
    tracker = FisherTracker(one_weight(), {})
    for gradient in (1, 3):  # mean square 5, weighed with 0.9
        step(tracker, gradient, 0)
    assert diagonal(tracker.tensors)["weight"].item() == pytest.approx(4.5)
    for gradient in (2, 2):  # 0.1 * 4.5 + 0.9 * 4
        step(tracker, gradient, 0)
    assert diagonal(tracker.tensors)["weight"].item() == pytest.approx(4.05)
    step(tracker, 1, 0)  # half an interval weighs half as much: 0.55 * 4.05 + 0.45 * 1
    assert diagonal(tracker.tensors)["weight"].item() == pytest.approx(2.6775)
    learned = Learned([bare(tracker.module)], dict(tracker.tensors))
    EWCPlusPlus().importance(learned, lesson=None)  # type: ignore[arg-type]
    again = FisherTracker(tracker.module, learned.notes)  # the next lesson goes on from there
    for gradient in (2, 0):
        step(again, gradient, 0)
    assert diagonal(again.tensors)["weight"].item() == pytest.approx(0.1 * 2.6775 + 0.9 * 2)


def test_si_integrates_along_the_path() -> None:
    module = one_weight()
    tracker = PathTracker(module, {})
    step(tracker, 2, -0.1)
    step(tracker, 1, -0.1)
    assert tracker.get("omega")["weight"].item() == pytest.approx(0.3)
    learned = Learned([bare(module)], dict(tracker.tensors))
    found = SI().importance(learned, lesson=None)["weight"].item()  # type: ignore[arg-type]
    assert found == pytest.approx(0.3 / (0.04 + 1e-3))
    learned.notes["importance.weight"] = torch.tensor([[2.0]])
    again = SI().importance(learned, lesson=None)["weight"].item()  # type: ignore[arg-type]
    assert again == pytest.approx(2 + 0.3 / (0.04 + 1e-3))


def test_rwalk_divides_by_the_riemannian_length_of_each_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmc.methods.ewc_plus_plus.INTERVAL", 1)
    walk = WalkTracker(one_weight(), {})
    expected, running = 0.0, 0.0
    for gradient, change in ((2.0, -0.1), (1.0, -0.3), (1.0, 0.2)):  # the last one goes uphill and does not count
        step(walk, gradient, change)
        running = 0.1 * running + 0.9 * gradient**2
        expected += max(0.0, -gradient * change / (0.5 * running * change**2 + 1e-3))
    assert walk.get("score")["weight"].item() == pytest.approx(expected, rel=1e-4)


def unit(x: Floats) -> Floats:
    scaled: Floats = (x - x.min()) / (x.max() - x.min())
    return scaled


def test_rwalk_adds_fisher_and_averaged_score_both_scaled() -> None:
    """Two weights and one step, less than an interval. By hand: with a = 0.9 / 50, F becomes
    (1 - a) F + a g^2, and the score is -g d / (F d^2 / 2 + 1e-3)."""
    module = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(module.weight)
    walk_in_lesson: dict[str, Tensor] = {}
    scores: list[Floats] = []
    for gradient, change in (((1.0, 2.0), (-0.1, -0.1)), ((2.0, 1.0), (-0.2, -0.1))):
        (walk,) = RWalk().trackers(module, walk_in_lesson)
        module.weight.grad = torch.tensor([gradient])
        walk.gradients_ready()
        with torch.no_grad():
            module.weight.add_(torch.tensor([change]))
        walk.weights_stepped()
        notes = walk_in_lesson | walk.tensors
        found = RWalk().importance(learned := Learned([bare(module)], notes), lesson=None)["weight"]  # type: ignore[arg-type]
        walk_in_lesson = learned.notes
        running = np.zeros(2) if not scores else 0.018 * np.square((1.0, 2.0))
        f = 0.982 * running + 0.018 * np.square(gradient)
        score = -np.multiply(gradient, change) / (0.5 * f * np.square(change) + 1e-3)
        scores.append(score if not scores else (scores[-1] + score) / 2)
        assert found[0].tolist() == pytest.approx((unit(f) + unit(scores[-1])).tolist(), rel=1e-4)


def linear(names: str, seed: int) -> Specialist:
    torch.manual_seed(seed)
    return Specialist(nn.Sequential(nn.Flatten(), nn.Linear(3, len(names), bias=False)), names, PIXEL)


def pixels(count: int, seed: int) -> tuple[ArrayImages, Tensor]:
    images = np.random.default_rng(seed).integers(0, 256, (count, 1, 1, 3), dtype=np.uint8)
    return ArrayImages(images, np.zeros(count, np.int64), ["a"]), torch.from_numpy(images).float().view(-1, 3) / 255


def test_mas_is_the_mean_absolute_gradient_of_the_squared_length(tmp_path: Path) -> None:
    model = linear("ab", 0)
    data, x_N3 = pixels(50, 1)
    found = MAS().importance(Learned([model]), lesson(data, tmp_path))["1.weight"]
    weight = model.module.get_parameter("1.weight").detach()
    expected = torch.zeros(2, 3)
    for x in x_N3:
        expected += (2 * torch.outer(weight @ x, x)).abs() / 50  # by hand: d||Wx||^2 / dW = 2 (Wx) x'
    torch.testing.assert_close(found, expected)


def test_ewc_is_the_fisher_of_the_models_own_answers(tmp_path: Path) -> None:
    """The Fisher is over the classes of the lesson, b to d, without the old class a."""
    model = linear("abcd", 0)
    data = ArrayImages(np.full((4000, 1, 1, 3), 200, np.uint8), np.zeros(4000, np.int64), "bcd")
    found = EWC().importance(Learned([model]), lesson(data, tmp_path))["1.weight"]
    x = torch.full((3,), 200 / 255)
    p = (model.module.get_parameter("1.weight").detach() @ x)[1:].softmax(0)
    expected = torch.outer(p * (1 - p), x.square())  # E[(1{y=k} - p_k)^2] = p_k (1 - p_k)
    torch.testing.assert_close(found[1:], expected, rtol=0.06, atol=0)
    assert found[0].tolist() == [0, 0, 0]


def test_the_penalty_is_strength_times_importance_times_squared_distance() -> None:
    """The gradient added by hand equals autograd's on the written-out loss, in which only c and d compete."""
    old, wide = tiny("ab", 1), tiny("abcd", 2)
    anchor = {name: p.detach().clone() for name, p in old.module.named_parameters()}
    importance = {name: torch.rand_like(p) for name, p in anchor.items()}
    task = Regularised(wide, "cd", (), anchor, Penalty(importance, strength=0.7, limit=10.0))
    images = torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8)
    batch = Batch(images, torch.tensor([0, 1, 0, 1, 0, 1]))
    task.losses(wide.module, batch)["loss"].backward()  # type: ignore[no-untyped-call]
    task.gradients_ready()
    found = {name: p.grad.clone() for name, p in wide.module.named_parameters() if p.grad is not None}
    wide.module.zero_grad()
    penalty = torch.zeros(())
    for name, parameter in wide.module.named_parameters():
        rows = parameter[: len(anchor[name])]
        penalty = penalty + (importance[name] * (rows - anchor[name]).square()).sum()
    loss = F.cross_entropy(wide.logits(images)[:, 2:], torch.tensor([0, 1, 0, 1, 0, 1])) + 0.7 * penalty
    loss.backward()  # type: ignore[no-untyped-call]
    for name, parameter in wide.module.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)


def test_a_penalty_too_stiff_for_sgd_is_limited() -> None:
    """SGD with momentum on s x^2, written out: at the limit x falls, a quarter above it x explodes."""
    limit = stiffest(Schedule(epochs=1, lr=0.1, momentum=0.9))
    assert limit == pytest.approx(17.1)

    def walked(stiffness: float) -> float:
        x, velocity, penalty = 3.0, 0.0, Penalty({"w": torch.tensor(stiffness)}, 1.0, limit=1e9)
        for _ in range(60):
            velocity = 0.9 * velocity + float(penalty.gradient("w", torch.tensor(x)))
            x -= 0.1 * velocity
        return abs(x)

    assert walked(limit) < 1
    assert walked(1.25 * limit) > 1e4
    assert Penalty({"w": torch.tensor([1.0, 1e6])}, 2.0, limit).stiffness["w"].tolist() == pytest.approx([2.0, limit])
    turned = RotatedPenalty([({"w": torch.tensor([1e6])}, {})] * 4, 1.0, limit)
    assert turned.gradient("w", torch.ones(1)).item() == pytest.approx(2 * limit)  # four lessons share it


def test_rewc_rotates_without_changing_the_function() -> None:
    """The paper's three layers (rotate in, rotated weights, rotate out) compute the same as the layer itself."""
    model = tiny("abc", 3)
    images = np.random.default_rng(0).integers(0, 256, (64, 16, 16, 3), dtype=np.uint8)
    found = rotations_of(model, ArrayImages(images, np.zeros(64, np.int64), "abc"))
    modules = dict(model.module.named_modules())
    assert {f"{n}.weight" for n, m in modules.items() if isinstance(m, nn.Conv2d | nn.Linear)} == set(found)
    for name, (u1, u2, _) in found.items():
        layer = modules[name.removesuffix(".weight")]
        rotated = found[name].into(layer.weight.detach())
        x = torch.randn(5, u1.shape[0], 7, 7)
        if isinstance(layer, nn.Conv2d):
            inside = F.conv2d(F.conv2d(x, u1.T[:, :, None, None]), rotated, None, layer.stride, layer.padding)
            outside = F.conv2d(inside, u2[:, :, None, None])
        else:
            x = x[..., 0, 0]
            outside = x @ u1 @ rotated.T @ u2.T + layer.bias
        torch.testing.assert_close(outside, layer(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found[name].back(rotated), layer.weight.detach(), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(found[name].into(layer.weight.detach()), layer.weight.detach())


@pytest.mark.parametrize("arch", ["test_vit", "test_convnext"])
def test_rewc_rotates_linear_layers_over_tokens_and_places(arch: str) -> None:
    """Their channels are the last axis, not the second, as a convolution's are."""
    model = Specialist.untrained(arch, "abc", Preprocessing(64), seed=0)
    images = np.random.default_rng(0).integers(0, 256, (4, 64, 64, 3), dtype=np.uint8)
    found = rotations_of(model, ArrayImages(images, np.zeros(4, np.int64), "abc"))
    shapes = {name: tuple(model.module.get_parameter(name).shape[:2]) for name in found}
    assert shapes == {name: (len(u2), len(u1)) for name, (u1, u2, _) in found.items()}
    assert len([name for name in found if "mlp" in name]) > 1


def test_a_weight_that_is_one_number_has_a_penalty_and_an_importance() -> None:
    """Some networks scale a branch by a single learned number, a tensor without axes."""
    assert grown(torch.tensor(2.0), torch.tensor(0.0)).item() == 2
    assert grown(torch.ones(2), torch.zeros(3)).tolist() == [1, 1, 0]
    model = tiny("ab", 0)
    model.module.register_parameter("gain", nn.Parameter(torch.tensor(3.0)))
    anchor = {name: parameter.detach().clone() for name, parameter in model.module.named_parameters()}
    anchor["gain"] = torch.tensor(1.0)
    stiff = Penalty({name: torch.ones_like(value) for name, value in anchor.items()}, 1.0, 10.0)
    for parameter in model.module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    Regularised(model, "ab", anchor=anchor, penalty=stiff).gradients_ready()
    assert model.module.get_parameter("gain").grad.item() == 4  # type: ignore[union-attr]


def test_rewc_makes_the_fisher_of_a_linear_layer_diagonal(tmp_path: Path) -> None:
    """Of one image, E[g g'] (x) E[x x'] is the whole Fisher: rotated, nothing of it lies off the diagonal."""
    model = linear("abc", 0)
    images = np.broadcast_to(np.array([200, 90, 30], np.uint8), (3000, 1, 1, 3)).copy()
    data = ArrayImages(images, np.zeros(3000, np.int64), "abc")
    learned = REWC().concluded(Learned([model]), lesson(data, tmp_path))
    fisher = learned.notes["importance.0.1.weight"]
    x = torch.tensor([200.0, 90.0, 30.0]) / 255
    p = (model.module.get_parameter("1.weight").detach() @ x).softmax(0)
    of_outputs = torch.linalg.eigvalsh(torch.diag(p) - torch.outer(p, p))  # E[g g'] of a softmax
    expected = torch.sort(torch.outer(of_outputs, torch.tensor([0.0, 0.0, float(x @ x)])).flatten()).values
    torch.testing.assert_close(torch.sort(fisher.flatten()).values, expected, rtol=0.05, atol=1e-3)


def test_rewcs_penalty_is_ewcs_in_rotated_coordinates() -> None:
    """The gradient that is added equals that of d'F d with the full matrix F = R' diag(f) R."""
    torch.manual_seed(0)
    u1, u2 = (torch.linalg.qr(torch.randn(n, n)).Q for n in (3, 2))
    f, d = torch.rand(2, 3), torch.randn(2, 3, requires_grad=True)
    notes = {"importance.0.w": f, "inputs.0.w": u1, "outputs.0.w": u2}
    here = lesson(ArrayImages(np.zeros((1, 1, 1, 3), np.uint8)), Path(), strength=0.4)
    rotation = torch.kron(u2.T, u1.T)  # vec(U2' D U1) for row-major vec
    full = rotation.T @ torch.diag(f.flatten()) @ rotation
    (0.4 * d.flatten() @ full @ d.flatten()).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(REWC().penalty(notes, here).gradient("w", d.detach()), d.grad)
    assert torch.allclose(Rotation(u1, u2, "").into(d.detach()).flatten(), rotation @ d.detach().flatten())


def test_importance_is_scaled_over_all_layers_together() -> None:
    found = normalised({"a": torch.tensor([1.0, 3.0]), "b": torch.tensor([5.0])})
    assert found["a"].tolist() == [0.0, 0.5]
    assert found["b"].tolist() == [1.0]
    assert grown(torch.ones(1, 2), torch.ones(3, 2)).tolist() == [[1, 1], [0, 0], [0, 0]]
