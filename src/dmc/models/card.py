"""The model card: what a saved model is, where it comes from and how it did, in the form that the hub reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dmc.classes import counted
from dmc.data.preprocess import Preprocessing
from dmc.model_config import provenance_lines
from dmc.text import in_markdown, one_line

ON_HUB = re.compile(r"(?:hf-hub|transformers):([\w.-]+/[\w.-]+)|timm:([\w-]+\.[\w.-]+)")  # models by their names there
DATA_ON_HUB = re.compile(r"hf-hub:([\w.-]+/[\w.-]+)")
SCORE = re.compile(r"([\d.]+)% (?:of|on) [\d,]+ images \((.+)\)")  # how a held-out score is worded
METRICS = {"held-out accuracy": "accuracy", "held-out mAP": "mean_average_precision"}  # by the hub's names


@dataclass(frozen=True)
class Card:
    """What a model's card tells."""

    arch: str  # as its folder calls it
    runs_code: bool  # whoever loads it must name its architecture
    names: Sequence[str]
    parameters: int
    output: str
    preprocessing: Preprocessing
    provenance: Mapping[str, Any]
    task: str  # the hub's word for it
    library: str  # that opens it
    license: str | None
    hub_name: str  # OWNER/NAME, or empty

    def text(self) -> str:
        """Write the card."""
        place = f"hf-hub:{self.hub_name}" if self.hub_name else "this-folder"
        named = f', arch="{self.arch}"' if self.runs_code else ""
        lines = [
            "---",
            self._front_matter(),
            "---",
            f"# {in_markdown(self.arch)}, {counted(self.names)}",
            "",
            f'Made with `dmc` (deep-model-consolidation). Load it with `dmc.load("{place}"{named})`.',
            "",
            f"- classes: {'; '.join(map(in_markdown, self.names))}",
            f"- parameters: {self.parameters:,}",
            f"- output: {self.output}",
            *(f"- {key}: {value}" for key, value in asdict(self.preprocessing).items()),
            "",
            "## Where it comes from",
            "",
            *(f"- {in_markdown(key)}: {in_markdown(line)}" for key, line in provenance_lines(self.provenance)),
            "",
        ]
        return "\n".join(lines)

    def _front_matter(self) -> str:
        """Write what the hub reads, as YAML."""
        import yaml

        told = list(provenance_lines(self.provenance))
        origins = [ON_HUB.match(line) for key, line in told if key.startswith(("teacher ", "weights"))]
        models = _distinct(found[1] or f"timm/{found[2]}" for found in origins if found)
        data = _distinct(name for _, line in told for name in DATA_ON_HUB.findall(line) if name not in models)
        found = {
            "library_name": self.library,
            "pipeline_tag": self.task,
            "tags": [self.task, "deep-model-consolidation"],
            "license": self.license,
            "base_model": models,
            "base_model_relation": "merge" if len(models) > 1 else None,  # the hub's word for one model out of several
            "datasets": data,
            "model-index": self._model_index(told),
        }
        kept = {key: value for key, value in found.items() if value}
        return str(yaml.safe_dump(kept, sort_keys=False, allow_unicode=True)).rstrip()

    def _model_index(self, told: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
        """Give the held-out scores in the form of the hub's leaderboards; none if nothing was held out."""
        results = []
        for key, line in told:
            score = SCORE.fullmatch(line) if key in METRICS else None
            if score:
                on_hub = DATA_ON_HUB.match(score[2])
                data = {"name": one_line(score[2]), "type": on_hub[1] if on_hub else "imagefolder"}
                metric = {"type": METRICS[key], "value": round(float(score[1]) / 100, 4), "name": key}
                results.append({"task": {"type": self.task}, "dataset": data, "metrics": [metric]})
        return [{"name": self.hub_name or self.arch, "results": results}] if results else []


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
