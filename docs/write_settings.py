"""Write what follows from `dmc.config`: the page of settings, and the types of the Python API's keyword arguments.

python docs/write_settings.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from dmc.config import (
    ClassifierConsolidateConfig,
    ClassifierPredictConfig,
    ClassifierTrainConfig,
    ConsolidateConfig,
    DetectorConsolidateConfig,
    DetectorPredictConfig,
    LearnConfig,
    Length,
    NetworkConfig,
    RunConfig,
)
from dmc.schedule import Schedule
from dmc.serving.config import ServeConfig
from dmc.settings import Config, settings_of

ROOT = Path(__file__).resolve().parents[1]
PAGE, KEYWORDS = ROOT / "docs" / "settings.md", ROOT / "src" / "dmc" / "keywords.py"
MERGING = (ConsolidateConfig, ClassifierConsolidateConfig, DetectorConsolidateConfig)
SECTIONS: dict[str, tuple[type[Config], ...]] = {
    "The network (train, consolidate, learn, check)": (NetworkConfig,),
    "How long (train, consolidate, learn, check)": (Length, Schedule),
    "The run's folder (train, consolidate, learn)": (RunConfig,),
    "Training on labels (train)": (ClassifierTrainConfig,),
    "Merging (consolidate, learn, check)": MERGING,
    "Learning (learn)": (LearnConfig,),
    "Single images (predict, serve)": (ClassifierPredictConfig, DetectorPredictConfig),
    "The page (serve)": (ServeConfig,),
}
INTRODUCTION = """# Settings

Each setting is an option of the command line and a keyword argument in Python: `--box-weight 2` is `box_weight=2`;
those marked (Python) have no option. Settings are defined once, in `src/dmc/config.py`, and this page is made from that
file. A setting of detectors is refused for classifiers, and the other way round."""
# The verb of each, the class whose settings it has as well, and its own.
ARGUMENTS: dict[str, tuple[str, str, tuple[type[Config], ...]]] = {
    "LengthKeywords": ("every training", "TypedDict", (Length, Schedule)),
    "TrainKeywords": ("`train`", "LengthKeywords", (RunConfig, ClassifierTrainConfig)),
    "CheckKeywords": ("`check`", "LengthKeywords", MERGING),
    "ConsolidateKeywords": ("`consolidate`", "CheckKeywords", (RunConfig,)),
    "LearnKeywords": ("`learn`", "ConsolidateKeywords", (LearnConfig,)),
    "PredictKeywords": ("`predict`", "TypedDict", (ClassifierPredictConfig, DetectorPredictConfig)),
}


def page() -> str:
    """Give the page of settings as Markdown."""
    shown: set[str] = set()
    parts = [INTRODUCTION]
    for title, owners in SECTIONS.items():
        rows = [_row(name, field) for name, field in settings_of(*owners) if name not in shown]
        shown |= {name for name, _ in settings_of(*owners)}
        parts.append("\n".join([f"## {title}", "", "| setting | values | default | |", "|---|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _row(name: str, field: Any) -> str:
    extra = field.json_schema_extra or {"usual": "", "flag": ""}
    flag = f" (`--{extra['flag']}`)" if extra["flag"] else "" if field.json_schema_extra else " (Python)"
    default = extra["usual"] or ("" if field.default is None else f"`{field.default}`")
    kinds = [kind for kind in _parts(_annotation(field)) if kind != "None"]
    return f"| `{name}`{flag} | {', '.join(kinds)} | {default} | {field.description} |"


def _annotation(field: Any) -> Any:
    """Give the type of what a user may give for a setting."""
    word = (field.json_schema_extra or {}).get("word")
    return field.annotation | Literal[word] if word else field.annotation


def _parts(annotation: Any) -> list[str]:
    """Name the types, or the words, that can be given."""
    if get_origin(annotation) is Literal:
        return [f"`{word}`" for word in get_args(annotation)]
    kinds = get_args(annotation) if get_origin(annotation) is not tuple else ()
    return [part for kind in kinds for part in _parts(kind)] or [_type(annotation)]


def keywords() -> str:
    """Give the keyword arguments of the API as Python source."""
    classes = []
    for name, (whose, base, owners) in ARGUMENTS.items():
        lines = [f"    {field}: {_type(_annotation(info))}" for field, info in settings_of(*owners)]
        head = f"class {name}({base}, total=False):"
        classes.append("\n".join([head, f'    """What {whose} takes."""', "", *lines]))
    return (
        '"""The Python API\'s keyword arguments. Written by docs/write_settings.py: change dmc.config instead."""\n\n'
        "from __future__ import annotations\n\nfrom typing import Literal, TypedDict\n\n"
        "from dmc.schedule import Schedule\n\n\n" + "\n\n\n".join(classes) + "\n"
    )


def _type(annotation: Any) -> str:
    """Write a type as source has it."""
    if get_origin(annotation) is Literal:
        return f"Literal[{', '.join(f'{chr(34)}{word}{chr(34)}' for word in get_args(annotation))}]"
    if get_origin(annotation) is tuple:
        return str(annotation)
    if get_args(annotation):
        return " | ".join(_type(kind) for kind in get_args(annotation))
    return "None" if annotation is type(None) else str(annotation.__name__)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    KEYWORDS.write_text(keywords(), encoding="utf-8")
