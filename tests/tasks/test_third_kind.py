"""A third kind of model, all of it in this file: a class for every pixel of an 8x8 image.

Registered from here, it goes through every verb without a line of it in the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from dmc.choices import NetworkChoice
from dmc.classes import Classes
from dmc.config import ConsolidateConfig, NetworkConfig, Output, PredictConfig
from dmc.consolidation import Consolidation, Joining
from dmc.data.batch import Batch
from dmc.data.decode import CenterCrop, DecodeError, decode
from dmc.data.loader import ImageLoader, StreamLoader
from dmc.data.preprocess import Preprocessing
from dmc.data.sources import UNLABELED, Record, Source, permuted
from dmc.distill.targets import build_targets
from dmc.distill.teachers import TeacherGroup
from dmc.evaluation.matching import ClassChoice
from dmc.models.architecture_source import Architectures, ArchitectureSource, Listed
from dmc.models.model import MODELS, Model
from dmc.schedule import Schedule
from dmc.tasks import TASKS, register
from dmc.tasks.base import Names, Place, VisionTask
from dmc.training.findings import Findings
from dmc.training.held_out import HeldOut
from dmc.training.objective import Objective
from tests.conftest import Answer

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220), "white": (230, 230, 230)}
NO_CLASS = -1  # of a pixel
QUICK = Schedule(epochs=30, batch_size=8, shape="one-cycle")


class MaskedImages(Source):
    """Images with a class for each pixel."""

    def __init__(self, classes: Sequence[str], scenes: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
        self.name, self.classes, self.scenes = "patches", tuple(classes), list(scenes)

    def __len__(self) -> int:
        return len(self.scenes)

    def records(self, seed: int | None = None) -> Iterator[Record]:
        for i in permuted(range(len(self)), seed):
            yield Record(self.scenes[i][0], UNLABELED, f"{self.name}[{i}]", self.scenes[i][1])

    def keep(self, names: Iterable[str]) -> MaskedImages:
        kept = Classes.of(self.classes).keep(names, self.name)
        new = np.full(len(self.classes) + 1, NO_CLASS)  # the last is that of pixels without a class
        new[list(kept.columns)] = range(len(kept))
        return MaskedImages(kept.names, [(image, new[mask]) for image, mask in self.scenes])


def patches(count: int, seed: int) -> MaskedImages:
    """Noisy quarters, each of one of four colours."""
    draw, colours = np.random.default_rng(seed), np.array(list(COLOURS.values()))
    masks = draw.integers(0, 4, (count, 2, 2)).repeat(4, axis=1).repeat(4, axis=2)
    noisy = colours[masks] + draw.integers(-25, 26, (count, 8, 8, 3))
    return MaskedImages(list(COLOURS), list(zip(noisy.astype(np.uint8), masks, strict=True)))


@dataclass
class PixelBatch(Batch):
    masks_NHW: Tensor

    def moved(self, move: Callable[[Tensor], Tensor]) -> Self:
        return replace(self, images_N3HW=move(self.images_N3HW), masks_NHW=move(self.masks_NHW))

    def augmented(self, pad: int | None, flip: bool) -> Self:
        return self


class Whole(CenterCrop):
    one_shape: ClassVar[bool] = False  # so that batches are made here

    def batch(self, framed: Sequence[tuple[Record, Tensor]], frame: tuple[int, int] | None = None) -> PixelBatch:
        plain = super().batch(framed)
        nothing = np.full((self.size, self.size), NO_CLASS)
        masks = [nothing if record.annotation is None else record.annotation for record, _ in framed]
        return PixelBatch(plain.images_N3HW, plain.labels_N, torch.from_numpy(np.stack(masks)))


class PixelNets(ArchitectureSource):
    usage = "pixelnet"

    def create(self, arch: str, num_classes: int, channels: int, weights: str | None) -> nn.Module:
        return nn.Sequential(nn.Conv2d(channels, 16, 1), nn.ReLU(), nn.Conv2d(16, num_classes, 1))

    def preprocessing(self, arch: str) -> Preprocessing:
        return Preprocessing(8)


class Segmenter(Model):
    singular = "segmenter"
    architectures = Architectures("segmenter", Listed("pixelnet", f"{__name__}:PixelNets"))

    @classmethod
    def claims(cls, arch: str) -> bool:
        return cls.architectures.claims(arch)

    def check_head(self) -> None:
        assert self.module(self.blank()).shape[1] == self.classes.width

    @property
    def transform(self) -> Whole:
        return Whole(self.preprocessing.size)

    def blank(self) -> Tensor:
        return self.preprocessing(torch.zeros((1, 3, 8, 8), dtype=torch.uint8))

    def logits(self, images_N3HW: Tensor) -> Tensor:
        """One row of logits for each pixel."""
        logits_NKHW: Tensor = self.module(self.preprocessing(images_N3HW))[:, list(self.classes.columns)]
        return logits_NKHW.permute(0, 2, 3, 1).flatten(0, 2)


class PixelLabels(Objective):
    name = "PixelLabels"

    def __init__(self, model: Segmenter, classes: Sequence[str]) -> None:
        self.model, self.columns = model, torch.tensor([*map(model.classes.require, classes), NO_CLASS])

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        assert isinstance(batch, PixelBatch)
        wanted_M = self.columns[batch.masks_NHW.flatten()]
        logits_MK = self.model.with_module(network).logits(batch.images_N3HW)
        return {"loss": F.cross_entropy(logits_MK, wanted_M, ignore_index=NO_CLASS)}


class Segmenters(TeacherGroup[Segmenter]):
    def each(self, images_N3HW: Tensor) -> list[Tensor]:
        with torch.no_grad():
            answers = [teacher.logits(images_N3HW) for teacher in self.specialists]
        self.watch(answers)
        return answers

    def targets(self, images_N3HW: Tensor) -> Tensor:
        return build_targets(self.each(images_N3HW), self.union, self.centring)

    def fold(self) -> None:
        """They have no batch norm."""


class PixelDistillation(Objective):
    name = "PixelDistillation"

    def __init__(self, student: Segmenter, teachers: Segmenters) -> None:
        self.student, self.teachers = student, teachers

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        answers = self.student.with_module(network).logits(batch.images_N3HW)
        return {"loss": F.mse_loss(answers, self.teachers.targets(batch.images_N3HW))}

    def require_sound(self) -> None:
        self.teachers.require_finite()


class SegmenterConsolidation(Consolidation[Segmenter]):
    teachers: Segmenters

    def __init__(
        self,
        teachers: Sequence[Segmenter],
        aux: Source,
        config: ConsolidateConfig,
        schedule: Schedule,
        joining: Joining | None,
    ) -> None:
        self.teachers = Segmenters(teachers, "per-teacher")
        super().__init__(aux, config, schedule, joining)
        self.student = Segmenter.built("pixelnet", self.teachers.union.names, None, "softmax", config.seed)

    @property
    def transform(self) -> Whole:
        return self.student.transform

    def objective(self) -> PixelDistillation:
        return PixelDistillation(self.student, self.teachers)

    def compare(self, unseen: ImageLoader) -> Findings:
        batch = next(unseen.batches(0, 16))
        same = self.student.logits(batch.images_N3HW).argmax(1) == self.teachers.targets(batch.images_N3HW).argmax(1)
        return Findings(len(batch), ["asked"] * len(self.teachers.specialists), f"{same.float().mean():.0%} alike", [])

    def measure_teachers(self, batches: Iterable[Batch]) -> dict[str, Any]:
        return {"images": sum(len(batch) for batch in batches)}


@dataclass(frozen=True)
class PixelAccuracy:
    per_class: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return {"per_class": self.per_class}

    def as_text(self) -> str:
        return "\n".join(f"{name} {share:.0%}" for name, share in self.per_class.items())


class Segmentation(VisionTask[Segmenter]):
    model, paper_arch = Segmenter, "pixelnet"
    paper_schedules = (QUICK, QUICK)

    def is_architecture(self, arch: str) -> bool:
        return Segmenter.claims(arch)

    def is_labeled(self, data: Place) -> bool:
        return isinstance(data, MaskedImages)

    def open_labeled(self, data: Place, val: Place | None, keep: Names) -> tuple[Source, HeldOut[Segmenter]]:
        assert isinstance(data, MaskedImages)
        return data if keep is None else data.keep(keep), HeldOut(None, "accuracy", lambda model, images: "")

    def network_for(self, images: Source, asked: NetworkConfig) -> NetworkChoice:
        return NetworkChoice("pixelnet", 8, None, "there is one")

    def untrained(
        self, source: Source, network: NetworkChoice, like: Preprocessing | None, output: Output | None, seed: int
    ) -> Segmenter:
        return Segmenter.built(network.arch, source.classes, like, "softmax", seed)

    def supervised(self, model: Segmenter, classes: Sequence[str]) -> Objective:
        return PixelLabels(model, classes)

    def supervised_schedule(self, images: int, pretrained: bool) -> Schedule:
        return QUICK

    distillation_schedule = supervised_schedule

    def consolidation(
        self,
        teachers: Sequence[Segmenter],
        aux: Source,
        config: ConsolidateConfig,
        schedule: Schedule,
        joining: Joining | None = None,
    ) -> SegmenterConsolidation:
        return SegmenterConsolidation(teachers, aux, config, schedule, joining)

    def evaluate(self, model: Any, data: Place, **choice: Unpack[ClassChoice]) -> PixelAccuracy:
        assert isinstance(data, MaskedImages)
        right: dict[str, list[float]] = {name: [] for name in data.classes}
        for batch in StreamLoader(data, model.transform).in_order(16):
            assert isinstance(batch, PixelBatch)
            answers = [model.names[i] for i in model.logits(batch.images_N3HW).argmax(1).tolist()]
            for answer, label in zip(answers, batch.masks_NHW.flatten().tolist(), strict=True):
                right[data.classes[label]].append(answer == data.classes[label])
        return PixelAccuracy({name: sum(hits) / len(hits) for name, hits in right.items()})

    def predict(
        self, model: Segmenter, records: Sequence[Record], config: PredictConfig
    ) -> list[list[str] | DecodeError]:
        images = [decode(record, model.transform) for record in records]
        return [[model.names[i] for i in model.logits(image[None]).argmax(1).tolist()] for image in images]

    def answer_as_dict(self, answer: list[str]) -> dict[str, Any]:
        return {"pixels": answer}

    def answer_as_text(self, answer: list[str]) -> str:
        return f"mostly {max(answer, key=answer.count)}"

    def size_as_text(self, size: int) -> str:
        return f"{size} pixels"

    def teachers_as_text(self, seen: Mapping[str, Any]) -> list[str]:
        return [f"asked about {seen['images']} images"]


@pytest.fixture
def third_kind() -> Iterator[None]:
    """Registered as long as the test lasts."""
    Segmenter.pipeline_tag = "image-segmentation"
    MODELS[Segmenter.pipeline_tag] = Segmenter
    register(Segmentation())
    yield
    TASKS.pop(0)
    del MODELS[Segmenter.pipeline_tag]


@pytest.mark.usefixtures("third_kind")
def test_a_third_kind_goes_through_every_verb(dmc: Callable[..., Answer], tmp_path: Path) -> None:
    import dmc as library

    data, test = patches(40, 0), patches(20, 1)
    halves = [("red", "green"), ("blue", "white")]
    for i, names in enumerate(halves):
        trained = library.train(data, tmp_path / str(i), keep=names)
        assert (type(trained), trained.names) == (Segmenter, names)
    teachers = [library.load(tmp_path / "0", kind=Segmenter), library.load(tmp_path / "1", kind=Segmenter)]

    aux = np.stack([image for image, _ in patches(60, 2).scenes])
    merged = library.consolidate(teachers, aux, tmp_path / "m", epochs=40)
    assert merged.names == ("red", "green", "blue", "white")
    assert "alike" in merged.provenance["compared"]
    found = library.evaluate(merged, test)
    assert min(found.per_class.values()) > 0.5  # a guess would be right in a quarter
    assert library.check(teachers, aux)["task"] == "image-segmentation"

    learned = library.learn(teachers[0], data, aux, tmp_path / "n", keep=["blue"], epochs=5, specialist_epochs=5)
    assert learned.names == ("red", "green", "blue")

    Image.new("RGB", (8, 8), COLOURS["green"]).save(tmp_path / "green.png")
    assert library.predict(merged, tmp_path / "green.png")[0].count("green") > 32
    said = dmc("predict", tmp_path / "m", tmp_path / "green.png")
    assert (said.code, said.out) == (0, f"{tmp_path}/green.png: mostly green\n")
    Image.fromarray(aux[0]).save(tmp_path / "aux.png")
    said = dmc("check", tmp_path / "0", tmp_path / "1", "--aux", tmp_path / "*.png")
    assert "asked about 2 images" in said.out, said.err
