"""The JSON that a run leaves in its folder, as `show` and `report` read it. Loads no torch."""

from __future__ import annotations

import logging
from pathlib import Path

from pydantic import Field, ValidationError

from dmc.classes import ClassUnion
from dmc.documents import AnyObject, BegunNetwork, Document, RunRecord
from dmc.errors import DmcError
from dmc.files import read_bytes

log = logging.getLogger("dmc")
NO_LOSSES = ("epoch", "lr", "waited", "step", "images", "seconds")  # all other numbers of an epoch are losses


class TeacherRecord(Document):
    """A teacher, as run.json has it."""

    place: str = Field("", alias="from")
    arch: str | None = None
    classes: tuple[str, ...]
    fingerprint: str = ""


class ImagesRecord(Document):
    """The images of a run; those of a training have classes."""

    name: str
    images: int
    held_out: int = 0
    select: int | None = None
    classes: tuple[str, ...] = ()


class ReportedRun(RunRecord):
    """What a report reads of run.json."""

    command: str
    teachers: tuple[TeacherRecord, ...] = ()
    aux: ImagesRecord | None = None
    data: ImagesRecord | None = None
    seed: int = 0
    versions: dict[str, str] = Field(default_factory=dict)

    @property
    def network(self) -> BegunNetwork:
        """The network that is trained."""
        return self.student or self.model or BegunNetwork()

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that are learned."""
        known = [teacher.classes for teacher in self.teachers] or [self.data.classes if self.data else ()]
        return ClassUnion.of(known).names


class Epoch(AnyObject):
    """A line of metrics.jsonl."""

    epoch: int
    images: int
    seconds: float
    loss: float

    @property
    def losses(self) -> dict[str, float]:
        """The loss and its parts."""
        numbers = {key: value for key, value in self.content.items() if key not in NO_LOSSES}
        return {key: float(value) for key, value in numbers.items() if isinstance(value, int | float)}


def read_epochs(path: Path) -> list[Epoch]:
    """Read metrics.jsonl; leave out damaged lines with a warning, as a resumed run does, but refuse a file of them."""
    lines = read_bytes(path).decode(errors="replace").splitlines() if path.exists() else []
    found = [_epoch(line) for line in lines]
    damaged = found[:-1].count(None)  # the last may be half a line: the run is still writing it
    if damaged and damaged >= len(found) - 1:
        raise DmcError(f"{path} is damaged: none of its {len(lines)} lines is an epoch's")
    if damaged:
        log.warning(f"{damaged} lines of {path} are damaged and left out")
    return [epoch for epoch in found if epoch is not None]


def _epoch(line: str) -> Epoch | None:
    try:
        return Epoch.model_validate_json(line)
    except ValidationError:
        return None
