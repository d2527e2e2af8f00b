"""A reproduced detection table, beside the paper's published numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dmc.bench.coco import VOC
from dmc.bench.detection import DetectionReproduction
from dmc.report.provenance import caution

MEANS = ("old", "new", "all")


def as_table(job: DetectionReproduction, rows: Sequence[dict[str, Any]]) -> str:
    """Markdown, VOC07 average precision in %; a published row stands below the measured one."""
    recipe = job.recipe.at(job.profile.name)
    classes = list(dict.fromkeys(name for old, new in recipe.splits.values() for name in (*old, *new)))
    settings = len({row["setting"] for row in rows}) > 1
    heads = [*(["setting"] if settings else []), "row", *classes, *MEANS, "COCO AP50"]
    lines = [
        f"# {recipe.title} (profile {job.profile.name})",
        "",
        f"The paper's {job.recipe.source}. VOC07 average precision, %.",
        "",
        "| " + " | ".join(heads) + " |",
        "|---" * len(heads) + "|",
    ]
    for setting, label in dict.fromkeys((row["setting"], row["row"]) for row in rows):
        same = [row for row in rows if (row["setting"], row["row"]) == (setting, label)]
        done = [row for row in same if "failed" not in row]
        cells = [_cell([row["per_class"].get(name) for row in done]) for name in classes]
        cells += [_cell([row.get(mean) for row in done]) for mean in MEANS]
        cells.append(_cell([row["coco_50"] for row in done]))
        start = f"| {setting} | " if settings else "| "
        lines.append(f"{start}{label}{'' if done else ' (failed)'} | " + " | ".join(cells) + " |")
        if same[0]["published"]:
            lines.append(f"{start}*{label}, published* | " + " | ".join(_published(same[0], classes)) + " | |")
    return "\n".join(lines) + caution(job.profile.name)


def _cell(values: Sequence[float | None]) -> str:
    real = [100 * value for value in values if value is not None]
    if not real:
        return ""
    return f"{np.mean(real):.1f} ± {np.std(real, ddof=1):.1f}" if len(real) > 1 else f"{real[0]:.1f}"


def _published(row: dict[str, Any], classes: Sequence[str]) -> list[str]:
    paper = row["published"]
    by_class = dict(zip(VOC, paper.get("ap", [None] * len(VOC)), strict=True))
    values = [by_class.get(name) for name in classes] + [paper.get(mean) for mean in MEANS]
    return ["" if value is None else f"*{value:g}*" for value in values]
