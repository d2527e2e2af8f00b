"""Measure a classifier on labeled images, and ask it about single ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Unpack

import torch
from torch import Tensor

from dmc.classes import Classes
from dmc.data.decode import CenterCrop, DecodeError, decode, result_or_error
from dmc.data.loader import StreamLoader
from dmc.data.open import open_labeled
from dmc.data.sources import Record, Source
from dmc.device import pick_device
from dmc.distill.teachers import Teachers
from dmc.errors import DmcError
from dmc.evaluation.matching import ClassChoice, known_names, log_left_out, map_class_names, require_known_classes
from dmc.models.model import NOT_FINITE
from dmc.models.specialist import Specialist
from dmc.progress import progress
from dmc.text import one_line


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
        width = max(len(one_line(name)) for name in (*self.per_class, "mean"))
        lines = [f"{one_line(name):<{width}}  {accuracy:6.1%}" for name, accuracy in self.per_class.items()]
        total = f"{'all':<{width}}  {self.accuracy:6.1%}  of {self.images:,} images ({self.skipped} skipped)"
        return "\n".join([*lines, total])


def evaluate(model: Specialist | Teachers, data: str | Path | Source, **choice: Unpack[ClassChoice]) -> Evaluation:
    """Measure the accuracy of a specialist, or of several side by side, on labeled data."""
    source = matched(model, data, **choice)
    counts_CK, skipped = answers(model, source)
    right = [int(row[model.classes.require(name)]) for name, row in zip(source.classes, counts_CK, strict=True)]
    total = counts_CK.sum(dim=1).tolist()
    per_class = {name: r / t for name, r, t in zip(source.classes, right, total, strict=True) if t}
    return Evaluation(sum(right) / sum(total), per_class, sum(total), skipped)


def matched(model: Specialist | Teachers, data: str | Path | Source, **choice: Unpack[ClassChoice]) -> Source:
    """Open labeled images, under the model's class names."""
    source, keep = open_labeled(data), choice.get("keep")
    if keep is not None:
        source = source.keep(keep)
    source = source.rename(map_class_names(source, model.classes, model.name, choice.get("rename") or {}))
    if choice.get("known"):
        whole, source = source, source.keep(known_names(source, model.classes, model.name))
        log_left_out(f"{len(whole) - len(source):,} images", whole, source, model.name)
    require_known_classes(source, model.classes, model.name)
    return source


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
                raise DmcError(f"{model.name} {NOT_FINITE}")
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
