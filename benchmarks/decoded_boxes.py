"""Merge the digits demo's detectors anchor by anchor and through decoded boxes, and detectors that are unlike.

    python benchmarks/decoded_boxes.py [--seeds 0,1] [--out FOLDER]

Equal teachers are two RetinaNets, one of 0-4 and one of 5-9. In unlike pairs, the one of 5-9 is an FCOS, or a RetinaNet
with other anchors. The student is always the demo's RetinaNet.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dmc.bench.digit_scenes import digit_scenes, unlabeled_scenes
from dmc.config import RESUMED, DetectorConsolidateConfig, Matching
from dmc.demos.detection import (
    ARCH,
    LABELED_SCHEDULE,
    NETWORK,
    NEW,
    OLD,
    SCENES,
    TESTED,
    UNLABELED,
    UNLABELED_SCHEDULE,
)
from dmc.distill.detector_teachers import DetectorTeachers
from dmc.evaluation.detection import evaluate
from dmc.models.detector import Detector
from dmc.tasks.detection import Detection

UNLIKE = {"FCOS": "fcos:timm/test_resnet,width=64,depth=2", "RetinaNet, scale=4": ARCH.replace("scale=2", "scale=4")}


def compare(seed: int, folder: Path) -> list[str]:
    """Train the teachers, merge them in every form, and give a row for each; finished parts are read again."""
    task, test = Detection(), digit_scenes(TESTED, OLD + NEW, seed + 1000, test=True)
    aux, config = unlabeled_scenes(UNLABELED, seed), DetectorConsolidateConfig(weights=None, seed=seed, held_out=0)

    def specialist(arch: str, names: tuple[str, ...], place: str) -> Detector:
        network, data = replace(NETWORK, arch=arch), digit_scenes(SCENES, names, seed)
        return task.trained(data, network, LABELED_SCHEDULE, seed=seed, out=folder / place, how=RESUMED)

    def row(what: str, model: Detector | DetectorTeachers) -> str:
        found = evaluate(model, test, keep=[digit for digit in OLD + NEW if digit in model.classes.names])
        known = [f"{found.of(part):.1%}" if set(part) <= set(found.per_class) else "-" for part in (OLD, NEW)]
        return f"| {seed} | {what} | {' | '.join(known)} |"

    def merged(teachers: Sequence[Detector], matching: Matching, place: str) -> Detector:
        asked = config.changed({"matching": matching, "arch": ARCH})
        return task.consolidation(teachers, aux, asked, UNLABELED_SCHEDULE).run(folder / place, RESUMED)

    old, new = specialist(ARCH, OLD, "old"), specialist(ARCH, NEW, "new")
    rows = [row("two RetinaNets side by side", task.side_by_side([old, new]))]
    for matching in ("anchors", "boxes"):
        rows.append(row(f"two RetinaNets, by {matching}", merged([old, new], matching, matching)))
        print(rows[-1], flush=True)
    for name, arch in UNLIKE.items():
        other = specialist(arch, NEW, name)
        rows.append(row(f"RetinaNet and {name} side by side", task.side_by_side([old, other])))
        rows.append(row(f"RetinaNet and {name}, by boxes", merged([old, other], "boxes", f"{name} merged")))
        print(rows[-2], rows[-1], sep="\n", flush=True)
    return rows


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--seeds", default="0")
    options.add_argument("--out", type=Path, default=Path("decoded-boxes"))
    given = options.parse_args()
    rows = [row for seed in given.seeds.split(",") for row in compare(int(seed), given.out / seed)]
    print("\n| seed | mAP on | 0-4 | 5-9 |\n|---|---|---|---|", *rows, sep="\n")


if __name__ == "__main__":
    main()
