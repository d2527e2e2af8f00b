"""Several specialists used as one: side by side at test time, the source of targets in training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import geometric_mean
from typing import Any, Generic, Self

import torch
from torch import Tensor

from dmc.classes import Classes, ClassUnion
from dmc.config import Centring, Scale
from dmc.data.batch import Batch
from dmc.data.decode import CenterCrop
from dmc.distill.answer_table import AnswerTable, Part
from dmc.distill.balance import balancing_factors, drowned, fair_shares, win_shares
from dmc.distill.cache import AnswerCache, Kept, noise
from dmc.distill.folding import folded
from dmc.distill.targets import build_targets, centred
from dmc.errors import DmcError, first_line, is_out_of_memory
from dmc.models.model import NOT_FINITE, AnyModel
from dmc.models.specialist import Specialist

# The standard deviation that `balanced` gives the logits of targets: that of specialists which fit their images well.
# With 1, a student learns far more slowly (results/unlike-teachers.md).
SPREAD = 3.0


class TeacherGroup(ABC, Generic[AnyModel]):
    """Several models of one kind, over the union of their classes."""

    def __init__(self, models: Sequence[AnyModel], centring: Centring) -> None:
        for teacher in models:
            teacher.module.eval()  # a teacher does not learn, not even batch statistics
        self.centring: Centring = centring
        self.specialists = list(models)
        self.inference_models = list(models)  # the same models, or faster copies after `fold`
        self.name = " + ".join(model.name for model in models)
        self.union = ClassUnion.of([model.names for model in models])
        self.classes = Classes.of(self.union.names)
        self.tables: list[AnswerTable] = []  # that keep their answers; empty: nothing is kept
        self.sound: list[Tensor] = []  # for each teacher, on the device: were all of its answers finite so far?

    @property
    def parameter_count(self) -> int:
        """The number of parameters of all models together."""
        return sum(model.parameter_count for model in self.specialists)

    def to(self, device: torch.device) -> Self:
        for model in self.specialists:
            model.to(device)
        return self

    def fold(self) -> None:
        """Answer with folded copies from now on, which are faster; the specialists themselves stay as they are."""
        self.inference_models = [
            teacher.with_module(folded(teacher.module, teacher.blank())) for teacher in self.specialists
        ]

    def remember(self, cache: AnswerCache) -> None:
        """Keep the answers about stored views in a cache, and ask no teacher twice."""
        self.tables = cache.tables(self.kept())

    def kept(self) -> Sequence[Kept]:
        """Tell what is kept of the answers, for each table."""
        raise DmcError(f"answers of {self.specialists[0].singular}s are not kept; go without a cache")

    @contextmanager
    def blaming(self, teacher: AnyModel) -> Iterator[None]:
        """Name the teacher that fails at images, though it answered when it was loaded."""
        try:
            yield
        except Exception as error:  # whatever a foreign module raises
            if isinstance(error, DmcError) or is_out_of_memory(error):  # of which smaller batches need less
                raise
            raise DmcError(f"{teacher.name} cannot answer: {type(error).__name__}: {first_line(error)}") from None

    @abstractmethod
    def each(self, images_N3HW: Tensor) -> Sequence[Any]:
        """Ask every model, without waiting for the device; `require_finite` checks the answers later."""

    def watch(self, answers: Sequence[Tensor]) -> None:
        """Note, on the device, whether each teacher's answers are finite."""
        finite = [answer.isfinite().all() for answer in answers]
        self.sound = [a & b for a, b in zip(self.sound, finite, strict=True)] if self.sound else finite

    def require_finite(self) -> None:
        """Refuse a teacher that has given answers which are not finite. Waits for the device."""
        sound, self.sound = self.sound, []
        for teacher, finite in zip(self.specialists, sound, strict=False):
            if not finite:
                raise DmcError(f"{teacher.name} {NOT_FINITE}")


class Teachers(TeacherGroup[Specialist]):
    """Classifiers over the union of their classes.

    `logits` gives the target of Eq. 4, which is also the paper's *inference twice* for classifiers: all specialists are
    kept, and their normalised logits concatenated.
    """

    def __init__(self, specialists: Sequence[Specialist], centring: Centring | None = None) -> None:
        if len(specialists) < 2:
            raise DmcError("consolidation needs at least two teachers")
        first = specialists[0]
        for other in specialists[1:]:
            if other.output != first.output:
                raise DmcError(
                    f"teachers disagree about their outputs: {first.name} is {first.output}, "
                    f"{other.name} is {other.output}; train or declare them alike"
                )
        # Sigmoid logits are absolute log-odds: centring would turn "none of these" into "half of these".
        super().__init__(specialists, centring or ("per-teacher" if first.output == "softmax" else "none"))
        for teacher in specialists:
            if len(teacher.classes) == 1 and self.centring == "per-teacher":
                raise DmcError(
                    f"{teacher.name} has one class ({teacher.names[0]!r}): its normalised logit is always 0 (Eq. 4), "
                    "so it teaches nothing; train it with a second class, such as 'other'"
                )
        self.scales: list[float] | None = None

    @property
    def transform(self) -> CenterCrop:
        """The transform that all teachers want, or else to the whole central square; at the largest of their sizes."""
        size = max(s.preprocessing.size for s in self.specialists)
        wanted = {replace(s.transform, size=size) for s in self.specialists}
        return wanted.pop() if len(wanted) == 1 else CenterCrop(size)

    def each(self, images_N3HW: Tensor) -> list[Tensor]:
        """Give every teacher's own logits, each through its own preprocessing."""
        with torch.no_grad():
            answers = [self.asked(teacher, images_N3HW) for teacher in self.inference_models]
        self.watch(answers)
        return answers

    def asked(self, teacher: Specialist, images_N3HW: Tensor) -> Tensor:
        """Give a teacher's own logits; refuse any other answer than one logit for each image and class."""
        with self.blaming(teacher):
            logits_NK = teacher.logits(images_N3HW)
        wanted = (len(images_N3HW), len(teacher.names))
        if logits_NK.shape != wanted:
            given = "x".join(map(str, logits_NK.shape))
            raise DmcError(f"{teacher.name} gives {given} logits to {wanted[0]} images, and has {wanted[1]} classes")
        return logits_NK

    def kept(self) -> list[Kept]:
        """Keep every teacher's logits apart, so that another consolidation can use them."""
        probes = self.each(noise(self.transform.size, self.specialists[0].device))
        return [
            Kept(teacher.settings | {"weights": teacher.fingerprint}, [Part((len(teacher.names),))], probe)
            for teacher, probe in zip(self.specialists, probes, strict=True)
        ]

    def remembered(self, batch: Batch) -> list[Tensor]:
        """Give every teacher's own logits about stored views, from its table where they are there."""
        answers = []
        with torch.no_grad():
            for teacher, table in zip(self.inference_models, self.tables, strict=True):
                answers += table(batch, lambda teacher=teacher: [self.asked(teacher, batch.images_N3HW)])  # type: ignore[misc]
        self.watch(answers)
        return answers

    def targets(self, batch: Batch) -> Tensor:
        """Give the regression target over the union of classes (Eq. 4)."""
        answers = self.remembered(batch) if self.tables else self.each(batch.images_N3HW)
        return build_targets(answers, self.union, self.centring, self.scales)

    def logits(self, images_N3HW: Tensor) -> Tensor:
        """Give the target as the answer of all teachers together; refuse a teacher whose answers are not finite."""
        target_NT = build_targets(self.each(images_N3HW), self.union, self.centring, self.scales)
        self.require_finite()
        return target_NT

    def normalised(self, images_N3HW: Tensor) -> list[Tensor]:
        """Give every teacher's normalised logits, of which the target is made, unscaled (Eq. 4)."""
        answers = self.each(images_N3HW)
        self.require_finite()
        return [centred(logits_NK) for logits_NK in answers] if self.centring == "per-teacher" else answers

    def measure_scales(self, scale: Scale, batches: Iterable[Tensor]) -> None:
        """Choose the number that each teacher's normalised logits are divided by, on auxiliary images.

        Not in the paper: Eq. 4 centres but does not scale, so a teacher with larger logits wins. `none` divides by
        nothing. `pool-std` makes each standard deviation 1. `balanced` lets each teacher win a share of the images in
        proportion to its number of classes, with standard deviations around `SPREAD`. `auto` is `balanced` if a
        teacher would win less than half of its share, or if the logits' size is far from what learning rates are made
        for, and `none` otherwise.
        """
        self.scales = None
        if scale == "none":
            return
        seen = zip(*(self.normalised(images_N3HW) for images_N3HW in batches), strict=True)
        answers = [torch.cat(parts).cpu() for parts in seen]  # balancing takes double precision, which MPS has not
        spreads = [float(answers_NK.std()) for answers_NK in answers]
        for teacher, spread in zip(self.specialists, spreads, strict=True):
            if spread == 0:
                raise DmcError(
                    f"teacher {teacher.name} gives every class of every auxiliary image the same logit, "
                    "so it cannot be scaled"
                )
        peaks_NB = torch.stack([answers_NK.amax(dim=1) for answers_NK in answers], dim=1)
        fair = fair_shares(self.union.columns)
        usual = SPREAD / 3 < geometric_mean(spreads) < SPREAD * 3
        if scale == "auto" and usual and not drowned(win_shares(peaks_NB), fair):
            return
        self.scales = spreads
        if scale != "pool-std":
            factors = balancing_factors(peaks_NB / peaks_NB.new_tensor(spreads), fair)
            self.scales = [spread / (SPREAD * factor) for spread, factor in zip(spreads, factors, strict=True)]
