"""What a consolidation finds out about its student when it ends, in words and in numbers; report.json keeps it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from dmc.data.loader import ImageLoader
from dmc.data.thumbnails import thumbnail
from dmc.documents import Document
from dmc.errors import first_line
from dmc.exhibits import Picture
from dmc.files import write_text
from dmc.seeds import seed_for

FILE = "report.json"
SHEET = 40  # auxiliary images that a report shows
log = logging.getLogger("dmc")


class Measure(Document):
    """A number for each teacher, None where there is nothing to measure; `unit` is "%" for fractions."""

    label: str
    of_each: tuple[float | None, ...]
    unit: str = "%"


class Findings(NamedTuple):
    """How much a student has learned from its teachers."""

    images: int  # that student and teachers were compared on
    of_each: list[str]  # one text for each teacher
    overall: str
    warnings: list[str]  # what the user should know before using it
    measures: Sequence[Measure] = ()
    answers: Mapping[str, tuple[int, int]] = {}  # how often each class is the teachers' answer, and the student's


class SavedFindings(Document):
    """report.json: the findings, and a contact sheet of the auxiliary images."""

    task: str
    images: int
    held_out: bool  # or else the images were trained on
    overall: str
    warnings: tuple[str, ...] = ()
    measures: tuple[Measure, ...] = ()
    answers: dict[str, tuple[int, int]] = Field(default_factory=dict)
    sheet: tuple[Picture, ...] = ()


def save_findings(folder: Path, found: Findings, task: str, held_out: bool, aux: ImageLoader) -> None:
    """Write report.json. If that fails, warn and go on: what was learned must not be lost."""
    try:
        batch = next(aux.batches(seed_for(0, "sheet"), SHEET))
        saved = SavedFindings(
            task=task,
            images=found.images,
            held_out=held_out,
            overall=found.overall,
            warnings=tuple(found.warnings),
            measures=tuple(found.measures),
            answers=dict(found.answers),
            sheet=tuple(map(thumbnail, batch.pictures)),
        )
        write_text(folder / FILE, saved.model_dump_json(indent=1) + "\n")
    except Exception as error:
        log.warning(f"cannot write {folder / FILE}, so a report will say less: {first_line(error)}")
