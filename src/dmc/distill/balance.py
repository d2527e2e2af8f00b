"""Balance between blocks of classes that were taught by different models. Not in the paper.

A student fits one teacher less well than another and gives smaller logits to that teacher's classes (regression to the
mean). They lose every close race, though the student tells them apart well among themselves. One factor for each block,
chosen on unlabeled images that were not trained on, lets each block win its share of the images. One temperature for
all classes makes probabilities mean what the teachers' own do. Both fold into the last layer: the model stays an
ordinary one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dmc.classes import ClassUnion
from dmc.models.specialist import logits_in

SWEEPS = 100  # at most; two blocks need one, ten blocks about twenty
HALF = 0.5  # of the share that a block should win, or of all answers: with less, something went wrong
LEAST_PEAK = 1e-6  # a block whose highest logit is below this wins nothing, whatever its factor
CONTESTED = 0.9  # of the images, at least: a block has a chance in them


def peaks(logits_NT: Tensor, blocks: Sequence[Sequence[int]]) -> Tensor:
    """Give the highest logit of each block of classes, image by image."""
    return torch.stack([logits_NT[:, list(block)].amax(dim=1) for block in blocks], dim=1)


def win_shares(peaks_NB: Tensor) -> list[float]:
    """Give the share of images that each block wins: those where its highest logit is the highest of all."""
    return (torch.bincount(peaks_NB.argmax(dim=1), minlength=peaks_NB.shape[1]) / len(peaks_NB)).tolist()


def drowned(wins: Sequence[float], fair: Sequence[float]) -> list[int]:
    """Give the indices of teachers whose classes win less than half of their fair share: they are rarely answered."""
    return [i for i, (won, due) in enumerate(zip(wins, fair, strict=True)) if won < HALF * due]


def fair_shares(blocks: Sequence[Sequence[int]]) -> list[float]:
    """Give the share of images that each block would win if every class won equally often."""
    total = sum(len(block) for block in blocks)
    return [len(block) / total for block in blocks]


def balancing_factors(peaks_NB: Tensor, shares: Sequence[float]) -> list[float]:
    """Find one positive factor for each block, with which block b wins a share of the images, as `shares` has them.

    In logarithms a factor is a level to add. The level at which a block wins exactly its share is a quantile of its
    distance to the best of the other blocks. Levels depend on each other, so they are set in turn until none moves.

    The logits of a teacher's classes add up to about zero, so the highest is nearly always positive, and a factor can
    let it win. A block that is only a part of a teacher's classes (others are shared) is often negative as a whole. No
    factor gives such a block its share: it keeps 1, the mean of the others', which contest the images without it.
    """
    contested = (peaks_NB > LEAST_PEAK).double().mean(dim=0) >= CONTESTED
    levels_B = torch.zeros(len(shares), dtype=torch.double)
    if contested.sum() > 1:
        due = torch.tensor(shares, dtype=torch.double)[contested]
        levels_B[contested] = _levels(peaks_NB[:, contested].double(), (due / due.sum()).tolist())
    return [float(factor) for factor in levels_B.exp()]


def _levels(peaks_NB: Tensor, shares: Sequence[float]) -> Tensor:
    """Find the logarithms of the factors with which each block wins its share; their mean is zero."""
    log_peaks_NB = peaks_NB.clamp(min=LEAST_PEAK).log()
    levels_B = log_peaks_NB.new_zeros(len(shares))
    for _ in range(SWEEPS):
        before_B = levels_B.clone()
        for b, share in enumerate(shares):
            others_NB = log_peaks_NB + levels_B
            others_NB[:, b] = -torch.inf
            distance_N = others_NB.amax(dim=1) - log_peaks_NB[:, b]
            levels_B[b] = distance_N.quantile(share)
        levels_B -= levels_B.mean()  # only their differences count
        if torch.allclose(levels_B, before_B, atol=1e-6):
            break
    return levels_B


def sharpness(student_NT: Tensor, teacher_logits: Sequence[Tensor], union: ClassUnion) -> float:
    """Find the factor (an inverse temperature) for all of the student's logits that makes it as sure as its teachers.

    It minimises the cross entropy between each teacher's probabilities and the student's within that teacher's classes.
    That is convex in the factor, so its slope has one root, which is found by bisection.
    """
    mine = [student_NT[:, list(columns)].double() for columns in union.columns]
    theirs = [logits_NK.double().softmax(dim=1) for logits_NK in teacher_logits]

    def slope(factor: float) -> float:
        return sum(
            float((((z * factor).softmax(dim=1) - p) * z).sum(dim=1).mean()) for z, p in zip(mine, theirs, strict=True)
        )

    low, high = 1e-3, 1e3
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return high


def output_layer(module: nn.Module, outputs: int, example_N3HW: Tensor) -> nn.Module | None:
    """Find the last layer, whose rows scale the network's outputs alike; give None if there is no such layer.

    Layers are tried out on noise of the example's shape, so the architecture does not matter. Weights are restored.
    """
    noise_N3HW = torch.randn(example_N3HW.shape, generator=torch.Generator().manual_seed(0)).to(example_N3HW)
    factors_T = torch.linspace(0.5, 2, outputs, device=example_N3HW.device)
    with torch.no_grad():
        wanted_NT = logits_in(module(noise_N3HW)) * factors_T
        tolerance = 1e-3 * float(wanted_NT.abs().max())
        for layer in reversed([m for m in module.modules() if isinstance(m, nn.Linear | nn.Conv2d)]):
            if len(layer.weight) != outputs:
                continue
            before = {name: parameter.clone() for name, parameter in layer.named_parameters()}
            scale_rows(layer, factors_T)
            found = torch.allclose(logits_in(module(noise_N3HW)), wanted_NT, rtol=0, atol=tolerance)
            for name, parameter in layer.named_parameters():
                parameter.copy_(before[name])
            if found:
                return layer
    return None


def scale_rows(layer: nn.Module, factors_T: Tensor) -> None:
    """Multiply each output of a layer by its own factor, in place."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(factors_T.to(parameter).view(-1, *[1] * (parameter.ndim - 1)))
