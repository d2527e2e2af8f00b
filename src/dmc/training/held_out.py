"""What a training reports: its data when it begins, and how well the model does on held-out images when it ends."""

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
    """Labeled images that a model is not trained on, to measure it with at the end; `images` is None without any."""

    images: Source | None
    what: str  # is measured: "accuracy"
    measure: Callable[[AnyModel, Source], str]  # gives the result in words

    @property
    def config(self) -> dict[str, Any]:
        """What run.json says of the held-out images: a resumed run must hold out the same."""
        return {} if self.images is None else {"held out": {"name": self.images.name, "images": len(self.images)}}

    def begin(self, source: Source, count: int) -> None:
        """Log what is trained on: the `count` images of a source that can be read, and their classes."""
        tested = "" if self.images is None else f"; {len(self.images):,} images are held out ({self.images.name})"
        names = f"{counted(source.classes)} ({listed(source.classes)})"
        log.info("training on %s: %s images of %s%s", source.name, f"{count:,}", names, tested)

    def result(self, model: AnyModel) -> dict[str, str]:
        """Measure the model, for its card. Unreadable images are no error here: what was learned must not be lost."""
        if self.images is None:
            return {}
        try:
            found = f"{self.measure(model, self.images)} ({self.images.name})"
        except DmcError as error:
            found = f"not measured: {error}"
        return {f"held-out {self.what}": found}


def tested_classes(held_out: Source, source: Source, keep: Iterable[str] | None) -> list[str]:
    """Give the classes that are both learned and tested; refuse others to test, unless `keep` chose what to learn."""
    shown = [name for name in held_out.classes if name in source.classes]
    foreign = [name for name in held_out.classes if name not in source.classes]
    if not shown or (foreign and keep is None):
        raise DmcError(f"{held_out.name} has a class {foreign[0]!r}, {source.name} does not: test on what is learned")
    return shown
