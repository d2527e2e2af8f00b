"""Classifiers: a folder of images per class, cross entropy, Eq. 3 and 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
from pydantic import BaseModel, Field

from dmc.choices import NetworkChoice, batch_size, clamped, pretrained, shorter_side
from dmc.classes import listed
from dmc.config import (
    ClassifierConsolidateConfig,
    ClassifierPredictConfig,
    ClassifierTrainConfig,
    NetworkConfig,
    Output,
)
from dmc.consolidation import Joining
from dmc.data.decode import DecodeError
from dmc.data.open import open_labeled, open_with_held_out, refuse_trained_on
from dmc.data.preprocess import Preprocessing
from dmc.data.sources import Record, Source
from dmc.data.subsets import share_held_out
from dmc.device import pick_device
from dmc.distill.teachers import Teachers
from dmc.errors import DmcError
from dmc.evaluation import classification as evaluation
from dmc.evaluation.matching import ClassChoice
from dmc.exhibits import AnyExhibit
from dmc.metrics.incremental import Confusion, Matrix
from dmc.models.exported import Exportable
from dmc.models.load import class_for
from dmc.models.specialist import Specialist
from dmc.schedule import CONSOLIDATION, SPECIALIST, Schedule
from dmc.tasks import classifier_export
from dmc.tasks.base import NOTHING, Names, Place, VisionTask
from dmc.tasks.classifier_consolidation import ClassifierConsolidation
from dmc.tasks.classifier_exhibits import exhibits
from dmc.text import one_line
from dmc.training.classification import Supervised
from dmc.training.held_out import HeldOut, tested_classes
from dmc.training.objective import Objective

SMALL_SIDE = 48  # pixels; up to here images are CIFAR's kind, and a CIFAR ResNet is the network for them


class ClassesAnswer(BaseModel):
    """What a classifier says about an image."""

    classes: dict[str, float] = Field(description="The most probable classes, best first, and their probabilities")


class Classification(VisionTask[Specialist]):
    """The task of classifiers: which class an image shows."""

    model = Specialist
    train_config, consolidate_config = ClassifierTrainConfig, ClassifierConsolidateConfig
    predict_config = ClassifierPredictConfig
    paper_arch, paper_schedules = "cifar_resnet32", (SPECIALIST, CONSOLIDATION)
    metric, measurement = "accuracy", Confusion
    answer_form = ClassesAnswer
    least_classes = 2  # of a softmax

    def is_architecture(self, arch: str) -> bool:
        return class_for(arch) is Specialist

    def is_labeled(self, data: Place) -> bool:
        return True

    def open_labeled(self, data: Place, val: Place | None, keep: Names) -> tuple[Source, HeldOut[Specialist]]:
        """Open the data; `auto` tests on the folder beside it, or holds a share of it out."""
        source, beside = open_with_held_out(data)
        if keep is not None:
            source = source.keep(keep)
        if val == "auto" and beside is None:
            source, held_out = share_held_out(source)
            return source, HeldOut(held_out, "accuracy", _accuracy)
        if val is None or val in NOTHING:
            return source, HeldOut(None, "accuracy", _accuracy)
        held_out = beside if beside and val == "auto" else open_labeled(val)
        refuse_trained_on(held_out, source)
        shown = tested_classes(held_out, source, keep)
        return source, HeldOut(held_out if keep is None else held_out.keep(shown), "accuracy", _accuracy)

    def network_for(self, images: Source, asked: NetworkConfig) -> NetworkChoice:
        """Choose a CIFAR ResNet for small images, else ResNet-18."""
        arch, size, weights = asked.arch, asked.size, asked.weights
        if arch is not None:
            return NetworkChoice(arch, size, pretrained(arch, size, weights), "as asked")
        side = shorter_side(images)
        if side <= SMALL_SIDE:
            arch, size = "cifar_resnet32", size or (32 if side >= 24 else max(8, side))
        else:  # 224 pixels, as ImageNet's networks; fewer where images are smaller, or a CPU would take too long
            most = 128 if pick_device().type == "cpu" else 224
            arch, size = "resnet18", size or min(most, max(64, side // 32 * 32))
        return NetworkChoice(arch, size, pretrained(arch, size, weights), f"images of about {side} pixels")

    def untrained(
        self, source: Source, network: NetworkChoice, like: Preprocessing | None, output: Output | None, seed: int
    ) -> Specialist:
        names, output = source.classes, output or "softmax"
        if len(names) < 2:
            raise DmcError(
                f"{source.name} has one class ({names[0]!r}), and no image shows what is not of it: a classifier needs "
                "two or more, such as 'other'"
            )
        preprocessing = self.seen_by(network, like)
        return Specialist.untrained(network.arch, names, preprocessing, output, seed, network.weights)

    def supervised(self, model: Specialist, classes: Sequence[str]) -> Objective:
        return Supervised(model, classes)

    def supervised_schedule(self, images: int, pretrained: bool) -> Schedule:
        """Train a network with ImageNet's weights for far fewer steps, and smaller ones."""
        settings: dict[str, Any] = {"epochs": clamped(150_000 / images, 10, 200), "batch_size": batch_size(images)}
        if pretrained:
            settings = {"epochs": clamped(20_000 / images, 4, 30), "batch_size": 32, "lr": 0.01}
        return Schedule(shape="one-cycle", **settings)

    def distillation_schedule(self, images: int, pretrained: bool) -> Schedule:
        """Show the student about 300,000 images."""
        return Schedule(
            epochs=clamped(300_000 / images, 4, 100),
            lr=0.02 if pretrained else 0.1,
            shape="one-cycle",
            batch_size=batch_size(images),
        )

    def consolidation(
        self,
        teachers: Sequence[Specialist],
        aux: Source,
        config: ClassifierConsolidateConfig,
        schedule: Schedule,
        joining: Joining | None = None,
    ) -> ClassifierConsolidation:
        return ClassifierConsolidation(teachers, aux, config, schedule, joining)

    def exportable(self, model: Specialist, pixels: bool) -> Exportable:
        return classifier_export.exportable(model, pixels)

    def side_by_side(self, models: Sequence[Specialist]) -> Teachers:
        return Teachers(models)

    def measure(
        self, model: evaluation.Classifier, test: Source, so_far: Sequence[str], asked: Sequence[str]
    ) -> Confusion:
        """Count the answers; a class that the model does not know is never one of them."""
        strange = [name for name in model.classes.names if name not in so_far]
        if strange:
            raise DmcError(f"the method's model answers with {strange[0]!r}, a class that has not arrived yet")
        source = test.keep(asked)
        counts_CK, _ = evaluation.answers(model, source)
        matrix: Matrix = np.zeros((len(so_far), len(so_far)), dtype=np.int64)
        rows, columns = ([so_far.index(name) for name in known] for known in (source.classes, model.classes.names))
        matrix[np.ix_(rows, columns)] = counts_CK.numpy()
        return Confusion(so_far, matrix)

    def evaluate(
        self, model: Specialist | Teachers, data: Place, **choice: Unpack[ClassChoice]
    ) -> evaluation.Evaluation:
        return evaluation.evaluate(model, data, **choice)

    def exhibits(self, model: Specialist, teachers: Mapping[str, Specialist], data: Place) -> list[AnyExhibit]:
        return exhibits(model, teachers, evaluation.matched(model, data, known=True))

    def predict(
        self, model: Specialist, records: Sequence[Record], config: ClassifierPredictConfig
    ) -> list[dict[str, float] | DecodeError]:
        """Give the most probable classes of each image, most probable first."""
        return evaluation.classified(model, records, config.top)

    def answer_as_dict(self, answer: dict[str, float]) -> dict[str, Any]:
        return {"classes": answer}

    def answer_as_text(self, answer: dict[str, float]) -> str:
        return ", ".join(f"{one_line(name)} {p:.1%}" for name, p in answer.items())

    def answer_as_scores(self, answer: dict[str, float]) -> list[tuple[str, float]]:
        return list(answer.items())

    def size_as_text(self, size: int) -> str:
        return f"{size}x{size}"

    def teachers_as_text(self, seen: Mapping[str, Any]) -> list[str]:
        """Say whether one teacher would drown the others."""
        spreads = ", ".join(f"{spread:g}" for spread in seen["logit_spreads"])
        won, fair = (" / ".join(f"{share:.0%}" for share in seen[what]) for what in ("wins", "fair"))
        lines = [
            f"side by side, as they are, on {seen['images']} auxiliary images: their classes win {won} "
            f"({fair} by number of classes); spread of their logits {spreads}; scale for training: {seen['scale']}"
        ]
        for name in seen["drowned"]:
            mended = f": scale {seen['scale']} evens that out" if seen["scale"] != "none" else ": try scale auto"
            lines.append(f"  {name} would be drowned{mended if seen['competing'] else ''}")
        return [*lines, *_pool_as_text(seen["pool"], seen["images"])]


def _pool_as_text(pool: Mapping[str, Any], images: int) -> list[str]:
    """Say how well the auxiliary images will teach, and which classes they hardly show."""
    of_each = " / ".join(f"{one:.2f}" for one in pool["varieties"])
    lines = [f"will these images do? {pool['verdict']}: variety of the teachers' answers {of_each} (0 to 1)"]
    if pool["rare"]:
        never = [name for name in pool["rare"] if not pool["suggested"][name]]
        which = f"{len(pool['rare'])} of {len(pool['suggested'])} classes"
        lines.append(f"  {which} are suggested by few of {images} images: {listed(pool['rare'])}")
        if never:
            lines.append(f"  never suggested: {listed(never)}; add images that look a little like them")
    return lines


def _accuracy(model: Specialist, images: Source) -> str:
    found = evaluation.evaluate(model, images)
    return f"{found.accuracy:.1%} of {found.images:,} images"
