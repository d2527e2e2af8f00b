"""Turn a report into one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from itertools import count
from typing import Any

from dmc.exhibits import NONE, BarChart, Confusion, Confusions, LineChart, Marked, Page, Picture, Table
from dmc.report.drawing import label_places
from dmc.report.figures import OTHERS, looks_of
from dmc.text import one_line

SCRIPTS = ("base.js", "lines.js", "matrices.js", "page.js")


def as_html(page: Page, footer: str) -> str:
    """Give the page as HTML; all texts in it are escaped, and only its own script can run."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def finalize(value: Any) -> Any:
        return one_line(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    jinja = Environment(
        loader=PackageLoader("dmc.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
    )
    pictures = count(1)
    jinja.globals |= {
        "kind_of": lambda shown: type(shown).__name__,
        "data_of": data_of,
        "is_numeric": is_numeric,
        "reach": reach,
        "shown_value": shown_value,
        "next_id": lambda: f"picture-{next(pictures)}",
        "colour_of": colour_of,
        "named": named,
    }
    script = "\n".join(map(_template, SCRIPTS))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return jinja.get_template("page.html").render(
        page=page,
        footer=footer,
        style=Markup(_template("style.css")),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
    )


def _template(name: str) -> str:
    return (files("dmc.report") / "templates" / name).read_text(encoding="utf-8")


def data_of(shown: LineChart | Confusions) -> dict[str, Any]:
    """Give the data of a chart in the form that its script takes; numbers that are fractions are in %."""
    if isinstance(shown, Confusions):
        return {"panels": [_cells(panel) for panel in shown.panels]}
    factor = 1 if shown.losses else 100
    looks = looks_of(shown.lines)
    return {
        "x_label": shown.x_label,
        "y_label": shown.y_label,
        "losses": shown.losses,
        "lines": [
            {
                "label": one_line(line.label),
                "x": list(line.x),
                "y": [round(factor * y, 5) for y in line.y],
                "spread": [None if std is None else round(factor * std, 5) for std in line.spread],
                "colour": look.colour,
                "dash": look.line,
                "strong": look.strong,
            }
            for line, look in zip(shown.lines, looks, strict=True)
        ],
    }


def _cells(panel: Confusion) -> dict[str, Any]:
    """Give the cells of a confusion matrix that are not empty, as row, column and count."""
    rows, columns = panel.counts.nonzero()
    return {
        "title": one_line(panel.title),
        "rows": [one_line(name) for name in panel.rows],
        "columns": [one_line(name) for name in panel.columns],
        "totals": panel.counts.sum(axis=1).tolist(),
        "cells": [[int(r), int(c), int(panel.counts[r, c])] for r, c in zip(rows, columns, strict=True)],
    }


def is_numeric(table: Table, column: int) -> bool:
    """Tell whether a column holds numbers."""
    return bool(table.rows) and not isinstance(table.rows[0][column], str)


def reach(chart: BarChart) -> float:
    """Give the value at the right end of all bars: 100% for shares."""
    largest = max([0.0, *(value for _, values in chart.rows for value in values if value is not None)])
    return max(largest, 1.0) if chart.unit == "%" else largest or 1.0


def shown_value(chart: BarChart, value: float | None) -> str:
    """Format a bar's number."""
    if value is None:
        return NONE
    return f"{100 * value:.1f}%" if chart.unit == "%" else f"{value:,.4g}{chart.unit}"


def colour_of(name: str) -> str:
    """Give the colour of a class, which depends on its name alone."""
    return OTHERS[int(hashlib.sha256(name.encode(errors="replace")).hexdigest(), 16) % len(OTHERS)]


def named(marks: Sequence[Marked], picture: Picture) -> list[tuple[Marked, str, float, float, float]]:
    """Give what was found in a picture, the best last, with its text, the place of that, and the text's size."""
    size = max(picture.width, picture.height) / 16
    texts = [mark.name if mark.score is None else f"{mark.name} {100 * mark.score:.0f}" for mark in marks]
    boxes = [(0.62 * size * len(text), 1.1 * size) for text in texts]  # about as wide as they are drawn
    places = label_places([mark.box for mark in marks], boxes, (picture.width, picture.height))
    rows = zip(marks, texts, places, strict=True)
    return [(mark, text, place[0], place[3] - 0.2 * size, size) for mark, text, place in rows][::-1]
