"""Write the page of all settings from `dmc.config`: `python -m dmc.cli.settings_page > docs/settings.md`."""

from __future__ import annotations

from typing import Any, get_args

from dmc.config import (
    ClassifierConsolidateConfig,
    ClassifierPredictConfig,
    ClassifierTrainConfig,
    Config,
    ConsolidateConfig,
    DetectorConsolidateConfig,
    DetectorPredictConfig,
    LearnConfig,
    Length,
    NetworkConfig,
    RunConfig,
    Schedule,
    options_of,
)

SECTIONS: dict[str, tuple[type[Config], ...]] = {
    "The network (train, consolidate, learn, check)": (NetworkConfig,),
    "How long (train, consolidate, learn, check)": (Length, Schedule),
    "The run's folder (train, consolidate, learn)": (RunConfig,),
    "Training on labels (train)": (ClassifierTrainConfig,),
    "Merging (consolidate, learn, check)": (ConsolidateConfig, ClassifierConsolidateConfig, DetectorConsolidateConfig),
    "Learning (learn)": (LearnConfig,),
    "Single images (predict)": (ClassifierPredictConfig, DetectorPredictConfig),
}
INTRODUCTION = """# Settings

Each setting is an option of the command line and a keyword argument in Python: `--box-weight 2` is `box_weight=2`.
Settings are defined once, in `src/dmc/config.py`, and this page is made from that file. A setting of detectors is
refused for classifiers, and the other way round."""


def page() -> str:
    """Give the page as Markdown."""
    shown: set[str] = set()
    parts = [INTRODUCTION]
    for title, owners in SECTIONS.items():
        rows = [_row(name, field) for name, field in options_of(*owners) if name not in shown]
        shown |= {name for name, _ in options_of(*owners)}
        parts.append("\n".join([f"## {title}", "", "| setting | values | default | |", "|---|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _row(name: str, field: Any) -> str:
    extra = field.json_schema_extra
    flag = f" (`--{extra['flag']}`)" if extra["flag"] else ""
    default = extra["usual"] or ("" if field.default is None else f"`{field.default}`")
    return f"| `{name}`{flag} | {_values(field.annotation)} | {default} | {field.description} |"


def _values(annotation: Any) -> str:
    """Name the types that a setting takes, or the words."""
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)] or [annotation]
    return ", ".join(_words(kind) for kind in kinds)


def _words(kind: Any) -> str:
    if isinstance(kind, str):
        return f"`{kind}`"
    return _values(kind) if get_args(kind) else str(kind.__name__)


if __name__ == "__main__":
    print(page(), end="")
