"""What a training tells whoever asked for it: its classes when it begins, and how well it did when it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic

from dmc.classes import counted, listed
from dmc.data.sources import Source
from dmc.errors import DmcError
from dmc.models.model import AnyModel

log = logging.getLogger("dmc")


@dataclass(frozen=True)
class HeldOut(Generic[AnyModel]):
    """Labeled images that a model is not trained on and tested with at the end, if there are any."""

    images: Source | None
    what: str  # is measured: "accuracy"
    measure: Callable[[AnyModel, Source], str]

    @property
    def config(self) -> dict[str, Any]:
        """For the run: whoever resumes it must hold out the same."""
        return {} if self.images is None else {"held out": {"name": self.images.name, "images": len(self.images)}}

    def begin(self, source: Source, count: int) -> None:
        tested = "" if self.images is None else f"; {len(self.images):,} images are held out ({self.images.name})"
        names = f"{counted(source.classes)} ({listed(source.classes)})"
        log.info("training on %s: %s images of %s%s", source.name, f"{count:,}", names, tested)

    def result(self, model: AnyModel) -> dict[str, str]:
        """A line for the model's card. Images that cannot be read must not cost what was learned."""
        if self.images is None:
            return {}
        try:
            found = f"{self.measure(model, self.images)} ({self.images.name})"
        except DmcError as error:
            found = f"not measured: {error}"
        return {f"held-out {self.what}": found}


def shown_in(held_out: Source, source: Source, keep: Iterable[str] | None) -> list[str]:
    """The classes that are both learned and tested. Others to test are a mistake, unless they were not to be kept."""
    shown = [name for name in held_out.classes if name in source.classes]
    foreign = [name for name in held_out.classes if name not in source.classes]
    if not shown or (foreign and keep is None):
        raise DmcError(f"{held_out.name} has a class {foreign[0]!r}, {source.name} has not: test on what is learned")
    return shown
