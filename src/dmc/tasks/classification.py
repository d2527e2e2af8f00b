"""Classifiers: a folder of images per class, cross entropy, Eq. 3 and 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dmc.choices import NetworkChoice, batch_size, clamped, pretrained, shorter_side
from dmc.data.open import open_labeled, open_with_held_out
from dmc.data.preprocess import Preprocessing
from dmc.data.sources import Source, share_held_out
from dmc.device import pick_device
from dmc.distill.teachers import Teachers
from dmc.errors import DmcError
from dmc.evaluation import classification as evaluation
from dmc.metrics.incremental import Confusion, Matrix
from dmc.models.blueprint import is_detector
from dmc.models.specialist import Output, Specialist
from dmc.tasks.base import NOTHING, Names, Place, VisionTask
from dmc.tasks.classifier_consolidation import PAPER_FORM, ClassifierConsolidation
from dmc.training.held_out import HeldOut, shown_in
from dmc.training.loop import Objective
from dmc.training.schedule import CONSOLIDATION, SPECIALIST, Schedule
from dmc.training.supervised import Supervised, specialist_for

SMALL_SIDE = 48  # pixels; up to here images are CIFAR's kind, and a CIFAR ResNet is the network for them


class Classification(VisionTask[Specialist]):
    singular = "classifier"
    paper_arch, paper_weights, paper_form = "cifar_resnet32", None, PAPER_FORM
    paper_schedules = (SPECIALIST, CONSOLIDATION)
    own_settings = ("temperature", "scale", "balance", "output")
    metric, measurement = "accuracy", Confusion
    least_classes = 2  # of a softmax

    def is_architecture(self, arch: str) -> bool:
        return not is_detector(arch)

    def is_labeled(self, data: Place) -> bool:
        return True

    def open_labeled(self, data: Place, val: Place | None, keep: Names) -> tuple[Source, HeldOut[Specialist]]:
        """`auto` tests on what lies beside the data, or on a share of it."""
        source, beside = open_with_held_out(data)
        if keep is not None:
            source = source.keep(keep)
        if val == "auto" and beside is None:
            source, held_out = share_held_out(source)
            return source, HeldOut(held_out, "accuracy", _accuracy)
        if val is None or val in NOTHING:
            return source, HeldOut(None, "accuracy", _accuracy)
        held_out = beside if beside and val == "auto" else open_labeled(val)
        shown = shown_in(held_out, source, keep)
        return source, HeldOut(held_out if keep is None else held_out.keep(shown), "accuracy", _accuracy)

    def network_for(self, images: Source, arch: str | None, size: int | None, weights: str | None) -> NetworkChoice:
        """A CIFAR ResNet for small images, else ResNet-18."""
        if arch is not None:
            return NetworkChoice(arch, size, pretrained(arch, size, weights), "as asked")
        side = shorter_side(images)
        if side <= SMALL_SIDE:
            arch, size = "cifar_resnet32", size or (32 if side >= 24 else max(8, side))
        else:  # 224 pixels, as ImageNet's networks have it; fewer where the images, or the time of a CPU, have no more
            most = 128 if pick_device().type == "cpu" else 224
            arch, size = "resnet18", size or min(most, max(64, side // 32 * 32))
        return NetworkChoice(arch, size, pretrained(arch, size, weights), f"images of about {side} pixels")

    def untrained(
        self, source: Source, network: NetworkChoice, like: Preprocessing | None, output: Output | None, seed: int
    ) -> Specialist:
        return specialist_for(source, network.arch, like, network.size, output or "softmax", network.weights, seed)

    def supervised(self, model: Specialist, classes: Sequence[str]) -> Objective:
        return Supervised(model, classes)

    def supervised_schedules(self, images: int, pretrained: bool) -> tuple[Schedule, Schedule]:
        """A network that begins with ImageNet's weights needs far fewer steps, and smaller ones."""
        settings: dict[str, Any] = {"epochs": clamped(150_000 / images, 10, 200), "batch_size": batch_size(images)}
        if pretrained:
            settings = {"epochs": clamped(20_000 / images, 4, 30), "batch_size": 32, "lr": 0.01}
        return SPECIALIST, Schedule(shape="one-cycle", **settings)

    def distillation_schedules(self, images: int, pretrained: bool) -> tuple[Schedule, Schedule]:
        """About 300,000 images seen."""
        return CONSOLIDATION, Schedule(
            epochs=clamped(300_000 / images, 4, 100),
            lr=0.02 if pretrained else 0.1,
            shape="one-cycle",
            batch_size=batch_size(images),
        )

    def plan(self, teachers: Sequence[Specialist], aux: Source, **settings: Any) -> ClassifierConsolidation:
        return ClassifierConsolidation(teachers, aux, **settings)

    def side_by_side(self, models: Sequence[Specialist]) -> Teachers:
        return Teachers(models)

    def measure(
        self, model: evaluation.Classifier, test: Source, so_far: Sequence[str], asked: Sequence[str]
    ) -> Confusion:
        """A class that the model does not know is never its answer."""
        strange = [name for name in model.classes.names if name not in so_far]
        if strange:
            raise DmcError(f"the method's model answers with {strange[0]!r}, a class that has not arrived yet")
        source = test.keep(asked)
        counts_CK, _ = evaluation.answers(model, source)
        matrix: Matrix = np.zeros((len(so_far), len(so_far)), dtype=np.int64)
        rows, columns = ([so_far.index(name) for name in known] for known in (source.classes, model.classes.names))
        matrix[np.ix_(rows, columns)] = counts_CK.numpy()
        return Confusion(so_far, matrix)


def _accuracy(model: Specialist, images: Source) -> str:
    found = evaluation.evaluate(model, images)
    return f"{found.accuracy:.1%} of {found.images:,} images"
