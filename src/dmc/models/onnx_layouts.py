"""The ways in which ONNX detectors lay out what they find, and how to tell which one a file has.

yolo                 one output, N x (4 + classes) x boxes or the other way round: center and size, scores
yolo5                one output, N x boxes x (5 + classes): center and size, objectness, scores
end2end              one output, N x boxes x 6: corners, score, label
boxes-scores         N x boxes x 4: corners; N x boxes x classes, maybe with a background before them: scores
boxes-scores-labels  three outputs, maybe for one image without an axis for it: corners, score, label
tensorflow           the same, but corners have the top first
detr                 N x queries x 4: center and size; N x queries x (classes, maybe with none after them): logits
detr-sigmoid         the same where each class is decided on its own, and outputs after the classes mean nothing
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from dmc.data.fitting import Fit
from dmc.errors import DmcError

Floats = npt.NDArray[np.float32]
NEARLY_EQUAL = 0.7  # overlap of two boxes of one object
MOST_POOLED = 300  # boxes of an image; comparing more would take much memory
MOSTLY = 0.5  # of the queries
SHARES = 2.0  # boxes whose sides are all less than this are given as shares of the image, not in pixels


class Output(NamedTuple):
    """One of a network's outputs."""

    name: str
    values: npt.NDArray[np.generic]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def floats(self) -> Floats:
        return self.values.astype(np.float32)


class Finds(NamedTuple):
    """Boxes of a batch, and the score of every class for each."""

    boxes_NM4: Floats  # corners
    scores_NMK: Floats


class Layout(ABC):
    """One way to lay out finds."""

    fit: ClassVar[Fit] = "letterbox"  # how such detectors are mostly shown images
    free_fit: ClassVar[Fit] = "letterbox"  # the same, for those that take images of any size

    @abstractmethod
    def classes_in(self, outputs: Sequence[Output]) -> set[int]:
        """Tell how many classes there may be if the outputs have this layout; none: they have another."""

    @abstractmethod
    def finds(self, outputs: Sequence[Output], classes: int) -> Finds:
        """Read the outputs."""

    def guessed(self, outputs: Sequence[Output]) -> bool:
        """Tell whether it is taken without being asked for, if the outputs have it."""
        return True


class Yolo(Layout):
    before = 4  # numbers before the scores of classes

    def classes_in(self, outputs: Sequence[Output]) -> set[int]:
        if len(outputs) != 1 or len(outputs[0].shape) != 3:
            return set()
        return {axis - self.before for axis in outputs[0].shape[1:] if axis > self.before}

    def finds(self, outputs: Sequence[Output], classes: int) -> Finds:
        values_NMX = outputs[0].floats
        if values_NMX.shape[2] != self.before + classes:
            values_NMX = values_NMX.transpose(0, 2, 1)
        return Finds(corners(values_NMX[..., :4]), self.scores(values_NMX))

    def scores(self, values_NMX: Floats) -> Floats:
        return values_NMX[..., 4:]


class YoloWithObjectness(Yolo):
    before = 5

    def scores(self, values_NMX: Floats) -> Floats:
        scores_NMK: Floats = values_NMX[..., 5:] * values_NMX[..., 4:5]
        return scores_NMK


class EndToEnd(Layout):
    def classes_in(self, outputs: Sequence[Output]) -> set[int]:
        if len(outputs) != 1 or len(outputs[0].shape) != 3 or outputs[0].shape[2] != 6:
            return set()
        labels_NM = outputs[0].floats[..., 5]
        return ANY if whole(labels_NM) else set()

    def finds(self, outputs: Sequence[Output], classes: int) -> Finds:
        values_NM6 = outputs[0].floats
        return pooled(values_NM6[..., :4], spread(values_NM6[..., 4], values_NM6[..., 5], classes))


class BoxesScores(Layout):
    fit = free_fit = "stretch"

    def classes_in(self, outputs: Sequence[Output]) -> set[int]:
        pair = boxes_and_table(outputs)
        if pair is None or outside(pair[1].floats):
            return set()
        columns = pair[1].shape[2]
        return {columns, columns - 1} if np.allclose(pair[1].floats.sum(axis=2), 1, atol=0.01) else {columns}

    def finds(self, outputs: Sequence[Output], classes: int) -> Finds:
        pair = boxes_and_table(outputs)
        assert pair is not None
        return Finds(pair[0].floats, pair[1].floats[..., -classes:])


class Detr(Layout):
    fit = free_fit = "stretch"

    def classes_in(self, outputs: Sequence[Output]) -> set[int]:
        pair = boxes_and_table(outputs)
        if pair is None or not outside(pair[1].floats):
            return set()
        logits_NMJ = pair[1].floats
        # In noise most queries find nothing. If the last output does not say so, it is no "none" of a softmax.
        none = (logits_NMJ.argmax(axis=2) == logits_NMJ.shape[2] - 1).mean() > MOSTLY
        return {logits_NMJ.shape[2], logits_NMJ.shape[2] - 1} if none else {logits_NMJ.shape[2]}

    def finds(self, outputs: Sequence[Output], classes: int) -> Finds:
        pair = boxes_and_table(outputs)
        assert pair is not None
        return Finds(corners(pair[0].floats), self.scores(pair[1].floats, classes).astype(np.float32))

    def scores(self, logits_NMJ: Floats, classes: int) -> Floats:
        if logits_NMJ.shape[2] == classes:
            return sigmoid(logits_NMJ)
        exp_NMJ = np.exp(logits_NMJ - logits_NMJ.max(axis=2, keepdims=True))
        scores_NMK: Floats = (exp_NMJ / exp_NMJ.sum(axis=2, keepdims=True))[..., :classes]
        return scores_NMK


class DetrSigmoid(Detr):
    def guessed(self, outputs: Sequence[Output]) -> bool:
        return False

    def classes_in(self, outputs: Sequence[Output]) -> set[int]:
        pair = boxes_and_table(outputs)
        return set(range(1, pair[1].shape[2] + 1)) if pair else set()

    def scores(self, logits_NMJ: Floats, classes: int) -> Floats:
        return sigmoid(logits_NMJ[..., :classes])


class BoxesScoresLabels(Layout):
    free_fit = "frame"

    def classes_in(self, outputs: Sequence[Output]) -> set[int]:
        return ANY if self._parts(outputs) else set()

    def finds(self, outputs: Sequence[Output], classes: int) -> Finds:
        parts = self._parts(outputs)
        assert parts is not None
        boxes, scores, labels = (part.floats for part in parts)
        if boxes.ndim == 2:  # of the only image
            boxes, scores, labels = boxes[None], scores[None], labels[None]
        return pooled(boxes, spread(scores, labels, classes))

    def _parts(self, outputs: Sequence[Output]) -> tuple[Output, Output, Output] | None:
        """Tell the three outputs apart by their shapes, types and names; a count of finds is not needed."""
        boxes = [one for one in outputs if one.shape[-1:] == (4,) and len(one.shape) in (2, 3)]
        boxes.sort(key=lambda one: -len(one.shape))  # of four finds, scores and labels end in 4, too
        others = [one for one in outputs if not one.name.lower().startswith("num")]  # of one find, a count looks alike
        rest = [one for one in others for box in boxes[:1] if one.shape == box.shape[:-1]]
        if (len(boxes) > 1 and len(boxes[1].shape) == len(boxes[0].shape)) or len(rest) != 2:
            return None
        rest.sort(key=lambda one: any(word in one.name.lower() for word in ("label", "class", "cls")))
        rest.sort(key=lambda one: np.issubdtype(one.values.dtype, np.integer))
        return boxes[0], rest[0], rest[1]


class TensorFlow(BoxesScoresLabels):
    """What TensorFlow's detection models give; they call it detection_boxes."""

    def guessed(self, outputs: Sequence[Output]) -> bool:
        return any("detection_boxes" in one.name.lower() for one in outputs)

    def finds(self, outputs: Sequence[Output], classes: int) -> Finds:
        found = super().finds(outputs, classes)
        return found._replace(boxes_NM4=found.boxes_NM4[..., [1, 0, 3, 2]])


ANY = set(range(1, 100_001))  # what the labels themselves do not tell
LAYOUTS: Mapping[str, Layout] = {
    "yolo": Yolo(),
    "yolo5": YoloWithObjectness(),
    "end2end": EndToEnd(),
    "boxes-scores": BoxesScores(),
    "boxes-scores-labels": BoxesScoresLabels(),
    "tensorflow": TensorFlow(),
    "detr": Detr(),
    "detr-sigmoid": DetrSigmoid(),
}


SURELY = ("end2end", "tensorflow")  # layouts that go before others that would fit, too


def layout_of(outputs: Sequence[Output], classes: int, asked: str | None, name: str) -> Layout:
    """Find the layout of a network's outputs; refuse if there is none, or several and the user has not said which."""
    given = ", ".join(f"{one.name} {'x'.join(map(str, one.shape))}" for one in outputs[:5])
    if asked is not None and asked not in LAYOUTS:
        raise DmcError(f"{name}: there is no layout {asked!r}; known are {', '.join(LAYOUTS)}")
    taken = [asked] if asked is not None else [key for key, layout in LAYOUTS.items() if layout.guessed(outputs)]
    tried = {key: LAYOUTS[key] for key in taken}
    counts = {key: layout.classes_in(outputs) for key, layout in tried.items()}
    fitting = [key for key, found in counts.items() if classes in found]
    # Six columns, of which the last has labels only, are no scores; nobody but TensorFlow uses its names.
    fitting = [key for key in fitting if key in SURELY] or fitting
    if len(fitting) == 1:
        return LAYOUTS[fitting[0]]
    if fitting:
        raise DmcError(f"{name} gives {given}, which may be {' or '.join(fitting)}: say which (layout)")
    few = {key: sorted(n for n in found if n > 0) for key, found in counts.items() if found and found is not ANY}
    hints = [f"{min(found)} as {key}" for key, found in few.items() if found]
    hint = f"; it would have {', '.join(hints)}" if hints else f"; known layouts are {', '.join(LAYOUTS)}"
    hint += "".join(
        f"; or say layout={key}"
        for key, layout in LAYOUTS.items()
        if not (asked or layout.guessed(outputs)) and classes in layout.classes_in(outputs)
    )
    wanted = "fits no layout" if asked is None else f"does not fit layout {asked}"
    raise DmcError(f"{name} gives {given}, which {wanted} with {classes} classes{hint}")


def boxes_and_table(outputs: Sequence[Output]) -> tuple[Output, Output] | None:
    """Find N x M x 4 boxes, and a table with a row for each; None if there are no such two."""
    if len(outputs) != 2 or any(len(one.shape) != 3 for one in outputs):
        return None
    if outputs[0].shape[:2] != outputs[1].shape[:2]:
        return None
    named = sorted(outputs, key=lambda one: (one.shape[2] != 4, "box" not in one.name.lower()))
    return (named[0], named[1]) if named[0].shape[2] == 4 else None


def sigmoid(logits: Floats) -> Floats:
    """Turn log-odds into probabilities."""
    probabilities: Floats = 1 / (1 + np.exp(-logits.clip(-50, 50)))
    return probabilities


def corners(centered_NM4: Floats) -> Floats:
    """Turn centers and sizes into corners."""
    middle, size = centered_NM4[..., :2], centered_NM4[..., 2:]
    return np.concatenate([middle - size / 2, middle + size / 2], axis=-1)


def spread(scores_NM: Floats, labels_NM: Floats, classes: int) -> Floats:
    """Give each class its score: that of the find if it is the find's label, else 0."""
    if not whole(labels_NM) or (labels_NM >= classes).any() or (labels_NM < -1).any():
        low, high = labels_NM.min(), labels_NM.max()
        raise ValueError(
            f"it gives labels from {low:g} to {high:g}, and has {classes} class names, for 0 to {classes - 1}; "
            "if its labels begin at 1, name the background as the first class"
        )
    scores_NMK: Floats = (labels_NM[..., None] == np.arange(classes)) * scores_NM[..., None]
    return scores_NMK


def pooled(boxes_NM4: Floats, scores_NMK: Floats) -> Finds:
    """Let boxes that nearly coincide tell each other's scores: a file with one label for each splits an object up."""
    if boxes_NM4.shape[1] > MOST_POOLED:
        return Finds(boxes_NM4, scores_NMK)
    low, high = boxes_NM4[..., :2], boxes_NM4[..., 2:]
    both = np.minimum(high[:, :, None], high[:, None]) - np.maximum(low[:, :, None], low[:, None])
    common_NMM = both.clip(0).prod(axis=-1)
    area_NM = (high - low).clip(0).prod(axis=-1)
    joint_NMM = area_NM[:, :, None] + area_NM[:, None] - common_NMM
    same_NMM = common_NMM > NEARLY_EQUAL * joint_NMM
    shared = [
        np.where(same[..., None], scores, 0).max(axis=1, initial=0)
        for same, scores in zip(same_NMM, scores_NMK[:, None], strict=True)
    ]
    return Finds(boxes_NM4, np.maximum(scores_NMK, np.stack(shared)))


def whole(values: Floats) -> bool:
    """Tell labels: they are whole numbers."""
    return bool((values == values.round()).all())


def outside(scores: Floats) -> bool:
    """Tell what cannot be probabilities."""
    return bool(((scores < -1e-3) | (scores > 1 + 1e-3)).any())


def in_shares(boxes_M4: Floats) -> bool | None:
    """Tell boxes that are given as shares of the image, and not in pixels; None if none of them has a size."""
    sized_M4 = boxes_M4[(boxes_M4[:, 2:] > boxes_M4[:, :2]).all(axis=1)]
    return float(np.abs(sized_M4).max()) < SHARES if len(sized_M4) else None
