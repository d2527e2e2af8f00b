"""Optional packages, which only some jobs need."""

from importlib.util import find_spec
from typing import TypeVar

from dmc.errors import DmcError

AnyName = TypeVar("AnyName", bound=str | None)


def require_extra(extra: str, *packages: str) -> None:
    """Refuse to begin a job without its extra's packages; say which are missing and how to install them."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise DmcError(f"not installed: {', '.join(missing)}; pip install 'deep-model-consolidation[{extra}]'")


def require_tracker(name: AnyName) -> AnyName:
    """Give a tracker's name back if its package, which has the same name, is installed; None is no tracker."""
    if name == "tensorboard":
        require_extra("track", "tensorboard")
    elif name is not None and find_spec(name) is None:
        raise DmcError(f"not installed: {name}; pip install {name}")
    return name
