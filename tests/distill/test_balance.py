"""Balance between blocks of classes, and the report of what a student kept."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dmc.classes import ClassUnion
from dmc.distill.agreement import Agreement, Answers
from dmc.distill.balance import (
    balancing_factors,
    drowned,
    fair_shares,
    output_layer,
    peaks,
    scale_rows,
    sharpness,
    win_shares,
)
from dmc.models import create

UNION = ClassUnion.of(["ab", "cd"])


def test_blocks_are_the_classes_of_the_same_teachers() -> None:
    assert UNION.blocks == ((0, 1), (2, 3))
    assert ClassUnion.of(["abc", "cd", "ce"]).blocks == ((0, 1), (2,), (3,), (4,))
    assert fair_shares(((0, 1, 2), (3,))) == [0.75, 0.25]


def test_two_blocks_by_hand() -> None:
    """Block one has 8, 8, 8, 8 and block two 1, 2, 4, 16: to win two images, block two needs a ratio of 2 to 4."""
    peaks_NB = torch.tensor([[8.0, 1.0], [8.0, 2.0], [8.0, 4.0], [8.0, 16.0]])
    assert (peaks_NB.argmax(dim=1) == 1).sum() == 1
    one, two = balancing_factors(peaks_NB, [0.5, 0.5])
    assert 2 < two / one < 4
    assert one * two == pytest.approx(1)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 20), min_size=2, max_size=8), st.integers(0, 10_000))
def test_each_block_wins_its_share(sizes: list[int], seed: int) -> None:
    """The blocks may have any sizes, and logits that are very unlike in scale."""
    draw = torch.Generator().manual_seed(seed)
    spreads_B = torch.empty(len(sizes)).uniform_(0.05, 20, generator=draw)
    peaks_NB = torch.rand(2000, len(sizes), generator=draw) * spreads_B
    shares = [size / sum(sizes) for size in sizes]
    factors_B = torch.tensor(balancing_factors(peaks_NB, shares))
    won = torch.bincount((peaks_NB * factors_B).argmax(dim=1), minlength=len(sizes)) / 2000
    assert torch.allclose(won, torch.tensor(shares), atol=0.01)


def centred(images: int, classes: int, spread: float, draw: torch.Generator) -> torch.Tensor:
    logits_NK = spread * torch.randn(images, classes, generator=draw)
    return logits_NK - logits_NK.mean(dim=1, keepdim=True)


@pytest.mark.parametrize("lean", [0.0, 0.2, 0.5, 1.0])
def test_a_block_that_cannot_win_its_share_is_left_alone(lean: float) -> None:
    """Teachers know a, b and b, c: each block is one class, negative on half of the images, so no factor helps it."""
    draw = torch.Generator().manual_seed(0)
    a, c = torch.randn(2, 1000, generator=draw) - lean
    logits_NT, union = torch.stack([a, -(a + c) / 2, c], dim=1), ClassUnion.of(["ab", "bc"])
    assert balancing_factors(peaks(logits_NT, union.blocks), fair_shares(union.blocks)) == [1.0, 1.0, 1.0]


def test_two_blocks_are_balanced_around_a_shared_class() -> None:
    """The first teacher is three times as loud; a, b, c and e, f, g should win equally often, s as before."""
    draw, union = torch.Generator().manual_seed(0), ClassUnion.of(["abcs", "sefg"])
    first_N4, second_N4 = centred(4000, 4, 3.0, draw), centred(4000, 4, 1.0, draw)
    shared_N1 = (first_N4[:, 3:] + second_N4[:, :1]) / 2
    peaks_NB = peaks(torch.cat([first_N4[:, :3], shared_N1, second_N4[:, 1:]], dim=1), union.blocks)
    one, shared, two = balancing_factors(peaks_NB, fair_shares(union.blocks))
    assert shared == 1.0 == pytest.approx(one * two)
    assert 2 < two / one < 4  # the three that the first teacher is too large by
    before, after = win_shares(peaks_NB), win_shares(peaks_NB * torch.tensor([one, shared, two]))
    assert before[2] < 0.1 < 0.7 < before[0]
    assert after[0] == pytest.approx(after[2], abs=0.05)
    assert after[1] == pytest.approx(before[1], abs=0.05)


def test_sharpness_finds_the_temperature_that_was_lost() -> None:
    """A student whose logits are a fifth of its teachers' needs a factor of five."""
    logits = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
    teachers = [3 * logits[:, :2], 3 * logits[:, 2:]]
    assert sharpness(0.6 * logits, teachers, UNION) == pytest.approx(5, rel=1e-3)


def test_sharpness_of_one_image_by_hand() -> None:
    """The teacher says 3 to 1 for two classes, so the student's difference of 2 must become log 3."""
    student = torch.tensor([[1.0, -1.0, 0.0, 0.0]])
    teachers = [torch.tensor([[math.log(3), 0.0]]), torch.tensor([[0.0, 0.0]])]
    assert sharpness(student, teachers, UNION) == pytest.approx(math.log(3) / 2, rel=1e-6)


@pytest.mark.parametrize("arch", ["cifar_resnet8", "test_resnet", "test_vit", "torchvision:squeezenet1_0"])
def test_a_factor_for_each_output_folds_into_the_last_layer(arch: str) -> None:
    """SqueezeNet ends in a convolution and a ReLU, through which a positive factor passes."""
    size = 32 if arch == "cifar_resnet8" else 160 if arch.startswith("test") else 64
    module, images = create(arch, 5).eval(), torch.randn(2, 3, size, size)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with torch.no_grad():
        plain = module(images)
        layer = output_layer(module, 5, images[:1])
        assert layer is not None
        assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())  # not changed
        factors_T = torch.tensor([0.5, 1.0, 2.0, 3.0, 7.0])
        scale_rows(layer, factors_T)
        torch.testing.assert_close(module(images), plain * factors_T)


def test_the_last_layer_of_a_users_own_network_is_found() -> None:
    """Its answer carries the logits, and its last layer keeps more than parameters."""

    class Counting(nn.Linear):
        def __init__(self) -> None:
            super().__init__(12, 5)
            self.register_buffer("seen", torch.zeros(1))

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = Counting()

        def forward(self, x: torch.Tensor) -> SimpleNamespace:
            return SimpleNamespace(logits=self.fc(x.flatten(1)))

    module = Wrapped()
    assert output_layer(module, 5, torch.zeros(1, 3, 2, 2)) is module.fc


def test_a_network_without_a_last_layer_is_recognised() -> None:
    """The five outputs are mixed after the last layer, so that no layer's rows are the outputs."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(12, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.fc(x.flatten(1)).cumsum(dim=1)
            return out

    assert output_layer(Mixed(), 5, torch.zeros(1, 3, 2, 2)) is None


def test_agreement_by_hand() -> None:
    """Four images, classes a b | c d. The student can tell c from d, but answers a where it should answer c or d."""
    target_NT = torch.tensor([[3.0, 0, 1, 0], [0, 3.0, 0, 1], [0, 1, 3.0, 0], [1, 0, 0, 3.0]])
    student_NT = torch.tensor([[9.0, 0, 1, 0], [9.0, 0, 0, 1], [9.0, 0, 1, 0], [9.0, 0, 0, 1]])
    found = Agreement.of(Answers(student_NT, target_NT, [target_NT[:, :2], target_NT[:, 2:]]), UNION)
    assert (found.images, found.same) == (4, 0.25)
    assert found.within == [0.5, 1.0]  # a for a and for the last image; c d c d
    assert (found.teachers_win, found.student_wins, found.fair) == ([0.5, 0.5], [1.0, 0.0], [0.5, 0.5])
    assert drowned(found.student_wins, found.fair) == [1]
    assert drowned([0.91, 0.09], [0.5, 0.5]) == [1]
    assert drowned([0.7, 0.3], [0.5, 0.5]) == []


def test_a_shared_class_counts_for_all_who_know_it() -> None:
    union = ClassUnion.of(["ab", "bc"])
    answers = torch.eye(3)
    found = Agreement.of(Answers(answers, answers, [answers[:, :2], answers[:, 1:]]), union)
    assert found.teachers_win == pytest.approx([2 / 3, 2 / 3])


def test_wins_are_counted_by_hand() -> None:
    assert win_shares(torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 0.5], [3.0, 1.0, 2.0], [0.0, 0.0, 1.0]])) == [
        0.5,
        0.25,
        0.25,
    ]


def test_peaks_are_the_highest_of_each_block() -> None:
    assert peaks(torch.tensor([[1.0, 4.0, 3.0, 2.0]]), ((0, 3), (1, 2))).tolist() == [[2.0, 4.0]]
