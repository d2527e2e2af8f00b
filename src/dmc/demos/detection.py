"""Two detectors of digits become one, offline: one knows 0-4, the other 5-9, and merging them needs no labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dmc.bench.digit_scenes import SIDE, digit_scenes, unlabeled_scenes
from dmc.choices import NetworkChoice
from dmc.config import RESUMED, DetectorConsolidateConfig
from dmc.data.annotations import DetectionImages
from dmc.distill.anchor_teachers import AnchorTeachers
from dmc.distill.detector_teachers import DetectorTeachers
from dmc.evaluation.detection import evaluate
from dmc.exhibits import Cell, Section, Table, count, percent
from dmc.files import refuse_others
from dmc.models.detector import Detector
from dmc.schedule import DETECTION
from dmc.tasks.detection import Detection

FOLDER = "dmc-demo-detect"  # the default
OLD, NEW = tuple("01234"), tuple("56789")
ARCH = "retinanet:timm/test_resnet,width=32,depth=2,scale=2"
NETWORK = NetworkChoice(ARCH, SIDE, weights=None, why="small and quick")
SCENES, UNLABELED, TESTED = 1200, 2400, 300
LABELED_SCHEDULE = DETECTION.changed({"epochs": 9, "lr": 4e-3, "shape": "one-cycle", "batch_size": 16, "flip": False})
UNLABELED_SCHEDULE = LABELED_SCHEDULE.changed({"epochs": 8})


@dataclass(frozen=True)
class Row:
    """One line of the demo's table: VOC07 mAP on old and new digits, as a fraction; None for unknown digits."""

    model: str
    old: float | None
    new: float | None
    parameters: int


def run_demo(seed: int = 0, out: str | Path | None = None) -> list[Row]:
    """Compare two detectors, both side by side, and the merged one; save models and a contact sheet in `out`."""
    folder, task = Path(out) if out is not None else None, Detection()
    if folder:
        refuse_others(folder, "old")
    test = digit_scenes(TESTED, OLD + NEW, seed + 1000, test=True)

    def specialist(names: tuple[str, ...], name: str) -> Detector:
        data, place = digit_scenes(SCENES, names, seed), folder / name if folder else None
        return task.trained(data, NETWORK, LABELED_SCHEDULE, seed=seed, out=place, how=RESUMED)

    old, new = specialist(OLD, "old"), specialist(NEW, "new")
    aux, config = unlabeled_scenes(UNLABELED, seed), DetectorConsolidateConfig(weights=None, seed=seed, held_out=0)
    merge = task.consolidation([old, new], aux, config, UNLABELED_SCHEDULE)
    merged = merge.run(folder / "dmc" if folder else None, RESUMED)
    models: dict[str, Detector | DetectorTeachers] = {
        "knows 0-4": old,
        "knows 5-9": new,
        "both detectors": AnchorTeachers([old, new]),
        "DMC": merged,
    }
    rows = [_row(name, model, test) for name, model in models.items()]
    if folder:
        from dmc.report import writing
        from dmc.report.detection_demo import contact_sheet

        contact_sheet({"knows 0-4": old, "knows 5-9": new, "DMC": merged}, test, folder / "demo.png")
        writing.report_at_end(folder / "dmc", folder, test, [_section(rows)])
    return rows


def _row(name: str, model: Detector | DetectorTeachers, test: DetectionImages) -> Row:
    known = [digit for digit in OLD + NEW if digit in model.classes.names]
    found = evaluate(model, test, keep=known)
    old, new = (found.of(part) if set(part) <= set(known) else None for part in (OLD, NEW))
    return Row(name, old, new, model.parameter_count)


def _section(rows: Sequence[Row]) -> Section:
    """Show the demo's table at the top of its report."""
    cells: list[list[Cell]] = [[r.model, percent(r.old), percent(r.new), count(r.parameters)] for r in rows]
    columns = ["", "digits 0-4, mAP %", "digits 5-9, mAP %", "parameters"]
    text = "One detector knows 0-4, the other 5-9. They are merged by looking at scenes without labels."
    return Section("The demo", [Table("Average precision on test scenes", columns, cells)], text)


def as_table(rows: Sequence[Row]) -> str:
    """Give the demo's table as text."""

    def cell(value: float | None) -> str:
        return f"{value:6.1%}" if value is not None else "     -"

    lines = [f"{'mAP on':15} {'0-4':>6} {'5-9':>6} {'parameters':>11}"]
    lines += [f"{r.model:15} {cell(r.old)} {cell(r.new)} {r.parameters:11,}" for r in rows]
    return "\n".join(lines)


def as_dict(rows: Sequence[Row]) -> dict[str, dict[str, float | None]]:
    """Give the demo's numbers in a form that JSON can hold."""
    return {row.model: {"old": row.old, "new": row.new, "parameters": row.parameters} for row in rows}
