"""What a report shows, as data. Runs and kinds of models describe themselves with these; `dmc.report` draws them all.

Shares and accuracies are fractions here, and drawn in %. None stands for what was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from dmc.documents import Document

MOST_PIXELS = 512  # of a picture's side
Box = tuple[float, float, float, float]  # left, top, right, bottom
NONE = "–"  # shown for what was not measured


class Number(NamedTuple):
    """A cell of a table: what it is sorted by, and how it is shown."""

    value: float | None
    text: str


Cell = str | Number


def percent(value: float | None, std: float | None = None) -> Number:
    """Make a cell of a fraction, in %, with its standard deviation if there is one."""
    spread = "" if std is None else f" ± {100 * std:.1f}"
    return Number(value, NONE if value is None else f"{100 * value:.1f}{spread}")


def count(value: int | None) -> Number:
    """Make a cell of a number of things."""
    return Number(value, NONE if value is None else f"{value:,}")


@dataclass(frozen=True)
class Facts:
    """A few things worth knowing, each with its name."""

    rows: Mapping[str, str]


@dataclass(frozen=True)
class Table:
    """Rows of texts and numbers, which readers can sort by any column."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclass(frozen=True)
class Line:
    """A line of a chart; `spread` are standard deviations, drawn as a band. A line of a method has its colour."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float | None] = ()
    method: str = ""


@dataclass(frozen=True)
class LineChart:
    """Lines over an axis. With `losses`, y is any positive number on a logarithmic axis, and no fraction."""

    name: str  # of its files
    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    losses: bool = False
    note: str = ""


@dataclass(frozen=True)
class BarChart:
    """A bar for each row in each of some panels, all over one axis; `unit` is "%" for fractions."""

    name: str
    title: str
    axis: str
    panels: Sequence[str]
    rows: Sequence[tuple[str, Sequence[float | None]]]
    unit: str = "%"
    note: str = ""


@dataclass(frozen=True)
class Confusion:
    """How often images of one class (a row) got each answer (a column)."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    counts: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Confusions:
    """Confusion matrices side by side."""

    name: str
    title: str
    panels: Sequence[Confusion]
    note: str = ""


class Picture(Document):
    """A small JPEG, in base64, and its size in pixels."""

    jpeg: str = Field(pattern="^[A-Za-z0-9+/]+=*$", max_length=2**18)
    width: int = Field(ge=1, le=MOST_PIXELS)
    height: int = Field(ge=1, le=MOST_PIXELS)


class Answer(NamedTuple):
    """What someone says of a picture; `right` is None where nobody knows."""

    who: str
    text: str
    right: bool | None = None


class Marked(NamedTuple):
    """An object in a picture; the score of a label is None."""

    name: str
    score: float | None
    box: Box


@dataclass(frozen=True)
class Exhibit:
    """A picture with what is said of it: answers in words, or objects that each of several found in it."""

    picture: Picture
    title: str = ""
    answers: Sequence[Answer] = ()
    found: Mapping[str, Sequence[Marked]] = field(default_factory=dict)


@dataclass(frozen=True)
class Gallery:
    """Pictures, with or without words."""

    name: str
    title: str
    exhibits: Sequence[Exhibit]
    note: str = ""


AnyExhibit = Facts | Table | LineChart | BarChart | Confusions | Gallery


@dataclass(frozen=True)
class Section:
    """A part of a report."""

    title: str
    shown: Sequence[AnyExhibit]
    text: str = ""


@dataclass(frozen=True)
class Page:
    """A whole report."""

    title: str
    subtitle: str
    sections: Sequence[Section]
    warnings: Sequence[str] = ()
