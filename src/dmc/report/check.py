"""The text of `dmc check`: what was found about a consolidation before it trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dmc.checks import Check, CostCheck
from dmc.classes import counted
from dmc.progress import duration
from dmc.tasks import task_named
from dmc.text import one_line


def as_text(found: Check) -> str:
    """Word what `dmc.check` found."""
    task = task_named(found["task"])
    shape = task.size_as_text
    lines = [_network(f"teacher {i}", model, shape) for i, model in enumerate(found["teachers"], start=1)]
    lines.append(_network("student", found["student"], shape))
    lines += task.teachers_as_text(found["side_by_side"])
    lines.append(f"shared classes: {'; '.join(map(one_line, found['shared'])) or 'none'}")
    aux, estimate = found["aux"], found["estimate"]
    where = "held in memory" if aux["held_in_memory"] else "streamed"
    lines.append(f"auxiliary images: {aux['images']:,} in {one_line(aux['name'])}, {where} at {shape(aux['size'])}")
    if aux["selected"] is not None:
        lines.append(f"  the teachers are asked about all, and {aux['selected']:,} are selected to train on")
    if aux["undecodable"]:
        first = one_line(aux["first_undecodable"])
        lines.append(f"  {aux['undecodable']} of the first {aux['tried']} cannot be decoded (first: {first})")
    lines += _cost(found["cost"], estimate["epochs"])
    lines.append(
        f"estimate: {estimate['images']:,} images at {estimate['images_per_second']:,.0f} per second, "
        f"about {duration(estimate['seconds'])}"
    )
    return "\n".join(lines)


def _cost(cost: CostCheck, epochs: int) -> list[str]:
    """Describe the operations of an image and of the run, and the bytes that images and answers take."""
    lines = [
        f"cost of an image: {cost['teachers_gflops']:.3g} GFLOP to ask the teachers, {cost['student_gflops']:.3g} for "
        f"the student's step; {cost['gflops_per_second']:,.0f} GFLOP/s here",
        f"cost of the run: {cost['total_gflops'] / 1000:,.3g} TFLOP, {_bytes(cost['image_bytes'])} of pixels",
    ]
    if cost["cache"] is not None:
        lines.append(
            f"cache: the teachers' answers take {_bytes(cost['cache_bytes'])} in {cost['cache']}; they are asked in "
            f"{cost['asking_epochs']} of {epochs} epochs at most"
        )
    return lines


def _bytes(count: int) -> str:
    """Word a number of bytes: `1.5 GiB`."""
    size, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size >= 1024:
            size, unit = size / 1024, larger
    return f"{size:.3g} {unit}"


def _network(role: str, model: dict[str, Any], shape: Callable[[int], str]) -> str:
    """Describe a teacher or the student; `shape` words an input size."""
    p = model["preprocessing"]
    names = model["classes"]
    shown = "; ".join(map(one_line, names[:8])) + ("; ..." if len(names) > 8 else "")
    title = ", ".join(one_line(text) for text in (model.get("name"), model["arch"]) if text)
    return (
        f"{role}: {title}, {model['parameters']:,} parameters, {model['output']}\n"
        f"  {counted(names)}: {shown}\n"
        f"  sees {shape(p['size'])}, {p['interpolation']}, mean {_numbers(p['mean'])}, std {_numbers(p['std'])}"
    )


def _numbers(values: tuple[float, ...]) -> str:
    return "/".join(f"{value:.3g}" for value in values)
