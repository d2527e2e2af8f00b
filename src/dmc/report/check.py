"""What can be said about a consolidation before it trains, as data and as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dmc.classes import counted
from dmc.consolidation import Consolidation
from dmc.progress import duration


def findings(plan: Consolidation[Any]) -> dict[str, Any]:
    """Measures two steps on real images; writes nothing."""
    estimate = plan.estimate()
    passes = plan.schedule.epochs
    images = passes * plan.trained_on
    return {
        "task": plan.student.pipeline_tag,
        "teachers": [
            {"name": s.name, "parameters": s.parameter_count, **s.settings} for s in plan.teachers.specialists
        ],
        "side_by_side": estimate.teachers,
        "student": {"parameters": plan.student.parameter_count, **plan.student.settings},
        "shared": list(plan.teachers.union.shared),
        "aux": {
            "name": plan.aux.name,
            "images": len(plan.aux),
            "size": plan.transform.size,
            "held_in_memory": plan.held,
            "tried": estimate.tried,
            "undecodable": estimate.undecodable,
            "held_out": plan.held_out,
        },
        "estimate": {
            "epochs": passes,
            "images": images,
            "images_per_second": round(estimate.images_per_second, 1),
            "seconds": round(images / estimate.images_per_second),
        },
    }


def as_text(found: dict[str, Any]) -> str:
    classifying = found["task"] == "image-classification"

    def shape(size: int) -> str:
        return f"{size}x{size}" if classifying else f"{size} pixels on the shorter side"

    lines = [_network(f"teacher {i}", model, shape) for i, model in enumerate(found["teachers"], start=1)]
    lines.append(_network("student", found["student"], shape))
    lines += _classes_won(found["side_by_side"]) if classifying else _objects_found(found["side_by_side"])
    lines.append(f"shared classes: {'; '.join(found['shared']) or 'none'}")
    aux, estimate = found["aux"], found["estimate"]
    where = "held in memory" if aux["held_in_memory"] else "streamed"
    lines.append(f"auxiliary images: {aux['images']:,} in {aux['name']}, {where} at {shape(aux['size'])}")
    if aux["undecodable"]:
        lines.append(f"  {aux['undecodable']} of the first {aux['tried']} cannot be decoded")
    lines.append(
        f"estimate: {estimate['images']:,} images at {estimate['images_per_second']:,.0f} per second, "
        f"about {duration(estimate['seconds'])}"
    )
    return "\n".join(lines)


def _classes_won(seen: dict[str, Any]) -> list[str]:
    """Whether one teacher would drown the others."""
    spreads = ", ".join(f"{spread:g}" for spread in seen["logit_spreads"])
    won, fair = (" / ".join(f"{share:.0%}" for share in seen[what]) for what in ("wins", "fair"))
    lines = [
        f"side by side, as they are, on {seen['images']} auxiliary images: their classes win {won} "
        f"({fair} by number of classes); spread of their logits {spreads}; scale for training: {seen['scale']}"
    ]
    for name in seen["drowned"]:
        mended = f"scale {seen['scale']} evens that out" if seen["scale"] != "none" else "try scale auto"
        lines.append(f"  {name} would be drowned: {mended}")
    return lines


def _objects_found(seen: dict[str, Any]) -> list[str]:
    spreads = ", ".join(f"{spread:g}" for spread in seen["logit_spreads"])
    objects = " / ".join(f"{count:,}" for count in seen["objects"])
    line = (
        f"side by side, in {seen['images']} auxiliary images: they find {objects} objects; spread of logits {spreads}"
    )
    unseen = [str(i) for i, count in enumerate(seen["objects"], start=1) if not count]
    return [line] + [
        f"  teacher {i} is sure of nothing there: such images teach little about its classes" for i in unseen
    ]


def _network(role: str, model: dict[str, Any], shape: Callable[[int], str]) -> str:
    p = model["preprocessing"]
    names = model["classes"]
    shown = "; ".join(names[:8]) + ("; ..." if len(names) > 8 else "")
    title = f"{role}: {model['name']}, {model['arch']}" if "name" in model else f"{role}: {model['arch']}"
    return (
        f"{title}, {model['parameters']:,} parameters, {model['output']}\n"
        f"  {counted(names)}: {shown}\n"
        f"  sees {shape(p['size'])}, {p['interpolation']}, mean {_numbers(p['mean'])}, std {_numbers(p['std'])}"
    )


def _numbers(values: tuple[float, ...]) -> str:
    return "/".join(f"{value:.3g}" for value in values)
