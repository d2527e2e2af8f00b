"""Eq. 3 and its rivals against numbers worked out on paper."""

from __future__ import annotations

import math

import pytest
import torch

from dmc.distill.losses import kd, l1, l2, loss_named

TARGET = torch.tensor([[-1.0, 1, 2, -1, -1], [-2.0, 2, -1, -1, 2]])
STUDENT = torch.zeros(2, 5)


def test_l2_is_the_mean_over_classes_of_squared_differences() -> None:
    # Row sums of squares 8 and 14; over 5 classes 1.6 and 2.8; over 2 images 2.2.
    assert l2(STUDENT, TARGET).item() == pytest.approx(2.2)


def test_l1_is_the_mean_over_classes_of_absolute_differences() -> None:
    # 6/5 and 8/5.
    assert l1(STUDENT, TARGET).item() == pytest.approx(1.4)


def test_kd_is_temperature_squared_times_the_divergence_of_softened_answers() -> None:
    # At T = 2 the target (0, 2 ln 3) is (1/4, 3/4), the student (0, 0) is (1/2, 1/2).
    target = torch.tensor([[0.0, 2 * math.log(3)]])
    divergence = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    assert kd(torch.zeros(1, 2), target, temperature=2).item() == pytest.approx(4 * divergence, rel=1e-5)


def test_kd_at_high_temperature_has_the_gradient_of_l2_on_centred_logits() -> None:
    """By Hinton et al. 2015, section 2.1, KD tends to 1/(2K) of the squared distance; K cancels the 1/t of Eq. 3."""
    student = torch.tensor([[0.3, -0.2, -0.1]], requires_grad=True)
    target = torch.tensor([[0.5, 0.1, -0.6]])
    (hot,) = torch.autograd.grad(kd(student, target, temperature=1e3), student)
    (squared,) = torch.autograd.grad(l2(student, target), student)
    torch.testing.assert_close(hot, squared / 2, rtol=2e-2, atol=1e-4)


def test_losses_by_name() -> None:
    assert loss_named("l2", 1.0) is l2
    assert loss_named("l1", 1.0) is l1
    assert loss_named("kd", 3.0)(STUDENT, TARGET).item() == pytest.approx(kd(STUDENT, TARGET, 3.0).item())
