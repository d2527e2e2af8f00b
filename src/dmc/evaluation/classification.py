"""Measure a classifier on labeled images, and ask it about single ones."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from dmc.classes import Classes, counted
from dmc.data.decode import CenterCrop, DecodeError, decode, result_or_error
from dmc.data.loader import StreamLoader
from dmc.data.open import open_labeled
from dmc.data.sources import Record, Source
from dmc.device import pick_device
from dmc.distill.teachers import Teachers
from dmc.errors import DmcError, nearest
from dmc.models.specialist import Specialist
from dmc.progress import progress

logger = logging.getLogger("dmc")


class Classifier(Protocol):
    """Anything that classifies images: a specialist, several side by side, or a rule on top of one."""

    name: str

    @property
    def classes(self) -> Classes: ...

    @property
    def transform(self) -> CenterCrop: ...

    def logits(self, images_N3HW: Tensor) -> Tensor: ...

    def to(self, device: torch.device) -> Any: ...


@dataclass(frozen=True)
class Evaluation:
    """Top-1 accuracies as fractions. Single-head: all classes of the model compete, also those not in the data."""

    accuracy: float
    per_class: dict[str, float]
    images: int
    skipped: int

    def of(self, names: Sequence[str]) -> float:
        """Give the mean accuracy of some classes, each counting alike."""
        return sum(self.per_class[name] for name in names) / len(names)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def as_text(self) -> str:
        """Give a table with a line for each class and one for all images."""
        width = max(len(name) for name in (*self.per_class, "mean"))
        lines = [f"{name:<{width}}  {accuracy:6.1%}" for name, accuracy in self.per_class.items()]
        total = f"{'all':<{width}}  {self.accuracy:6.1%}  of {self.images:,} images ({self.skipped} skipped)"
        return "\n".join([*lines, total])


def evaluate(
    model: Specialist | Teachers,
    data: str | Path | Source,
    *,
    keep: Sequence[str] | None = None,
    known: bool = False,
    rename: Mapping[str, str] | None = None,
) -> Evaluation:
    """Measure the accuracy of a specialist, or of several side by side, on labeled data; classes are matched by name.

    `keep` names the classes of the data to look at; `known` leaves out those that the model does not know; `rename`
    maps names of the data to the model's name for them, several to one if need be.
    """
    source = open_labeled(data)
    if keep is not None:
        source = source.keep(keep)
    source = source.rename(map_class_names(source, model.classes, model.name, rename or {}))
    if known:
        whole, source = source, source.keep(known_names(source, model.classes, model.name))
        log_left_out(f"{len(whole) - len(source):,} images", whole, source, model.name)
    require_known_classes(source, model.classes, model.name)
    counts_CK, skipped = answers(model, source)
    right = [int(row[model.classes.require(name)]) for name, row in zip(source.classes, counts_CK, strict=True)]
    total = counts_CK.sum(dim=1).tolist()
    per_class = {name: r / t for name, r, t in zip(source.classes, right, total, strict=True) if t}
    return Evaluation(sum(right) / sum(total), per_class, sum(total), skipped)


def map_class_names(source: Source, classes: Classes, model: str, rename: Mapping[str, str]) -> dict[str, str]:
    """Map names of the data to the model's: those in `rename`, and those that the model has under another name."""
    asked = {source.classes[Classes.of(source.classes).require(old, source.name)]: new for old, new in rename.items()}
    found = {old: classes.names[classes.require(new, model)] for old, new in asked.items()}
    meant = {name: classes.meant_by(name) for name in source.classes if name not in (*asked, *classes.names)}
    alike = {name: classes.names[places[0]] for name, places in meant.items() if len(places) == 1}
    if alike:
        first = next(iter(alike))
        logger.info(
            f"{model} has other names for {counted(list(alike))} of {source.name}, "
            f"such as {alike[first]!r} for {first!r}"
        )
    return found | alike


def known_names(source: Source, classes: Classes, model: str) -> list[str]:
    """Give the classes of the data that the model knows; refuse data of which it knows none."""
    found = [name for name in source.classes if name in classes.names]
    if not found:
        require_known_classes(source, classes, model)
    return found


def log_left_out(what: str, whole: Source, rest: Source, model: str) -> None:
    """Log which classes of the whole are not in the rest, since the model does not know them."""
    names = [name for name in whole.classes if name not in rest.classes]
    if names:
        logger.info(f"{what} of {counted(names)} that {model} does not know are left out, such as {names[0]!r}")


def require_known_classes(source: Source, classes: Classes, model: str) -> None:
    """Refuse data with classes that the model does not know, before any image is decoded."""
    unknown = [name for name in source.classes if name not in classes.names]
    if unknown:
        first = ", ".join(f"{name!r}{nearest(name, classes.names, ' (', ')')}" for name in unknown[:5])
        raise DmcError(
            f"{model} does not know {len(unknown)} of the {len(source.classes)} classes in {source.name}: "
            f"{first}{', ...' if len(unknown) > 5 else ''}; known leaves them out, "
            "rename OLD=NEW gives one the name that the model has for it"
        )


def answers(model: Classifier, source: Source) -> tuple[Tensor, int]:
    """Count how often each class of the source got each of the model's answers, and the images that cannot be read."""
    device = pick_device()
    model.to(device)
    counts_CK = torch.zeros((len(source.classes), len(model.classes)), dtype=torch.long)
    stream = StreamLoader(source, model.transform)  # every image is wanted once, so none is kept
    with progress(stream.count, "evaluating") as bar, torch.no_grad():
        for batch in stream.in_order(256):
            logits_NK = model.logits(batch.images_N3HW.to(device))
            if not logits_NK.isfinite().all():
                raise DmcError(f"{model.name} gives logits that are not finite; its weights are broken")
            pairs_N = batch.labels_N * len(model.classes) + logits_NK.argmax(dim=1).cpu()
            counts_CK += torch.bincount(pairs_N, minlength=counts_CK.numel()).view_as(counts_CK)
            bar.update(len(batch))
    return counts_CK, len(stream.skipped)


def classified(model: Specialist, records: Sequence[Record], top: int) -> list[dict[str, float] | DecodeError]:
    """Give the `top` most probable classes of each image, most probable first, or the reason why it cannot be read."""
    model.to(pick_device())
    found: list[dict[str, float] | DecodeError] = []
    for start in range(0, len(records), 64):
        tried = [result_or_error(partial(decode, record, model.transform)) for record in records[start : start + 64]]
        best = iter(_best(model, [pixels for pixels in tried if not isinstance(pixels, DecodeError)], top))
        found += [one if isinstance(one, DecodeError) else next(best) for one in tried]
    return found


def _best(model: Specialist, pixels: Sequence[Tensor], top: int) -> list[dict[str, float]]:
    """Give the `top` most probable classes of each decoded image."""
    if not pixels:
        return []
    best = model.probabilities(torch.stack(list(pixels))).topk(min(top, len(model.classes)))
    rows = zip(best.values.tolist(), best.indices.tolist(), strict=True)
    return [{model.names[i]: p for i, p in zip(indices, values, strict=True)} for values, indices in rows]
