"""Run a user's own Python file, because the user named it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from dmc.errors import DmcError, first_line
from dmc.files import digest


@contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Turn anything that a user's code raises into a one-line error that names its file."""
    try:
        yield
    except Exception as error:
        raise DmcError(f"cannot run {path}: {type(error).__name__}: {first_line(error)}") from None


def run_file(path: Path) -> ModuleType:
    """Run a Python file, and give what it defines as a module.

    Python knows the module by a name of its own, where a dataclass looks up what it is defined in; not by the file's
    path, which would get into exported files.
    """
    name = f"{path.stem}_{digest(str(path.resolve()))}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise DmcError(f"no such file: {path}")
    sys.modules[name] = module = module_from_spec(spec)
    try:
        with blaming(path):
            spec.loader.exec_module(module)
    except DmcError:
        del sys.modules[name]
        raise
    return module
