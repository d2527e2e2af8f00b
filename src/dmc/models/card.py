"""The model card: what a saved model is, where it comes from and how it did, in the form that the hub reads."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dmc.classes import counted
from dmc.model_config import provenance_lines
from dmc.text import in_markdown, one_line

if TYPE_CHECKING:
    from dmc.models.model import Model

ON_HUB = re.compile(r"(?:hf-hub|transformers):([\w.-]+/[\w.-]+)|timm:([\w-]+\.[\w.-]+)")  # models by their names there
DATA_ON_HUB = re.compile(r"hf-hub:([\w.-]+/[\w.-]+)")
SCORE = re.compile(r"([\d.]+)% (?:of|on) [\d,]+ images \((.+)\)")  # how a held-out score is worded
METRICS = {"held-out accuracy": "accuracy", "held-out mAP": "mean_average_precision"}  # by the hub's names


def card(model: Model, arch: str, license: str | None = None, name: str = "") -> str:
    """Write a model's card; `arch` is what its folder calls the architecture, `name` the model's name on the hub."""
    named = f', arch="{arch}"' if model.architectures.find(arch).runs_code else ""
    place = f"hf-hub:{name}" if name else "this-folder"
    lines = [
        "---",
        _front_matter(model, arch, license, name),
        "---",
        f"# {in_markdown(arch)}, {counted(model.names)}",
        "",
        f'Made with `dmc` (deep-model-consolidation). Load it with `dmc.load("{place}"{named})`.',
        "",
        f"- classes: {'; '.join(map(in_markdown, model.names))}",
        f"- parameters: {model.parameter_count:,}",
        f"- output: {model.output}",
        *(f"- {key}: {value}" for key, value in asdict(model.preprocessing).items()),
        "",
        "## Where it comes from",
        "",
        *(f"- {in_markdown(key)}: {in_markdown(line)}" for key, line in provenance_lines(model.provenance)),
        "",
    ]
    return "\n".join(lines)


def _front_matter(model: Model, arch: str, license: str | None, name: str) -> str:
    """Write what the hub reads, as YAML."""
    import yaml

    told = list(provenance_lines(model.provenance))
    origins = (found for key, line in told if key.startswith(("teacher ", "weights")) for found in [ON_HUB.match(line)])
    models = _distinct(found[1] or f"timm/{found[2]}" for found in origins if found)
    data = _distinct(name for _, line in told for name in DATA_ON_HUB.findall(line) if name not in models)
    tags = [model.pipeline_tag, "deep-model-consolidation"]
    found = {
        "library_name": model.architectures.find(arch).library or model.library_name,
        "pipeline_tag": model.pipeline_tag,
        "tags": tags,
        "license": license,
        "base_model": models,
        "base_model_relation": "merge" if len(models) > 1 else None,  # the hub's word for one model out of several
        "datasets": data,
        "model-index": _model_index(told, model.pipeline_tag, name or arch),
    }
    kept = {key: value for key, value in found.items() if value}
    return yaml.safe_dump(kept, sort_keys=False, allow_unicode=True).rstrip()


def _model_index(told: Iterable[tuple[str, str]], task: str, name: str) -> list[dict[str, Any]]:
    """Give the held-out scores in the form of the hub's leaderboards; none if nothing was held out."""
    results = []
    for key, line in told:
        score = SCORE.fullmatch(line) if key in METRICS else None
        if score:
            on_hub = DATA_ON_HUB.match(score[2])
            data = {"name": one_line(score[2]), "type": on_hub[1] if on_hub else "imagefolder"}
            value = round(float(score[1]) / 100, 4)
            metric = {"type": METRICS[key], "value": value, "name": key}
            results.append({"task": {"type": task}, "dataset": data, "metrics": [metric]})
    return [{"name": name, "results": results}] if results else []


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
