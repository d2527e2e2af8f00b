"""How well a model does on labeled images, and what it says about a single one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dmc.data.decode import decode
from dmc.data.feed import MEMORY, open_feed
from dmc.data.opening import open_labeled
from dmc.data.sources import UNLABELED, Record, Source
from dmc.device import pick_device
from dmc.distill.teachers import Teachers
from dmc.errors import DmcError
from dmc.loading import load
from dmc.progress import progress
from dmc.specialist import Specialist


@dataclass(frozen=True)
class Evaluation:
    """Top-1 accuracies as fractions. Single-head: every class the model knows competes, also those not in the data."""

    accuracy: float
    per_class: dict[str, float]
    images: int
    skipped: int

    def of(self, names: Sequence[str]) -> float:
        """The mean accuracy of some classes, each counting alike."""
        return sum(self.per_class[name] for name in names) / len(names)


def evaluate(
    model: Specialist | Teachers | str | Path,
    data: str | Path | Source,
    *,
    keep: Sequence[str] | None = None,
    memory: int = MEMORY,
) -> Evaluation:
    """Accuracy of a specialist, or of several side by side, on labeled data; classes are matched by name."""
    model = model if isinstance(model, Teachers) else load(model)
    source = open_labeled(data)
    if keep is not None:
        source = source.keep(keep)
    unknown = [name for name in source.classes if name not in model.classes.names]
    if unknown:
        raise DmcError(
            f"{model.name} does not know {len(unknown)} of the {len(source.classes)} classes in {source.name}, "
            f"such as {unknown[0]!r}; evaluate on those it knows (--keep)"
        )
    place_K = torch.tensor([model.classes.require(name) for name in source.classes])
    device = pick_device()
    model.to(device)
    right = torch.zeros(len(source.classes), dtype=torch.long)
    total = torch.zeros_like(right)
    feed = open_feed(source, model.geometry, memory)
    with progress(feed.count, "evaluating") as bar, torch.no_grad():
        for batch in feed.in_order(256):
            logits_NK = model.logits(batch.images_N3HW.to(device))
            if isinstance(model, Specialist):  # several check their own
                model.require_finite(logits_NK)
            answer_N = logits_NK.argmax(dim=1).cpu()
            correct_N = answer_N == place_K[batch.labels_N]
            right += torch.bincount(batch.labels_N, correct_N.double(), minlength=len(right)).long()
            total += torch.bincount(batch.labels_N, minlength=len(total))
            bar.update(len(batch))
    per_class = {name: int(r) / int(t) for name, r, t in zip(source.classes, right, total, strict=True) if t}
    return Evaluation(int(right.sum()) / int(total.sum()), per_class, int(total.sum()), len(feed.skipped))


def predict(model: Specialist | str | Path, images: Sequence[str | Path], top: int = 5) -> list[dict[str, float]]:
    """The `top` most probable classes of each image file, most probable first."""
    model = load(model)
    tensors = []
    for path in map(Path, images):
        if not path.is_file():
            raise DmcError(f"no such image: {path}")
        tensors.append(decode(Record(path, UNLABELED, str(path)), model.geometry))
    answers = []
    for start in range(0, len(tensors), 64):
        best = model.probabilities(torch.stack(tensors[start : start + 64])).topk(min(top, len(model.classes)))
        for values, indices in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            answers.append({model.names[i]: p for i, p in zip(indices, values, strict=True)})
    return answers
