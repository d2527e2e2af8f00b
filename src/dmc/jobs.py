"""What `train`, `consolidate` and `learn` share: choose what the user left open, then train on labels or merge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dmc.beginning import gently
from dmc.choices import NetworkChoice, ResumedRun, schedule_for, timed
from dmc.config import AUTO, ConsolidateConfig, Length, NetworkConfig, RunConfig
from dmc.consolidation import Consolidation, Joining
from dmc.data.auxiliary import Images, open_auxiliary, require_room
from dmc.data.open import require_outside
from dmc.data.preprocess import Preprocessing
from dmc.data.sources import Source
from dmc.errors import DmcError
from dmc.estimate import cost_of, selecting_seconds, some_batches
from dmc.models.model import Model
from dmc.schedule import Schedule
from dmc.tasks import task_of
from dmc.tasks.base import VisionTask
from dmc.training.held_out import HeldOut
from dmc.training.labeled import fit_labeled, training_cost


@dataclass(frozen=True)
class LabeledTraining:
    """Labeled data, and the settings for training a network on it."""

    task: VisionTask[Any]
    source: Source
    held_out: HeldOut[Any]
    network: NetworkChoice
    length: Length
    config: NetworkConfig
    what: str  # names the network in the log line that announces the training
    begins_as: Model | None = None  # whose weights the network begins with; None: its own

    def run(self, model: Model, out: str | Path | None, how: RunConfig) -> Model:
        """Train the model for the given length, or for one that suits the number of images."""
        require_room(self.source.name, len(self.source), model.transform, self.config.memory_bytes)
        images, begun = len(self.source), ResumedRun.in_folder(out, how.resume)
        paper, _ = self.task.paper_schedules
        usual = self.task.supervised_schedule(images, pretrained=self.network.weights is not None)
        settings: dict[str, Any] = {"weights": self.network.weights}
        if self.begins_as:
            model.begin_as(self.begins_as)
            paper, usual = gently(paper), gently(usual)
            settings["begins_as"] = self.begins_as.fingerprint
        schedule = schedule_for(self.length, paper, usual, begun)
        objective = self.task.supervised(model, self.source.classes)
        if not begun:
            cost = training_cost(objective, model, self.source, schedule)
            schedule = timed(self.length, schedule, images, cost, self.what)
        trained: Model = fit_labeled(
            model,
            self.source,
            objective,
            schedule,
            seed=self.config.seed,
            memory=self.config.memory_bytes,
            workers=self.config.workers,
            out=out,
            how=how,
            settings=settings,
            held_out=self.held_out,
        )
        return trained


@dataclass(frozen=True)
class Merge:
    """What can be chosen of a consolidation before all of its teachers exist."""

    task: VisionTask[Any]
    aux: Source
    config: ConsolidateConfig
    network: NetworkChoice
    length: Length
    begun: ResumedRun | None

    @classmethod
    def chosen(
        cls,
        models: Sequence[Model],
        aux: Images,
        out: str | Path | None,
        how: RunConfig,
        settings: Mapping[str, Any],
        share: float = 1.0,
    ) -> Merge:
        """Check the settings, and choose those that are not given."""
        task = task_of(models)
        length, rest = Length.taken_from(settings)
        length = length.changed({"share": share})
        paper, best = length.profile == "paper", rest.get("recipe") == "best"
        if paper and best:
            raise DmcError("profile 'paper' is the paper's method, and recipe 'best' goes beyond it: choose")
        kind = task.consolidate_config
        config = kind.of({**(kind.paper_form if paper else kind.best_form if best else {}), **rest})
        if config.cache is not None:
            require_outside(Path(config.cache), aux)
        images = open_auxiliary(aux, config)
        if paper:
            config = task.as_in_paper(config, config.arch or models[0].require_arch())
        begun = ResumedRun.in_folder(out, how.resume)
        network = begun.unless(config) if begun else student_for(task, models, images, config)
        return cls(task, images, config, network, length, begun)

    def with_teachers(
        self, teachers: Sequence[Model], joining: Joining | None = None, schedule: Schedule | None = None
    ) -> Consolidation[Any]:
        """Build the consolidation and verify it, now that all teachers exist.

        `joining` are more images to train on; without a `schedule`, one that suits the images is chosen.
        """
        images = min(self.config.select or len(self.aux), len(self.aux))
        _, paper = self.task.paper_schedules
        usual = self.task.distillation_schedule(images, pretrained=self.network.weights is not None)
        network = {"arch": self.network.arch, "size": self.network.size, "weights": self.network.weights}
        network |= {"aux_limit": None}  # the sample is taken already
        schedule = schedule or schedule_for(self.length, paper, usual, self.begun)
        planned = self.task.consolidation(teachers, self.aux, self.config.changed(network), schedule, joining)
        planned.require_room()
        return planned

    def alike(self, old: Model) -> Preprocessing | None:
        """Give the old model's preprocessing if the student has the same architecture, else None."""
        return old.preprocessing if self.task.model.architectures.known(self.network.arch) == old.arch else None

    def timed(self, consolidation: Consolidation[Any], trained: int = 0) -> Consolidation[Any]:
        """Fit the epochs into the minutes, if these are given, and log the plan.

        So many of the first teachers are `trained` already; one of them whose answers cannot be meant is refused.
        """
        if not self.begun:
            batch = some_batches(consolidation)[0][0]
            cost = cost_of(consolidation, batch)
            if trained:
                consolidation.require_plausible(batch, trained)
            images, what = consolidation.trained_on, f"student: {self.network}"
            before = selecting_seconds(consolidation, cost)
            return consolidation.scheduled(timed(self.length, consolidation.schedule, images, cost, what, before))
        return consolidation


def student_for(
    task: VisionTask[Any], teachers: Sequence[Model], aux: Source, asked: ConsolidateConfig
) -> NetworkChoice:
    """Choose the teachers' architecture, or the largest teacher's: the student has to hold what all of them know."""
    named = [teacher for teacher in teachers if teacher.student_arch is not None]
    if asked.from_teacher and asked.weights not in (AUTO, None):
        raise DmcError(f"the student begins either with {asked.weights} weights or with its first teacher's: choose")
    if asked.from_teacher and teachers[0].student_arch is None:
        raise DmcError(
            f"no student can begin with the weights of {teachers[0].name}, which only teaches: name a model that can "
            "learn first, or let it begin anew (`from_teacher=False`)"
        )
    begins_as = f"{teachers[0].name}'s" if asked.from_teacher else ""
    if asked.arch is not None or not named:
        return replace(task.network_for(aux, asked), begins_as=begins_as)
    alike = len({teacher.arch for teacher in teachers}) == 1
    like = teachers[0] if asked.from_teacher else max(named, key=lambda teacher: teacher.parameter_count)
    which = "first" if asked.from_teacher else "largest"
    why = "as the teachers" if alike else f"as the {which} of the teachers, {like.name}"
    wanted = asked.changed({"arch": like.require_arch(), "size": asked.size or like.preprocessing.size})
    return replace(task.network_for(aux, wanted), why=why, begins_as=begins_as)
