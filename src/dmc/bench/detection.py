"""The paper's detection tables: which models stand in their rows, how each is made, what it scores.

DIR/detectors-PROFILE/seed-0/trained/NAME           a detector of some classes, for all rows and splits that want it
DIR/detectors-PROFILE/seed-0/SPLIT/bench.json       what was asked: profile, old and new classes
DIR/detectors-PROFILE/seed-0/SPLIT/models/NAME      what was made of those detectors
DIR/detectors-PROFILE/seed-0/SPLIT/rows/NAME.json   a finished row

Recipes of one profile may share DIR: what one of them has made, the others find.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from dmc.bench import datasets
from dmc.bench.coco import with_other_objects, without_voc_objects
from dmc.bench.datasets import open_dataset_folder
from dmc.config import DETECTION, Centring, Schedule
from dmc.data.annotations import DetectionImages, open_annotated
from dmc.data.open import open_images
from dmc.data.sources import Source
from dmc.data.subsets import sampled
from dmc.distill.detector_teachers import DetectorTeachers
from dmc.errors import DmcError, require_known
from dmc.evaluation.detection import evaluate
from dmc.files import digest, settle, without_nan, write_text
from dmc.methods import adapted_shmelkov as baselines
from dmc.models.detector import Detector
from dmc.recipes.profile import read_recipes
from dmc.recipes.recipe import published
from dmc.tasks.detector_consolidation import consolidate
from dmc.training import detection as training
from dmc.training.run_folder import made

log = logging.getLogger("dmc")
Kind = Literal["old", "new", "oracle", "finetuning", "shmelkov", "inference-twice", "dmc"]


class RowPlan(BaseModel):
    """How a row's model is made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    aux: str | None = None  # None: the profile's
    share: float = Field(default=1.0, gt=0, le=1)  # of the auxiliary images
    more_epochs: int = Field(default=1, ge=1)  # times as many epochs of consolidation
    centring: Centring | None = None
    new_arch: str | None = None  # of the new classes' detector; None: as the others
    weights: str | None = None  # of that

    @property
    def slug(self) -> str:
        """Names the row's files: all that makes it differ from others."""
        return _slug(" ".join(f"{key} {value}" for key, value in self.model_dump(exclude_defaults=True).items()))


class DetectionRecipe(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    source: str
    old: tuple[str, ...]
    new: tuple[str, ...]  # none: each of the old ones in its turn
    new_arch: str | None = None
    new_epochs: int = Field(default=1, ge=1)  # times as many on the new classes alone, where those have few images
    rows: dict[str, RowPlan]
    profiles: dict[str, dict[str, Any]] = {}

    def at(self, profile: str) -> DetectionRecipe:
        return self.model_validate(self.model_dump() | self.profiles.get(profile, {}))

    def plan(self, label: str) -> RowPlan:
        """A row's; the recipe's network for the new classes holds where the row needs one and names none."""
        row = self.rows[label]
        needs_new = row.kind in ("new", "inference-twice", "dmc")
        return row.model_copy(update={"new_arch": row.new_arch or self.new_arch}) if needs_new else row

    def needed_data(self, profile: DetectionProfile) -> list[str]:
        pools = {row.aux or profile.aux for row in self.at(profile.name).rows.values() if row.kind == "dmc"}
        return [profile.data, *(["coco2017"] if pools & {"coco-others", "coco-exclusive"} else [])]

    def listed(self, profile: DetectionProfile) -> dict[str, Any]:
        """Describe the recipe in words and numbers."""
        shown = self.at(profile.name)
        return {
            "title": shown.title,
            "source": shown.source,
            "group sizes": [len(shown.old), len(shown.new)] if shown.new else [len(shown.old) - 1, 1],
            "methods": list(shown.rows),
            "settings": list(shown.splits) if not shown.new else [],
            "classes": len(shown.old) + len(shown.new),
            "data": datasets.described(self.needed_data(profile)),
        }

    @property
    def splits(self) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        """Old and new classes, by name."""
        if self.new:
            return {"": (self.old, self.new)}
        return {name: (tuple(n for n in self.old if n != name), (name,)) for name in self.old}


class DetectionProfile(BaseModel):
    """The defaults are the paper's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    arch: str = "retinanet_resnet50_fpn"
    size: int = 640
    weights: str = "imagenet"  # or random, or a file below the data root
    data: str = "voc2007"
    aux: str = "coco-others"
    training: Schedule = DETECTION
    consolidation: Schedule = DETECTION

    @property
    def differences(self) -> dict[str, Any]:
        """All that is not the paper's."""
        return self.model_dump(mode="json", exclude_defaults=True)


def load_detection_recipes() -> dict[str, DetectionRecipe]:
    recipes = read_recipes("detection.yaml")["recipes"]
    return {name: DetectionRecipe.model_validate(content) for name, content in recipes.items()}


def load_detection_profile(name: str) -> DetectionProfile:
    profiles = read_recipes("detection.yaml")["profiles"]
    require_known("profile", name, profiles)
    changes = dict(profiles[name])
    for key in ("training", "consolidation"):
        changes[key] = DETECTION.model_dump() | changes.get(key, {})
    return DetectionProfile(name=name, **changes)


@dataclass(frozen=True)
class DetectionBench:
    """One split of the classes into old and new ones."""

    profile: DetectionProfile
    old: tuple[str, ...]
    new: tuple[str, ...]
    folder: Path
    data_root: Path | None
    seed: int = 0
    new_epochs: int = 1

    def settle(self) -> None:
        """Write down what is made here, or refuse a folder in which something else was."""
        asked = {"profile": self.profile.differences, "old": self.old, "new": self.new, "new_epochs": self.new_epochs}
        settle(self.folder, asked)

    def data(self) -> tuple[DetectionImages, DetectionImages]:
        """Training and test scenes with all of the split's classes."""
        folder, train, test = open_dataset_folder(self.profile.data, self.data_root)
        names = [*self.old, *self.new]
        scenes = open_annotated(f"{folder},split={train}"), open_annotated(f"{folder},split={test}")
        absent = [name for name in names if name not in scenes[0].classes]
        if absent:
            raise DmcError(f"{folder} has no object of class {absent[0]!r}")
        return scenes[0].keep(names), scenes[1].keep(names, empty=True)

    def aux(self, row: RowPlan) -> Source:
        name = row.aux or self.profile.aux
        if name in ("coco-others", "coco-exclusive"):
            folder, annotations, images = open_dataset_folder("coco2017", self.data_root)
            choose = with_other_objects if name == "coco-others" else without_voc_objects
            source: Source = choose(folder / annotations, folder / images)
        else:
            source = open_images(str((self.data_root or Path()) / name))
        return source if row.share == 1 else sampled(source, round(row.share * len(source)))

    def result(self, row: RowPlan) -> dict[str, Any]:
        """Average precisions as fractions, or why there are none. Finished rows are not made again."""
        path = self.folder / "rows" / f"{row.slug}.json"
        if not path.exists():
            try:
                found = self._measured(row)
            except DmcError as error:
                return {"failed": str(error)}
            write_text(path, json.dumps(found, indent=2) + "\n")
        measured: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return measured

    def _measured(self, row: RowPlan) -> dict[str, Any]:
        started = time.monotonic()
        train, test = self.data()
        model = self._model(row, train)
        found = evaluate(model, test, keep=[name for name in test.classes if name in model.classes.names])
        knows = {part: [n for n in names if n in found.per_class] for part, names in self._parts().items()}
        means = {part: found.of(names) for part, names in knows.items() if len(names) == len(self._parts()[part])}
        return {
            "per_class": without_nan({name: precision.eleven_points for name, precision in found.per_class.items()}),
            **without_nan({"area": found.mean_area, "coco_50": found.coco_50, **means}),
            "made": made(started),
        }

    def _parts(self) -> dict[str, tuple[str, ...]]:
        return {"old": self.old, "new": self.new, "all": self.old + self.new}

    def _model(self, row: RowPlan, train: DetectionImages) -> Detector | DetectorTeachers:
        if row.kind == "oracle":
            return self._trained(train, self.profile.arch, self.profile.weights, self.profile.training)
        if row.kind == "new":
            return self._new(row, train)
        old = self._trained(train.keep(self.old), self.profile.arch, self.profile.weights, self.profile.training)
        if row.kind == "old":
            return old
        place = self.folder / "models" / row.slug
        if row.kind == "finetuning":
            return baselines.finetune(old, train.keep(self.new), place, self._on_new, self.seed)
        if row.kind == "shmelkov":
            return baselines.adapted_shmelkov(old, train.keep(self.new), place, self._on_new, self.seed)
        teachers = [old, self._new(row, train)]
        if row.kind == "inference-twice":
            return DetectorTeachers(teachers)
        return consolidate(
            teachers,
            self.aux(row),
            place,
            arch=self.profile.arch,
            size=self.profile.size,
            weights=self._weights(self.profile.weights),
            centring=row.centring,
            schedule=longer(self.profile.consolidation, row.more_epochs),
            seed=self.seed,
            held_out=0,
            resume=True,
        )

    @property
    def _on_new(self) -> Schedule:
        return longer(self.profile.training, self.new_epochs)

    def _new(self, row: RowPlan, train: DetectionImages) -> Detector:
        arch, weights = row.new_arch or self.profile.arch, row.weights or self.profile.weights
        return self._trained(train.keep(self.new), arch, weights, self._on_new)

    def _trained(self, scenes: DetectionImages, arch: str, weights: str, schedule: Schedule) -> Detector:
        kind = digest([arch, weights, scenes.classes, schedule.epochs])
        return training.train(
            scenes,
            self.folder.parent / "trained" / f"{_slug(arch)}-{len(scenes.classes)}-classes-{kind}",
            arch=arch,
            size=self.profile.size,
            weights=self._weights(weights),
            schedule=schedule,
            seed=self.seed,
            resume=True,
        )

    def _weights(self, weights: str) -> str | None:
        if weights == "random":
            return None
        return weights if weights == "imagenet" else str((self.data_root or Path()) / weights)


@dataclass(frozen=True)
class DetectionReproduction:
    """A detection recipe under a profile, once for each seed."""

    name: str
    recipe: DetectionRecipe
    profile: DetectionProfile
    seeds: int
    folder: Path
    data_root: Path | None

    def benches(self) -> dict[tuple[str, int], DetectionBench]:
        recipe = self.recipe.at(self.profile.name)
        return {
            (split, seed): DetectionBench(
                self.profile,
                old,
                new,
                self.folder / f"detectors-{self.profile.name}" / f"seed-{seed}" / f"{len(old)}+{len(new)}-{new[0]}",
                self.data_root,
                seed,
                recipe.new_epochs,
            )
            for split, (old, new) in recipe.splits.items()
            for seed in range(self.seeds)
        }

    def download(self) -> None:
        datasets.download(self.recipe.needed_data(self.profile), self.data_root)

    def made(self, rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
        """How each row was made, with all seeds."""
        found: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            name = f"{row['setting']} {row['row']}".strip()
            found.setdefault(name, []).extend([row["made"]] if "made" in row else [])
        return found

    def run(self) -> list[dict[str, Any]]:
        """All rows, beside the published ones. The data is looked for before anything trains."""
        recipe, benches = self.recipe.at(self.profile.name), self.benches()
        first = next(iter(benches.values()))
        first.data()
        for row in recipe.rows.values():
            if row.kind == "dmc":
                first.aux(row)
        for bench in benches.values():
            bench.settle()
        of_paper = {(row.get("setting", ""), row["row"]): row for row in published(self.name)}
        found = []
        for (split, seed), bench in benches.items():
            for label in recipe.rows:
                measured = bench.result(recipe.plan(label))
                said = measured.get("failed") or f"{_mean(measured['per_class'].values()):.1%} mAP"
                log.info(f"{', '.join(filter(None, [split, label, f'seed {seed}']))}: {said}")
                alike = (recipe.old, recipe.new) == (self.recipe.old, self.recipe.new)  # or other groups, other numbers
                paper = of_paper.get((split, label), {}) if alike else {}
                found.append({"setting": split, "seed": seed, "row": label, **measured, "published": paper})
        if all("failed" in row for row in found):
            raise DmcError(f"no row of {self.name} could be made")
        return found


def _mean(values: Iterable[float | None]) -> float:
    return float(np.mean([value for value in values if value is not None]))


def longer(schedule: Schedule, times: int) -> Schedule:
    return schedule.model_copy(update={"epochs": schedule.epochs * times})


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
