"""What the gap between a merged detector and its teachers side by side is made of: one change at a time.

    python -m benchmarks.detector_ablation DATA -o FOLDER --seeds 0,1     # about two hours on one core

DATA is laid out as DMC_DATA is. Five classes of VOC2012 and five more (profile `night`), two passes over 6,200 COCO
images. The first row is the paper's form, and a control for all others. `agreement` is the student's average precision
against what each teacher is sure of in auxiliary images that were held out, which needs no labels. What is finished in
the folder is read back; `dmc bench voc --profile night` in the same folder shares the teachers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dmc.bench.runner import Bench
from dmc.config import RESUMED
from dmc.methods.base import Learned, Lesson, specialist_for
from dmc.methods.dmc import DMC
from dmc.methods.inference_twice import InferenceTwice
from dmc.recipes.profile import load_profile

STEPS = {"specialist": {"precision": "auto"}, "consolidation": {"precision": "auto", "epochs": 2}}
Changes = Mapping[str, Any]
# By name: changes of the schedule, and of the other settings.
ROWS: dict[str, tuple[Changes, Changes]] = {
    "paper": ({}, {}),
    "rate-0.001": ({"lr": 0.001}, {}),
    "rate-0.0001": ({"lr": 0.0001}, {}),
    "not-clipped": ({"clip": None}, {}),
    "select-3000": ({"epochs": 4}, {"select": 3000}),
    "anchors-512": ({}, {"anchors": 512}),
    "decoded-boxes": ({}, {"matching": "boxes", "anchors": 64}),
    "decoded-boxes-512": ({}, {"matching": "boxes", "anchors": 512}),
    "from-teachers": ({}, {"anchors": 512, "from_teacher": True}),
    "from-teachers-slowly": ({"lr": 0.0001}, {"anchors": 512, "from_teacher": True}),
}


class Changed(DMC):
    """DMC with other settings."""

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        schedule, changes = ROWS[self.name]
        profile = lesson.profile.changed({"consolidation": lesson.profile.consolidation.changed(schedule)})
        teachers = [before.specialists[0], specialist_for(lesson)]
        merge = self.consolidation(teachers, replace(lesson, profile=profile), profile, held_out=96, **changes)
        return Learned([merge.run(lesson.folder / "consolidated", RESUMED)])


def agreement(folder: Path) -> str:
    """Give the student's average precisions against its teachers, as the run's report has them."""
    report = folder / "group-1" / "consolidated" / "report.json"
    if not report.exists():
        return ""
    return " / ".join(f"{100 * value:.1f}" for value in json.loads(report.read_text())["measures"][0]["of_each"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", "-o", type=Path, required=True)
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--rows", default=",".join(ROWS))
    asked = parser.parse_args()
    bench = Bench("voc", 10, load_profile("night", "voc", STEPS), asked.out, asked.data)
    for seed in map(int, asked.seeds.split(",")):
        for method in [InferenceTwice(), *map(Changed, asked.rows.split(","))]:
            if reason := bench.run_cell(method, seed):
                print(f"| {seed} | {method.name} | {reason} |", flush=True)
                continue
            old, new = bench.groups(seed)
            found, classes = bench.measured(method.name, seed, 1), {"old": old, "new": new, "all": [*old, *new]}
            means = " | ".join(f"{100 * found.of(names):.1f}" for names in classes.values())
            print(
                f"| {seed} | {method.name} | {agreement(bench.cell_folder(method.name, seed))} | {means} |", flush=True
            )


if __name__ == "__main__":
    main()
