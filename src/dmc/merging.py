"""What a consolidation is made of, chosen before its teachers are all there: `learn` has yet to train one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dmc.choices import AUTO, BegunRun, Length, NetworkChoice, ProfileName
from dmc.consolidation import Consolidation, Images
from dmc.data.open import open_images, sample_of
from dmc.data.preprocess import Preprocessing
from dmc.data.sources import Source
from dmc.models.model import Model
from dmc.tasks import others, task_of
from dmc.tasks.base import VisionTask
from dmc.training.schedule import Schedule

Limit = int | float | str | None  # of auxiliary images: a number, or a share such as 0.25 or "25%"


@dataclass(frozen=True)
class Merger:
    """A consolidation as far as it can be chosen before all of its teachers are there."""

    task: VisionTask[Any]
    aux: Source
    network: NetworkChoice
    length: Length
    begun: BegunRun | None
    settings: Mapping[str, Any]

    @classmethod
    def chosen(
        cls,
        models: Sequence[Model],
        aux: Images,
        begun: BegunRun | None,
        *,
        arch: str | None = None,
        size: int | None = None,
        weights: str | None = AUTO,
        aux_limit: Limit = None,
        profile: ProfileName = "auto",
        minutes: float | None = None,
        schedule: Schedule | None = None,
        **settings: Any,
    ) -> Merger:
        task = task_of(models)
        task.refuse(settings, others(task))
        changes = {key: settings.pop(key) for key in list(settings) if key in Schedule.model_fields}
        images = open_images(aux)
        if aux_limit is not None:
            images = sample_of(images, aux_limit, settings.get("seed", 0))
        if profile == "paper":
            arch, weights = arch or models[0].require_arch(), task.paper_weights if weights == AUTO else weights
            settings = {**task.paper_form, **settings}
        network = begun.unless(arch, size, weights) if begun else student_for(task, models, images, arch, size, weights)
        return cls(task, images, network, Length(profile, minutes, schedule, changes), begun, settings)

    def plan(self, teachers: Sequence[Model]) -> Consolidation[Any]:
        usual = self.task.distillation_schedules(len(self.aux), self.network.weights is not None)
        settings = {"size": self.network.size, "weights": self.network.weights, **self.settings}
        schedule = self.length.of(*usual, self.begun)
        return self.task.plan(teachers, self.aux, arch=self.network.arch, schedule=schedule, **settings)

    def alike(self, old: Model) -> Preprocessing | None:
        """What the student sees, where it is a network like an old one."""
        return old.preprocessing if self.network.arch == old.arch else None

    def timed(self, plan: Consolidation[Any]) -> Consolidation[Any]:
        """Give it as many passes as there is time for, and say what it will do."""
        if not self.begun:
            pace = plan.pace(plan.some_batches()[0][0])
            plan.schedule = self.length.timed(plan.schedule, plan.trained_on, pace, f"student: {self.network}")
        return plan


def student_for(
    task: VisionTask[Any],
    teachers: Sequence[Model],
    aux: Source,
    arch: str | None,
    size: int | None,
    weights: str | None,
) -> NetworkChoice:
    """The architecture of all teachers, or of the largest: it has to hold what all of them know."""
    named = [teacher for teacher in teachers if teacher.arch is not None]
    if arch is not None or not named:
        return task.network_for(aux, arch, size, weights)
    largest = max(named, key=lambda teacher: teacher.parameter_count)
    alike = len({teacher.arch for teacher in teachers}) == 1
    why = "as the teachers" if alike else f"as the largest of the teachers, {largest.name}"
    size = size or largest.preprocessing.size
    return replace(task.network_for(aux, largest.require_arch(), size, weights), why=why)
