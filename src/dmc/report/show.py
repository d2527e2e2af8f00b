"""What is in a folder, in a few lines: a model, a run, a comparison. It reads JSON alone, so torch is not loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import RootModel

from dmc.classes import counted, listed
from dmc.documents import AnyObject, read_json
from dmc.errors import DmcError
from dmc.files import read_text
from dmc.locks import held
from dmc.model_config import PretrainedCfg, parameters_in, provenance_lines, read_model_config
from dmc.report.run_records import Epoch, ReportedRun, read_epochs
from dmc.text import one_line

if TYPE_CHECKING:
    from dmc.models.model import Model

PROCESSOR = ("image_processor_type", "size", "crop_size", "crop_pct", "resample", "image_mean", "image_std")
SHARED = ("first", "shared")  # folders of a comparison that belong to no method
Shown = dict[str, Any]


class SavedComparison(AnyObject):
    """bench.json."""

    stream: str
    group_size: int


class Groups(RootModel[list[list[str]]]):
    """groups.json of a comparison: the classes of each group."""


def shown(folder: Path) -> Shown:
    """Tell what a folder holds, in a form that JSON can hold."""
    if not folder.is_dir():
        raise DmcError(f"no such folder: {folder}")
    found: Shown = {"folder": str(folder)}
    if (folder / "config.json").exists():
        found["model"] = _saved_model(folder)
    runs = [_run(place) for place in (folder / "specialist", folder) if (place / "run.json").exists()]
    if runs:
        found["runs"] = runs
    if (folder / "bench.json").exists():
        found["comparison"] = _comparison(folder)
    if len(found) == 1:
        raise DmcError(f"{folder} holds no model, no run and no comparison")
    return found


def described(model: Model) -> Shown:
    """Tell the same of a model that is not a folder."""
    told = {"task": model.pipeline_tag, **model.settings, "parameters": model.parameter_count}
    return {"folder": model.name, "model": told | {"provenance": model.provenance}}


def _saved_model(folder: Path) -> Shown:
    config = read_model_config(folder, str(folder))
    return {
        "task": config.own.task,
        "arch": config.architecture,
        "classes": list(config.label_names),
        "output": config.own.output,
        "preprocessing": _seen(config.pretrained_cfg) if config.pretrained_cfg else _processor(folder),
        "parameters": config.own.parameters or parameters_in(folder),
        "provenance": config.own.provenance,
    }


def _seen(cfg: PretrainedCfg) -> Shown:
    return {"size": cfg.input_size[1], **cfg.model_dump(mode="json", exclude={"architecture", "input_size"})}


def _processor(folder: Path) -> Shown | None:
    """Give the settings of transformers' image processor that tell most."""
    path = folder / "preprocessor_config.json"
    told = read_json(path, AnyObject).content if path.exists() else {}
    return {key: told[key] for key in PROCESSOR if key in told} or None


def _run(folder: Path) -> Shown:
    record, epochs = read_json(folder / "run.json", ReportedRun), read_epochs(folder / "metrics.jsonl")
    network, images = record.network, record.aux or record.data
    finished = (folder / "config.json").exists()
    return {
        "folder": str(folder),
        "command": record.command,
        "state": "finished" if finished else "running" if held(folder / ".lock") else "stopped",
        "arch": network.arch,
        "classes": network.content.get("classes", []),
        "teachers": [teacher.place for teacher in record.teachers],
        "images": {"name": images and images.name, "count": images and images.images},
        "epoch": epochs[-1].epoch if epochs else 0,
        "epochs": (record.schedule or {}).get("epochs"),
        "loss": epochs[-1].loss if epochs else None,
        "images_per_second": _rate(epochs),
    }


def _rate(epochs: Sequence[Epoch]) -> float | None:
    """Give the images per second of the last epoch."""
    if not epochs:
        return None
    before = epochs[-2] if len(epochs) > 1 else Epoch(epoch=0, images=0, seconds=0.0, loss=0.0)
    seconds = epochs[-1].seconds - before.seconds
    return round((epochs[-1].images - before.images) / seconds, 1) if seconds > 0 else None


def _comparison(folder: Path) -> Shown:
    asked = read_json(folder / "bench.json", SavedComparison)
    table = folder / "table.md"
    return {
        "stream": asked.stream,
        "group_size": asked.group_size,
        "cells": [cell for order in sorted(folder.glob("order-*"), key=_number) for cell in _cells(order)],
        "table": str(table) if table.exists() else None,
    }


def _cells(order: Path) -> Iterator[Shown]:
    """Tell how far each method has come in one order of classes."""
    path = order / "groups.json"
    groups = len(read_json(path, Groups).root) if path.exists() else 0
    for folder in sorted(place for place in order.iterdir() if place.is_dir() and place.name not in SHARED):
        failed = folder / "failed.txt"
        yield {
            "method": folder.name,
            "order": _number(order),
            "groups_done": len(list(folder.glob("group-*/made.json"))),
            "groups": groups,
            "running": held(folder / ".lock"),
            "failed": read_text(failed).strip() if failed.exists() else None,
        }


def _number(order: Path) -> int:
    found = re.fullmatch(r"order-(\d{1,9})", order.name)
    return int(found[1]) if found else -1


def as_text(found: Shown) -> str:
    """Word what a folder holds, in a few lines."""
    lines = []
    if "model" in found:
        lines += _model_lines(found["folder"], found["model"])
    for run in found.get("runs", []):
        lines += _run_lines(run)
    if "comparison" in found:
        lines += _comparison_lines(found["folder"], found["comparison"])
    return "\n".join(map(one_line, lines))


def _model_lines(place: str, model: Shown) -> list[str]:
    count = model["parameters"]
    seen = model["preprocessing"]
    lines = [
        f"{place}: {model['arch'] or 'a network of its own'}"
        + (f", {model['task']}" if model["task"] else "")  # which folders of other libraries do not tell
        + (f", {count:,} parameters" if count else ""),
        f"  {counted(model['classes'])}: {listed(model['classes'])}",
    ]
    if seen:
        lines.append(f"  sees {', '.join(f'{key} {_value(value)}' for key, value in seen.items())}")
    if model["output"]:
        lines.append(f"  output: {model['output']}")
    return lines + [f"  {key}: {line}" for key, line in provenance_lines(model["provenance"])]


def _value(value: Any) -> str:
    """Word a setting; the numbers of a list are joined by slashes."""
    if isinstance(value, list | tuple):
        return "/".join(map(_value, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _run_lines(run: Shown) -> list[str]:
    facts = [f"epoch {run['epoch']} of {run['epochs']}"]
    if run["loss"] is not None:
        facts.append(f"loss {run['loss']:.4g}")
    if run["images_per_second"]:
        facts.append(f"{run['images_per_second']:,.0f} images/s")
    images = run["images"]
    lines = [
        f"{run['folder']}: {run['command']}, {run['state']}: {', '.join(facts)}",
        f"  {'trained' if run['state'] == 'finished' else 'trains'} {run['arch']}, {counted(run['classes'])}, "
        f"on {images['count']:,} images of {images['name']}",
    ]
    return lines + ([f"  teachers: {'; '.join(run['teachers'])}"] if run["teachers"] else [])


def _comparison_lines(place: str, comparison: Shown) -> list[str]:
    lines = [f"{place}: comparison on {comparison['stream']}, {comparison['group_size']} classes at a time"]
    for cell in comparison["cells"]:
        state = "running" if cell["running"] else f"failed: {cell['failed']}" if cell["failed"] else ""
        done = f"{cell['groups_done']} of {cell['groups']} groups"
        lines.append(f"  order {cell['order']}, {cell['method']}: {done}" + (f", {state}" if state else ""))
    return lines + ([f"  table: {comparison['table']}"] if comparison["table"] else [])
