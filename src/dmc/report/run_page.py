"""The report of a training, a consolidation or a `learn`: what went in, how it went, what came out."""

from __future__ import annotations

import logging
from pathlib import Path

from dmc.classes import ClassUnion, counted, listed
from dmc.errors import DmcError
from dmc.exhibits import (
    AnyExhibit,
    BarChart,
    Cell,
    Exhibit,
    Facts,
    Gallery,
    Line,
    LineChart,
    Page,
    Section,
    Table,
    count,
)
from dmc.models.load import load
from dmc.models.model import Model
from dmc.progress import duration
from dmc.report.run_folder import RunFolder
from dmc.report.run_records import TeacherRecord
from dmc.tasks import task_of
from dmc.tasks.base import Place
from dmc.training.findings import SavedFindings

log = logging.getLogger("dmc")
TITLES = {"train": "Training", "consolidate": "Consolidation"}
SPECIALIST = "specialist"  # the folder of `learn`'s first training


def run_page(folder: Path, data: Place | None = None) -> Page:
    """Report on a run; with labeled data also on how well its model, and its teachers, do there."""
    first = folder / SPECIALIST / "run.json"
    run = RunFolder.read(folder if (folder / "run.json").exists() else first.parent)
    sections = [] if data is None else [measured(run, data)]
    sections += [went_in(run), training(run, "Training")]
    if run.folder == folder and first.exists():
        sections.append(training(RunFolder.read(first.parent), "Training of the new classes' specialist"))
    if run.findings:
        sections.append(agreement(run, run.findings))
    title = f"{TITLES.get(run.record.command, 'Run')}: {folder.resolve().name}"
    return Page(title, progress_of(run), [*sections, made(run)], run.findings.warnings if run.findings else ())


def is_run(folder: Path) -> bool:
    """Tell whether a folder holds a run of `train`, `consolidate` or `learn`."""
    return any((folder / place / "run.json").exists() for place in (".", SPECIALIST))


def progress_of(run: RunFolder) -> str:
    """Say what is trained, and how far it is."""
    classes = run.result.label_names if run.result else run.record.classes
    what = f"{run.record.network.arch or 'a network'} with {counted(classes)}"
    if run.result:
        return f"{what}, trained in {duration(run.epochs[-1].seconds)}" if run.epochs else what
    done = f"epoch {run.epochs[-1].epoch} of {run.total_epochs}" if run.epochs else "before the end of its first epoch"
    return f"{what}, not finished: {done}"


def went_in(run: RunFolder) -> Section:
    """Show the teachers, their classes and the auxiliary images; or the labeled images of a training."""
    record, shown = run.record, list[AnyExhibit]()
    if record.data:
        text = f"{record.data.images:,} labeled images of {counted(record.data.classes)} in {record.data.name}"
        return Section("What it learned from", [Facts({"classes": listed(record.data.classes, 60)})], text)
    if record.teachers:
        shown.append(teacher_table(record.teachers))
    if record.aux:
        held = f"; {record.aux.held_out:,} of them were not trained on" if record.aux.held_out else ""
        chosen = f"; {record.aux.select:,} were selected to train on" if record.aux.select else ""
        facts = {"auxiliary images": f"{record.aux.images:,} in {record.aux.name}{held}{chosen}"}
        shared = ClassUnion.of([teacher.classes for teacher in record.teachers]).shared
        shown.append(Facts(facts | {"classes that several teachers know": listed(shared, 60) or "none"}))
    if run.findings and run.findings.sheet:
        note = "Some of them, at random, as the student sees them."
        sheet = [Exhibit(picture) for picture in run.findings.sheet]
        shown.append(Gallery("auxiliary-images", "The auxiliary images", sheet, note))
    return Section("What went in", shown)


def called(i: int, teacher: TeacherRecord) -> str:
    """Give the name of a teacher in a report: its number, and the last part of where it came from."""
    return f"{i}: {Path(teacher.place).name or 'teacher'}"


def teacher_table(teachers: tuple[TeacherRecord, ...]) -> Table:
    rows: list[list[Cell]] = []
    for i, teacher in enumerate(teachers, start=1):
        others = {name for other in teachers if other is not teacher for name in other.classes}
        shared = len(others.intersection(teacher.classes))
        known = listed(teacher.classes, 20)
        rows.append([called(i, teacher), teacher.arch or "", count(len(teacher.classes)), count(shared), known])
    columns = ["teacher", "architecture", "classes", "shared with others", "names"]
    return Table("Teachers", columns, rows)


def training(run: RunFolder, title: str) -> Section:
    """Show the loss of each epoch, and the time that it took."""
    if not run.epochs:
        return Section(title, [], "No epoch is finished yet.")
    last = run.epochs[-1]
    facts = {
        "epochs": f"{last.epoch} of {run.total_epochs or last.epoch}",
        "time": duration(last.seconds),
        "images seen": f"{last.images:,}",
        "images per second": f"{last.images / max(last.seconds, 1e-9):,.0f}",
        "last loss": f"{last.loss:.4g}",
    }
    having = {name: [epoch for epoch in run.epochs if epoch.losses.get(name, 0) > 0] for name in last.losses}
    lines = [
        Line(name, [epoch.epoch for epoch in there], [epoch.losses[name] for epoch in there])
        for name, there in having.items()
        if there  # a loss of 0 has no place on a logarithmic axis
    ]
    name = "loss" if title == "Training" else "specialist-loss"
    chart = LineChart(name, "Loss of each epoch", "epoch", "mean loss (log scale)", lines, losses=True)
    return Section(title, [Facts(facts), chart] if lines else [Facts(facts)])


def agreement(run: RunFolder, found: SavedFindings) -> Section:
    """Show how far the student agrees with its teachers, and which classes the images never suggest."""
    names = [called(i, teacher) for i, teacher in enumerate(run.record.teachers, start=1)]
    shown: list[AnyExhibit] = []
    for unit in dict.fromkeys(measure.unit for measure in found.measures):
        alike = [measure for measure in found.measures if measure.unit == unit]
        rows = [(name, [measure.of_each[i] for measure in alike]) for i, name in enumerate(names)]
        title, axis = ("Student and teachers", "share, %") if unit == "%" else ("Finds of each teacher", unit)
        shown.append(BarChart(f"agreement-{len(shown) + 1}", title, axis, [m.label for m in alike], rows, unit))
    if found.answers:
        shown += suggested(found, run.record.teachers)
    seen = "that were not trained on" if found.held_out else "that were not held out"
    text = f"On {found.images:,} auxiliary images {seen}, without any label: {found.overall}."
    return Section("Agreement with the teachers", shown, text)


def suggested(found: SavedFindings, teachers: tuple[TeacherRecord, ...]) -> list[AnyExhibit]:
    """Show how often each class is an answer; one that is never one was hardly taught."""
    never = [name for name, (by_teachers, _) in found.answers.items() if not by_teachers]
    said = f"{len(never)} of {len(found.answers)}: {listed(never, 60)}" if never else "none"
    rows: list[list[Cell]] = []
    for name, (by_teachers, by_student) in found.answers.items():
        taught = ", ".join(called(i, teacher) for i, teacher in enumerate(teachers, start=1) if name in teacher.classes)
        rows.append([name, taught, count(by_teachers), count(by_student)])
    columns = ["class", "taught by", "teachers' answer", "student's answer"]
    note = "How often each class is the answer; what these images never suggest, they hardly teach."
    return [Facts({"classes that the images never suggest": said}), Table("Answers by class", columns, rows, note)]


def measured(run: RunFolder, data: Place) -> Section:
    """Measure the finished model, and its teachers where they are still there, on labeled data."""
    if not run.result:
        raise DmcError(f"{run.folder} holds a run that is not finished: its model cannot be measured yet")
    model, text = load(run.folder), ""
    teachers: dict[str, Model] = {}
    for i, record in enumerate(run.record.teachers, start=1):
        try:
            teachers[called(i, record)] = teacher_of(record)
        except DmcError as error:
            text = f"The teachers are left out: {error}."
            log.warning(f"the report leaves out the teachers: {error}")
            teachers = {}
            break
    return Section("Measured on labeled data", task_of([model]).exhibits(model, teachers, data), text)


def teacher_of(record: TeacherRecord) -> Model:
    """Load a teacher from the folder that run.json names; refuse one that is gone, or not the same any more.

    Only folders are read: what is written in a file never makes anything be fetched, or code be run.
    """
    if not record.place or not Path(record.place).is_dir():
        raise DmcError(f"{record.place or 'a teacher'} is not a folder here")
    model = load(Path(record.place))
    if model.names != record.classes and set(record.classes) <= set(model.names):
        model = model.keep(record.classes)
    elif len(model.names) == len(record.classes):
        model = model.rename({a: b for a, b in zip(model.names, record.classes, strict=True) if a != b})
    if model.fingerprint != record.fingerprint:
        raise DmcError(f"{record.place} is not the teacher that it was, or had its classes renamed")
    return model


def made(run: RunFolder) -> Section:
    """State how the model was made, so that it can be made again."""
    record, facts = run.record, dict[str, str]()
    for key, value in (run.result.own.provenance if run.result else {}).items():
        facts[key] = "; ".join(map(str, value)) if isinstance(value, list) else str(value)
    schedule = {key: str(value) for key, value in (record.schedule or {}).items()}
    settings = {key: str(value) for key, value in record.content.items() if isinstance(value, str | int | float)}
    versions = {"versions": ", ".join(f"{package} {version}" for package, version in record.versions.items())}
    shown = [Facts(rows) for rows in (facts, settings | schedule, versions) if rows]
    return Section("How it was made", shown)
