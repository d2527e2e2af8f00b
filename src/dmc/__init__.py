"""One vision model out of several, without the data they were trained on."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dmc.api import check, consolidate, evaluate, export, learn, load, predict, push, train, write_report
    from dmc.data.preprocess import Preprocessing
    from dmc.errors import DmcError
    from dmc.models.detector import Detector
    from dmc.models.specialist import Specialist
    from dmc.schedule import Schedule

__all__ = [
    "Detector",
    "DmcError",
    "Preprocessing",
    "Schedule",
    "Specialist",
    "check",
    "consolidate",
    "evaluate",
    "export",
    "learn",
    "load",
    "predict",
    "push",
    "train",
    "write_report",
]

_HOME = {
    "Detector": "models.detector",
    "DmcError": "errors",
    "Preprocessing": "data.preprocess",
    "Schedule": "schedule",
    "Specialist": "models.specialist",
    "check": "api",
    "consolidate": "api",
    "evaluate": "api",
    "export": "api",
    "learn": "api",
    "load": "api",
    "predict": "api",
    "push": "api",
    "train": "api",
    "write_report": "api",
}


def __dir__() -> list[str]:
    return [*__all__, "__version__", "models"]


def __getattr__(name: str) -> Any:
    """Import a name on first use: torch takes seconds to load, and the command line's help should not wait for it."""
    from importlib import import_module, metadata

    if name == "__version__":
        return metadata.version("deep-model-consolidation")
    if name == "models":
        return import_module("dmc.models")
    if name not in _HOME:
        raise AttributeError(f"module 'dmc' has no attribute {name!r}")
    return getattr(import_module(f"dmc.{_HOME[name]}"), name)
