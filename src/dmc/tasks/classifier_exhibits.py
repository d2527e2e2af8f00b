"""What a report shows of a classifier on labeled images, beside the teachers that it learned from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import nlargest
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dmc.data.batch import Batch
from dmc.data.loader import StreamLoader
from dmc.data.sources import Source
from dmc.data.thumbnails import thumbnail
from dmc.device import pick_device
from dmc.distill.teachers import Teachers
from dmc.exhibits import Answer, AnyExhibit, Cell, Confusion, Confusions, Exhibit, Facts, Gallery, Table, count, percent
from dmc.metrics.incremental import Matrix
from dmc.models.specialist import Specialist
from dmc.progress import progress

SHOWN = 12  # images on which student and teachers disagree
BATCH = 256
MODEL, STUDENT, TOGETHER = "model", "student", "teachers side by side"
Speaker = Specialist | Teachers


class Disagreement(NamedTuple):
    """An image on which student and teachers disagree, by the largest difference of a class's probability."""

    distance: float
    pixels_3HW: Tensor
    label: str
    said: dict[str, tuple[str, float]]  # by whom: the most probable class, and its probability


@dataclass(frozen=True)
class Examination:
    """What several speakers answered about labeled images."""

    speakers: Mapping[str, Speaker]  # by what a report calls them: the model first, then its teachers, if any
    classes: tuple[str, ...]  # of the images
    counts: Mapping[str, Matrix]  # how often images of each class got each of a speaker's answers
    worst: list[Disagreement]
    skipped: int

    @property
    def first(self) -> str:
        """What the model that the report is about is called."""
        return next(iter(self.speakers))

    def images(self, names: Iterable[str]) -> int:
        """Count the images of some classes."""
        return int(self.counts[self.first][[self.classes.index(name) for name in names]].sum())

    def right(self, who: str, names: Iterable[str]) -> float | None:
        """Give the share of right answers to images of some classes; None if there are none, or who knows them not."""
        known, wanted = self.speakers[who].classes.names, [name for name in names if name in self.classes]
        if not wanted or not self.images(wanted) or not set(wanted) <= set(known):
            return None
        hits = sum(int(self.counts[who][self.classes.index(name), known.index(name)]) for name in wanted)
        return hits / self.images(wanted)

    def mean(self, who: str, names: Iterable[str]) -> float | None:
        """Give the mean accuracy of some classes, each counting alike; None if none of them was asked about."""
        shares = [share for name in names if (share := self.right(who, [name])) is not None]
        return sum(shares) / len(shares) if shares else None

    def mistaken_for(self, name: str) -> str:
        """Name the wrong answer that images of a class get most often, and how often."""
        known, row = self.speakers[self.first].classes.names, self.counts[self.first][self.classes.index(name)].copy()
        row[known.index(name)] = 0
        return f"{known[int(row.argmax())]} ({row.max():,})" if row.any() else ""


def examined(model: Specialist, teachers: Mapping[str, Specialist], source: Source) -> Examination:
    """Ask a model and its teachers, alone and side by side, about every image, as each wants to see it."""
    speakers: dict[str, Speaker] = {STUDENT if teachers else MODEL: model}
    if len(teachers) > 1:
        speakers |= {TOGETHER: Teachers(list(teachers.values())), **teachers}
    looks = {speaker.transform: StreamLoader(source, speaker.transform) for speaker in speakers.values()}
    shapes = {who: (len(source.classes), len(speaker.classes.names)) for who, speaker in speakers.items()}
    counts: dict[str, Matrix] = {who: np.zeros(shape, dtype=np.int64) for who, shape in shapes.items()}
    worst: list[Disagreement] = []
    with progress(len(source), "evaluating") as bar, torch.no_grad():
        for batches in zip(*(look.in_order(BATCH) for look in looks.values()), strict=True):
            seen = dict(zip(looks, batches, strict=True))
            said = {who: _probabilities(one, seen[one.transform]) for who, one in speakers.items()}
            for who, probabilities_NK in said.items():
                places = batches[0].labels_N.numpy(), probabilities_NK.argmax(dim=1).numpy()
                np.add.at(counts[who], places, 1)
            if TOGETHER in speakers:
                apart = disagreements(speakers, said, batches[0], source.classes)
                worst = nlargest(SHOWN, [*worst, *apart], key=lambda one: one.distance)
            bar.update(len(batches[0]))
    return Examination(speakers, source.classes, counts, worst, len(looks[model.transform].skipped))


def _probabilities(speaker: Speaker, batch: Batch) -> Tensor:
    """Give the probabilities of a speaker's own classes, on the CPU."""
    speaker.to(pick_device())
    logits_NK = speaker.logits(batch.images_N3HW.to(pick_device())).cpu().double()
    one = speaker.specialists[0] if isinstance(speaker, Teachers) else speaker
    return logits_NK.softmax(dim=1) if one.output == "softmax" else logits_NK.sigmoid()


def disagreements(
    speakers: Mapping[str, Speaker], said: Mapping[str, Tensor], batch: Batch, classes: tuple[str, ...]
) -> list[Disagreement]:
    """Find the images of a batch to which the student and the teachers side by side have different answers."""
    names, mine = speakers[TOGETHER].classes.names, speakers[STUDENT].classes.names
    student_NU, together_NU = said[STUDENT][:, [mine.index(name) for name in names]], said[TOGETHER]
    distance_N = (student_NU - together_NU).abs().amax(dim=1)
    distance_N[student_NU.argmax(dim=1) == together_NU.argmax(dim=1)] = 0
    best = {who: probabilities_NK.max(dim=1) for who, probabilities_NK in said.items()}
    return [
        Disagreement(
            float(distance_N[i]),
            batch.images_N3HW[i].clone(),
            classes[int(batch.labels_N[i])],
            {w: (speakers[w].classes.names[int(top.indices[i])], float(top.values[i])) for w, top in best.items()},
        )
        for i in distance_N.topk(min(SHOWN, len(distance_N))).indices.tolist()
        if distance_N[i] > 0
    ]


def exhibits(model: Specialist, teachers: Mapping[str, Specialist], source: Source) -> list[AnyExhibit]:
    """Show how well a model does on labeled images of its classes; `teachers` are by what the report calls them."""
    found = examined(model, teachers, source)
    matrices = [_matrix(found, who) for who in found.speakers if who in (found.first, TOGETHER)]
    shown: list[AnyExhibit] = [_summary(found, source)]
    if TOGETHER in found.speakers:
        shown.append(_by_teacher(found, teachers))
    shown.append(Confusions("confusion", "Which class is taken for which", matrices))
    shown.append(_by_class(found, teachers))
    if found.worst:
        shown.append(_gallery(found))
    return shown


def _summary(found: Examination, source: Source) -> Facts:
    """State the accuracies, and how much better the first teacher's classes are known than the last one's."""
    unread = f", {found.skipped} more cannot be read" if found.skipped else ""
    rows = {
        "labeled images": f"{found.images(found.classes):,} of {len(found.classes)} classes in {source.name}{unread}"
    }
    rows |= {
        f"accuracy, {who}": f"{right:.1%}"
        for who in (found.first, TOGETHER)
        if who in found.speakers and (right := found.right(who, found.classes)) is not None
    }
    if TOGETHER in found.speakers:
        taught = [one.names for who, one in found.speakers.items() if isinstance(one, Specialist) and who != STUDENT]
        old, new = found.mean(STUDENT, taught[0]), found.mean(STUDENT, taught[-1])
        if old is not None and new is not None:
            rows["gap between the first and the last teacher's classes"] = f"{100 * (old - new):+.1f} points"
    return Facts(rows)


def _by_teacher(found: Examination, teachers: Mapping[str, Specialist]) -> Table:
    columns = ["classes of", "student, %", "side by side, %", "this teacher alone, %", "images"]
    rows: list[list[Cell]] = []
    for who, teacher in teachers.items():
        shown = [name for name in teacher.names if name in found.classes]
        shares = (found.mean(one, shown) for one in (STUDENT, TOGETHER, who))
        rows.append([who, *map(percent, shares), count(found.images(shown))])
    note = (
        "Each class counts alike. Side by side, all teachers answer together, and all classes compete; alone, only a "
        "teacher's own do."
    )
    return Table("Accuracy on each teacher's classes", columns, rows, note)


def _by_class(found: Examination, teachers: Mapping[str, Specialist]) -> Table:
    whole = [who for who in (found.first, TOGETHER) if who in found.speakers]
    columns = ["class", *(f"{who}, %" for who in whole), "images", "most often taken for"]
    rows: list[list[Cell]] = []
    for name in found.classes:
        taught = [", ".join(who for who, one in teachers.items() if name in one.names)] if teachers else []
        shares = (percent(found.right(who, [name])) for who in whole)
        rows.append([name, *shares, count(found.images([name])), found.mistaken_for(name), *taught])
    return Table("Accuracy of each class", [*columns, *(["taught by"] if teachers else [])], rows)


def _matrix(found: Examination, who: str) -> Confusion:
    """Give a confusion matrix whose rows are in the order of its columns."""
    columns = found.speakers[who].classes.names
    order = sorted(range(len(found.classes)), key=lambda i: columns.index(found.classes[i]))
    return Confusion(who, [found.classes[i] for i in order], columns, found.counts[who][order])


def _gallery(found: Examination) -> Gallery:
    shown = [
        Exhibit(
            thumbnail(one.pixels_3HW),
            f"label: {one.label}",
            [Answer(who, f"{name} {share:.0%}", name == one.label) for who, (name, share) in one.said.items()],
        )
        for one in found.worst
    ]
    note = "The largest difference of a class's probability decides. A teacher alone knows only its own classes."
    return Gallery("disagreements", "Where student and teachers disagree most", shown, note)
