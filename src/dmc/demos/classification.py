"""The whole story in a minute, offline: two digit specialists become one model by looking at letters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dmc.bench.digits import digits, letters
from dmc.choices import NetworkChoice
from dmc.config import RESUMED, ClassifierConsolidateConfig
from dmc.data.preprocess import Preprocessing
from dmc.data.sources import Source
from dmc.distill.teachers import Teachers
from dmc.evaluation.classification import evaluate
from dmc.exhibits import Cell, Section, Table, count, percent
from dmc.files import refuse_others
from dmc.models.specialist import Specialist
from dmc.report import writing
from dmc.report.classification_demo import TITLES, Row, draw
from dmc.schedule import Schedule
from dmc.tasks.classification import Classification
from dmc.training.labeled import fit_labeled

FOLDER = "dmc-demo"  # the default
OLD, NEW = tuple("01234"), tuple("56789")
LETTERS = 8000
NETWORK = NetworkChoice("cifar_resnet8", size=None, weights=None, why="small and quick")
PREPROCESSING = Preprocessing(size=8, mean=(0.3,), std=(0.37,))
# Short schedules, so that two cores need less than a minute; a mirrored digit is no digit.
LABELED = Schedule(epochs=30, shape="one-cycle", batch_size=64, weight_decay=5e-3, flip=False)
UNLABELED = Schedule(epochs=12, shape="one-cycle", batch_size=64, flip=False)


def run_demo(seed: int = 0, out: str | Path | None = None) -> list[Row]:
    """Compare fine-tuning, DMC, two specialists side by side and joint training; save models and a picture in `out`."""
    folder, task = Path(out) if out is not None else None, Classification()
    if folder:
        refuse_others(folder, "old")
    data, test, aux = digits(seed, test=False), digits(seed, test=True), letters(LETTERS, seed)
    old_data, new_data = data.keep(OLD), data.keep(NEW)

    def specialist(source: Source, name: str) -> Specialist:
        place = folder / name if folder else None
        return task.trained(source, NETWORK, LABELED, like=PREPROCESSING, seed=seed, out=place, how=RESUMED)

    old, new, joint = specialist(old_data, "old"), specialist(new_data, "new"), specialist(data, "oracle")
    wide = old.widened(NEW, seed)
    tuned = fit_labeled(wide, new_data, task.supervised(wide, NEW), LABELED, seed=seed)
    config = ClassifierConsolidateConfig(seed=seed, **ClassifierConsolidateConfig.paper_form)
    merged = task.consolidation([old, new], aux, config, UNLABELED).run(folder / "dmc" if folder else None, RESUMED)

    labeled = LABELED.epochs * len(data)  # what the two specialists saw together, and what joint training saw
    rows = [
        _row("finetuning", tuned, test, labeled),
        _row("dmc", merged, test, labeled + UNLABELED.epochs * LETTERS),
        _row("inference-twice", Teachers([old, new]), test, labeled),
        _row("oracle", joint, test, labeled),
    ]
    if folder:
        draw(rows, [old_data, new_data, aux], folder / "demo.png")
        writing.report_at_end(folder / "dmc", folder, test, [_section(rows)])
    return rows


def _row(method: str, model: Specialist | Teachers, test: Source, images_seen: int) -> Row:
    result = evaluate(model, test)
    return Row(method, result.of(OLD), result.of(NEW), result.accuracy, model.parameter_count, images_seen)


def _section(rows: Sequence[Row]) -> Section:
    """Show the demo's table at the top of its report."""
    cells: list[list[Cell]] = [
        [TITLES[r.method], percent(r.old), percent(r.new), percent(r.all), count(r.parameters), count(r.images_seen)]
        for r in rows
    ]
    columns = ["", "digits 0-4, %", "digits 5-9, %", "all, %", "parameters", "images seen"]
    text = "One specialist knows 0-4, another 5-9. They are merged by looking at letters, never at a digit."
    return Section("The demo", [Table("Accuracy on test digits", columns, cells)], text)


def as_table(rows: Sequence[Row]) -> str:
    """Give the demo's table as text."""
    lines = [f"{'accuracy on':18} {'0-4':>6} {'5-9':>6} {'all':>6} {'parameters':>11} {'images seen':>12}"]
    lines += [
        f"{TITLES[r.method]:18} {r.old:6.1%} {r.new:6.1%} {r.all:6.1%} {r.parameters:11,} {r.images_seen:12,}"
        for r in rows
    ]
    return "\n".join(lines)


def as_dict(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Give the demo's numbers in a form that JSON can hold."""
    return {row.method: {"old": row.old, "new": row.new, "all": row.all} for row in rows}
