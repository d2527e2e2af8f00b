"""Packages that only some jobs need."""

from importlib.util import find_spec

from dmc.errors import DmcError


def require_extra(extra: str, *packages: str) -> None:
    """Name what is not installed of an extra's packages, and how to install it, before anything begins."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise DmcError(f"not installed: {', '.join(missing)}; pip install 'deep-model-consolidation[{extra}]'")
