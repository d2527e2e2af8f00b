"""One file per class-incremental method."""

from dmc.errors import DmcError, nearest
from dmc.methods.base import Learned, Lesson, Method
from dmc.methods.dmc import DMC
from dmc.methods.dmc_plus import DMCPlus
from dmc.methods.ewc import EWC
from dmc.methods.ewc_plus_plus import EWCPlusPlus
from dmc.methods.finetuning import Finetuning
from dmc.methods.fixed_representation import FixedRepresentation
from dmc.methods.icarl import ICaRL
from dmc.methods.inference_twice import InferenceTwice
from dmc.methods.lwf import LwF
from dmc.methods.lwf_mc import LwFMC
from dmc.methods.mas import MAS
from dmc.methods.oracle import Oracle
from dmc.methods.rewc import REWC
from dmc.methods.rwalk import RWalk
from dmc.methods.si import SI

__all__ = ["METHODS", "Learned", "Lesson", "Method", "method_named"]

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
        DMC(),
        DMCPlus(),
        InferenceTwice(),
        Oracle(),
    )
}


def method_named(name: str) -> Method:
    if name not in METHODS:
        raise DmcError(f"unknown method {name!r}{nearest(name, METHODS)} (known: {', '.join(METHODS)})")
    return METHODS[name]
