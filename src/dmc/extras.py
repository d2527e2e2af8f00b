"""Optional packages, which only some jobs need."""

from importlib.util import find_spec

from dmc.errors import DmcError


def require_extra(extra: str, *packages: str) -> None:
    """Refuse to begin a job without its extra's packages; say which are missing and how to install them."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise DmcError(f"not installed: {', '.join(missing)}; pip install 'deep-model-consolidation[{extra}]'")


def require_tracker(name: str | None) -> None:
    """Refuse a tracker whose package, which has the same name, is not installed; None is no tracker."""
    if name == "tensorboard":
        require_extra("track", name)
    elif name is not None and find_spec(name) is None:
        raise DmcError(f"not installed: {name}; pip install {name}")
