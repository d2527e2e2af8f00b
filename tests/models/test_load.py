"""Every kind of model loads the same way, also one that this file makes up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dmc
from dmc.data.decode import CenterCrop
from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError
from dmc.models.architecture_source import Architectures, ArchitectureSource, Listed, Trained
from dmc.models.detector import Detector
from dmc.models.load import class_for, load
from dmc.models.model import MODELS, Model, require
from dmc.models.specialist import Specialist
from tests.conftest import tiny
from tests.detectors import untrained

IMAGES = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


class Pointwise(ArchitectureSource):
    """A source with an architecture of one layer, which answers for every pixel, and a released network of it."""

    def canonical(self, arch: str) -> str:
        return self.bare(arch)

    def create(self, arch: str, num_classes: int, channels: int, weights: str | None) -> nn.Module:
        return nn.Conv2d(channels, num_classes, 1)

    def preprocessing(self, arch: str) -> Preprocessing:
        return Preprocessing(8)

    def released(self, arch: str) -> Trained:
        module = self.create("pointwise", 3, 3, None)
        return Trained(module, "pointwise", Preprocessing(8), ["sky", "sea", "sand"], 3, {"weights": arch})


@pytest.fixture
def segmenter() -> Iterator[type[Model]]:
    """Register a third kind of model for the duration of a test."""

    class Segmenter(Model):
        pipeline_tag, singular = "image-segmentation", "segmenter"
        architectures = Architectures("segmenter", Listed("(toys:)?pointwise", f"{__name__}:Pointwise", scheme="toys"))

        @classmethod
        def claims(cls, arch: str) -> bool:
            return cls.architectures.claims(arch)

        def check_head(self) -> None:
            assert self.module(self.blank()).shape[1] == self.classes.width

        @property
        def transform(self) -> CenterCrop:
            return CenterCrop(self.preprocessing.size)

        def blank(self) -> Tensor:
            return torch.zeros((1, 3, self.preprocessing.size, self.preprocessing.size))

    yield Segmenter
    del MODELS[Segmenter.pipeline_tag]


def test_a_kind_of_model_that_dmc_has_never_heard_of(tmp_path: Path, segmenter: type[Model]) -> None:
    """It loads from a folder by its tag, from a state dict by its architecture, from its own releases by the scheme."""
    made = segmenter(nn.Conv2d(3, 2, 1), ["sky", "sea"], Preprocessing(8), arch="pointwise")
    folder = made.save(tmp_path / "m")
    assert "pipeline_tag: image-segmentation" in (folder / "README.md").read_text()
    torch.save(made.module.state_dict(), tmp_path / "w.pth")
    (tmp_path / "names.txt").write_text("sky\nsea\n")
    for source in (folder, f"{tmp_path}/w.pth,arch=pointwise,classes={tmp_path}/names.txt"):
        again = dmc.load(source)
        assert type(again) is segmenter
        assert again.fingerprint == made.fingerprint
    assert dmc.load("toys:pointwise").names == ("sky", "sea", "sand")
    wide = made.widened(["sand"])
    assert torch.equal(wide.module(IMAGES.float())[:, :2], made.module(IMAGES.float()))
    with pytest.raises(
        DmcError, match=r"no model at gone: .* timm:, torchvision:, toys:, transformers: or hf-hub:NAME"
    ):
        load("gone")


def test_a_kind_that_is_not_there(tmp_path: Path, segmenter: type[Model], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = segmenter(nn.Conv2d(3, 2, 1), "ab", Preprocessing(8), arch="pointwise").save(tmp_path)
    monkeypatch.delitem(MODELS, segmenter.pipeline_tag)
    with pytest.raises(DmcError, match=r"is a model for image-segmentation; dmc knows .*image-classification"):
        load(folder)


def test_the_configuration_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tiny("ab").save(tmp_path / "c"), untrained("ab").save(tmp_path / "d")]
    read: list[Path] = []
    really = Path.read_bytes

    def noted(path: Path) -> bytes:
        read.append(path)
        return really(path)

    monkeypatch.setattr(Path, "read_bytes", noted)
    assert [type(load(folder)) for folder in folders] == [Specialist, Detector]
    assert [path for path in read if path.name == "config.json"] == [folder / "config.json" for folder in folders]


@pytest.mark.parametrize(
    ("arch", "kind"),
    [
        ("retinanet_resnet50_fpn", Detector),
        ("retinanet_resnet19_fpn", Detector),  # an unknown detector, not a classifier
        ("fcos:timm/test_resnet,width=64", Detector),
        ("torchvision:ssd300_vgg16", Detector),
        ("torchvision:resnet18", Specialist),
        ("cifar_resnet32", Specialist),
        ("fcos_like.py:make_network", Specialist),
        ("nothing_at_all", Specialist),
    ],
)
def test_an_architecture_tells_the_kind(arch: str, kind: type[Model]) -> None:
    assert class_for(arch) is kind


def test_one_kind_is_needed() -> None:
    detector, classifier = untrained("ab"), tiny("ab")
    assert require(detector, Detector) is detector
    with pytest.raises(DmcError, match="detector-0 is a detector; a classifier is needed here"):
        require(detector, Specialist)
    with pytest.raises(DmcError, match="tiny-0 is a classifier; a detector is needed here"):
        require(classifier, Detector)


def test_a_folder_that_lacks_something(tmp_path: Path) -> None:
    folder = untrained("ab").save(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for key in ("architecture", "label_names"):
        (folder / "config.json").write_text(json.dumps({name: config[name] for name in config if name != key}))
        with pytest.raises(DmcError, match=f"is not a model folder: config.json has no '{key}'"):
            load(folder)


def test_settings_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DmcError, match="unknown setting 'width'"):
        load(f"{tiny('ab').save(tmp_path / 'c')},width=64")
    folder = untrained("ab").save(tmp_path / "d")
    with pytest.raises(DmcError, match="an architecture is given for state dicts only"):
        load(f"{folder},width=64")
    with pytest.raises(DmcError, match="an architecture is given for state dicts only"):
        load(folder, arch="retinanet_resnet18_fpn")
