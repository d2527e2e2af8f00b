"""One vision model out of several, without the data they were trained on."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dmc.consolidation import consolidate, learn
    from dmc.data.preprocess import Preprocessing
    from dmc.errors import DmcError
    from dmc.evaluation import evaluate, predict
    from dmc.loading import load
    from dmc.specialist import Specialist
    from dmc.training.schedule import Schedule
    from dmc.training.supervised import train

__all__ = [
    "DmcError",
    "Preprocessing",
    "Schedule",
    "Specialist",
    "consolidate",
    "evaluate",
    "learn",
    "load",
    "predict",
    "train",
]

_HOME = {
    "DmcError": "errors",
    "Preprocessing": "data.preprocess",
    "Schedule": "training.schedule",
    "Specialist": "specialist",
    "consolidate": "consolidation",
    "evaluate": "evaluation",
    "learn": "consolidation",
    "load": "loading",
    "predict": "evaluation",
    "train": "training.supervised",
}


def __getattr__(name: str) -> Any:
    """Import on first use: torch takes seconds to load, and `dmc --help` should not wait for it."""
    if name not in _HOME:
        raise AttributeError(f"module 'dmc' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"dmc.{_HOME[name]}"), name)
