"""One file per class-incremental method."""

import re
from inspect import isabstract
from pathlib import Path
from typing import NamedTuple

from dmc.errors import DmcError, require_known
from dmc.methods.adapted_shmelkov import AdaptedShmelkov
from dmc.methods.base import Learned, Lesson, Method
from dmc.methods.dmc import DMC
from dmc.methods.dmc_plus import DMCPlus
from dmc.methods.dmc_plus_plus import DMCPlusPlus
from dmc.methods.ewc import EWC
from dmc.methods.ewc_plus_plus import EWCPlusPlus
from dmc.methods.finetuning import Finetuning
from dmc.methods.fixed_representation import FixedRepresentation
from dmc.methods.icarl import ICaRL
from dmc.methods.inference_twice import InferenceTwice
from dmc.methods.lwf import LwF
from dmc.methods.lwf_mc import LwFMC
from dmc.methods.mas import MAS
from dmc.methods.new_classes import NewClasses
from dmc.methods.old_classes import OldClasses
from dmc.methods.oracle import Oracle
from dmc.methods.rewc import REWC
from dmc.methods.rwalk import RWalk
from dmc.methods.si import SI
from dmc.models.model import Model
from dmc.user_code import blaming, run_file

__all__ = ["METHODS", "OWN_FILES", "Learned", "Lesson", "Method", "method_named", "methods_named", "title_of"]


class OwnFile(NamedTuple):
    """A user's file, and what it held when it was run."""

    path: Path
    code: str


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Finetuning(),
        FixedRepresentation(),
        LwF(),
        LwFMC(),
        EWC(),
        EWCPlusPlus(),
        SI(),
        MAS(),
        RWalk(),
        REWC(),
        ICaRL(),
        AdaptedShmelkov(),
        DMC(),
        DMCPlus(),
        DMCPlusPlus(),
        InferenceTwice(),
        Oracle(),
        OldClasses(),
        NewClasses(),
    )
}

NAME, RESERVED = r"[a-z0-9][a-z0-9+._-]*", ("all", "first", "shared")  # of folders: those of models that methods share
OWN_FILES: dict[str, OwnFile] = {}  # where users' own methods came from, by name


def methods_named(text: str, kind: type[Model] = Model) -> list[Method]:
    """Find the methods of a list such as `dmc,lwf,mine.py`.

    `all` stands for the methods above that serve this kind of model and are not parts of others.
    """
    every = [m for m in METHODS.values() if not m.is_part and (kind is Model or m.serves(kind))]
    names = [name.strip() for name in text.split(",") if name.strip()]
    found = [method for name in names for method in (every if name == "all" else [method_named(name)])]
    return list(dict.fromkeys(found))


def title_of(name: str) -> str:
    """Give a method's title in tables; its name if there are results of it, but its file is not loaded."""
    return METHODS[name].title if name in METHODS else name


def method_named(name: str) -> Method:
    """Find one of the methods above, or the one in a user's own file: `mine.py`."""
    if name.endswith(".py"):
        return _from_file(Path(name))
    require_known("method", name, METHODS)
    return METHODS[name]


def _from_file(path: Path) -> Method:
    """Load the one method of a user's file and add it to the others."""
    module, code = run_file(path), path.read_text("utf-8")
    own = [thing for thing in vars(module).values() if getattr(thing, "__module__", None) == module.__name__]
    found = [thing for thing in own if isinstance(thing, type) and issubclass(thing, Method) and not isabstract(thing)]
    if len(found) != 1:
        raise DmcError(f"{path} must have one subclass of dmc.methods.Method with `learn`; it has {len(found)}")
    with blaming(path):
        method: Method = found[0]()
    if not (getattr(method, "name", "") and getattr(method, "title", "")):
        raise DmcError(f"{path}: {found[0].__name__} needs a name and a title")
    if not re.fullmatch(NAME, method.name):
        raise DmcError(f"{path}: a method is not called {method.name!r}: small letters, digits and + - . _ make a name")
    if method.name in RESERVED:
        raise DmcError(f"{path}: {method.name!r} has another meaning: call the method something else")
    if method.title in {other.title for name, other in METHODS.items() if name != method.name}:
        raise DmcError(f"{path}: there is a method with the title {method.title!r} already")
    kinds = method.kinds if isinstance(method.kinds, tuple) else (method.kinds, None)
    if not all(isinstance(kind, type) and issubclass(kind, Model) for kind in kinds):
        raise DmcError(f"{path}: kinds of {found[0].__name__} is no tuple of classes of models: (dmc.Specialist,) is")
    if type(METHODS.get(method.name, method)).__module__ != module.__name__:
        raise DmcError(f"{path}: there is a method {method.name!r} already")
    if method.name not in METHODS or OWN_FILES[method.name].code != code:
        METHODS[method.name], OWN_FILES[method.name] = method, OwnFile(path.resolve(), code)
    return METHODS[method.name]
