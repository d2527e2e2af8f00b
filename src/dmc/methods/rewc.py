"""REWC: EWC in coordinates in which the Fisher matrix is closer to a diagonal one.

Liu et al., "Rotate your Networks: Better Weight Consolidation and Less Catastrophic Forgetting" (ICPR 2018). A layer
y = W x becomes y = U2 (U2' W U1) U1' x: U1 are the eigenvectors of E[x x'], U2 those of E[g g'] with g the gradient
at y. A convolution is rotated in its channels. EWC then holds W' = U2' W U1 instead of W.

SGD with momentum and weight decay takes the same steps in W as in W', so the network itself is left as it is and only
the penalty is rotated. That also lets the penalties of several lessons, each in its own coordinates, add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dmc.data.loader import open_loader
from dmc.data.sources import Source
from dmc.methods.base import Learned, Lesson
from dmc.methods.ewc import EWC, likelihood_of_a_draw
from dmc.methods.importance import Penalty, Weights, mean_over_images, old_rows, stiffest, under
from dmc.models.specialist import Specialist
from dmc.seeds import seed_for

WIDEST = 4608  # inputs or outputs of a layer to rotate; eigenvectors of a wider one would take minutes


class Rotation(NamedTuple):
    """The two rotations of a layer."""

    inputs_II: Tensor  # U1
    outputs_OO: Tensor  # U2
    kernel: str  # "hw" for a convolution's weights, O x I x H x W; empty for O x I

    def into(self, weights: Tensor) -> Tensor:
        """Rotate weights: U2' W U1; axes before the weights' own are a batch."""
        axes = f"op,...oi{self.kernel},iq->...pq{self.kernel}"
        return torch.einsum(axes, self.outputs_OO, weights, self.inputs_II)

    def back(self, rotated: Tensor) -> Tensor:
        """Rotate weights back: U2 W' U1'."""
        return Rotation(self.inputs_II.T, self.outputs_OO.T, self.kernel).into(rotated)


class RotatedPenalty(Penalty):
    """EWC's penalty for each lesson, in that lesson's coordinates. The penalties add up, so they share the limit."""

    def __init__(self, lessons: Sequence[tuple[Weights, dict[str, Rotation]]], strength: float, limit: float) -> None:
        share = limit / len(lessons)
        self.lessons = [(Penalty(importance, strength, share), rotations) for importance, rotations in lessons]

    def gradient(self, name: str, distance: Tensor) -> Tensor:
        total = torch.zeros_like(distance)
        for penalty, rotations in self.lessons:
            there = old_rows(distance, penalty.stiffness[name])  # an older lesson knows fewer classes
            if name in rotations:
                pull = rotations[name].back(penalty.gradient(name, rotations[name].into(there)))
            else:
                pull = penalty.gradient(name, there)
            old_rows(total, pull).add_(pull)
        return total


class REWC(EWC):
    name, title = "rewc", "REWC"

    def penalty(self, notes: Mapping[str, Tensor], lesson: Lesson) -> Penalty:
        lessons: list[tuple[Weights, dict[str, Rotation]]] = []
        while importance := under(f"importance.{len(lessons)}.", notes):
            u1, u2 = under(f"inputs.{len(lessons)}.", notes), under(f"outputs.{len(lessons)}.", notes)
            kernels = {name: "hw" if importance[name].ndim == 4 else "" for name in u1}
            lessons.append((importance, {name: Rotation(u1[name], u2[name], kernels[name]) for name in u1}))
        return RotatedPenalty(lessons, lesson.strength, stiffest(lesson.profile.specialist))

    def concluded(self, learned: Learned, lesson: Lesson) -> Learned:
        model = learned.specialists[0]
        number = len({key.split(".")[1] for key in learned.notes if key.startswith("importance.")})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(lesson.seed, "fisher"))
            rotations = rotations_of(model, lesson.data)
            fisher = mean_over_images(
                model,
                lesson.data,
                likelihood_of_a_draw(model, lesson.data),
                lambda name, g: (rotations[name].into(g) if name in rotations else g).square(),
            )
        for name, value in fisher.items():
            # Contiguous, as it is after a load: so both round alike.
            learned.notes[f"importance.{number}.{name}"] = value.contiguous()
        for name, rotation in rotations.items():
            learned.notes[f"inputs.{number}.{name}"] = rotation.inputs_II
            learned.notes[f"outputs.{number}.{name}"] = rotation.outputs_OO
        return learned


def rotations_of(specialist: Specialist, data: Source) -> dict[str, Rotation]:
    """Find the rotations of each linear layer and each convolution without groups, by the name of its weight."""
    inputs: Weights = {}
    outputs: Weights = {}

    def add(moments: Weights, name: str, values: Tensor) -> None:
        channels = 1 if isinstance(layers[name], nn.Conv2d) else -1  # a linear layer may see tokens
        rows_MC = values.detach().movedim(channels, -1).flatten(0, -2)  # each place of each image is a sample
        moments[name] = moments.get(name, torch.zeros(())) + rows_MC.T @ rows_MC

    def watch(name: str, layer: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def see(_: nn.Module, given: tuple[Tensor, ...], answer: Tensor) -> None:
            add(inputs, name, given[0])
            answer.register_hook(lambda gradient: add(outputs, name, gradient))  # type: ignore[no-untyped-call]

        return layer.register_forward_hook(see)

    layers = {f"{n}.weight": m for n, m in specialist.module.named_modules() if _can_rotate(m)}
    handles = [watch(name, layer) for name, layer in layers.items()]
    specialist.module.eval()
    drawn = likelihood_of_a_draw(specialist, data)
    for batch in open_loader(data, specialist.transform).in_order(32):
        logits_NK = specialist.logits(batch.images_N3HW.to(specialist.device))
        torch.func.vmap(drawn, randomness="different")(logits_NK).sum().backward()  # type: ignore[no-untyped-call]
    specialist.module.zero_grad()
    for handle in handles:
        handle.remove()
    return {
        name: Rotation(
            _eigenvectors(inputs[name]), _eigenvectors(outputs[name]), "hw" if isinstance(layer, nn.Conv2d) else ""
        )
        for name, layer in layers.items()
        if name in outputs  # others are called by another name, or not at all: attention's last layer
    }


def _can_rotate(module: nn.Module) -> bool:
    """Tell whether a layer is one to rotate."""
    if isinstance(module, nn.Conv2d):
        return module.groups == 1 and max(module.in_channels, module.out_channels) <= WIDEST
    return isinstance(module, nn.Linear) and max(module.in_features, module.out_features) <= WIDEST


def _eigenvectors(moments_CC: Tensor) -> Tensor:
    vectors: Tensor = torch.linalg.eigh(moments_CC).eigenvectors
    return vectors.contiguous()
