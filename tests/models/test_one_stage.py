"""Detection networks: anchors, backbones, weights from files and from torchvision."""

from __future__ import annotations

from inspect import getsource
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dmc
from dmc.errors import DmcError
from dmc.models.detector_family import DetectorFamily
from dmc.models.faster_rcnn import FasterRcnnFamily
from dmc.models.fcos import FcosFamily
from dmc.models.retinanet import RetinaNetFamily
from dmc.models.ssd import SsdFamily
from tests.conftest import load_detector
from tests.detectors import TINY, untrained


@pytest.mark.parametrize("name", ["retinanet_resnet50_fpn", "ssdlite320_mobilenet_v3_large"])
def test_torchvisions_detectors_are_teachers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With made-up COCO weights, a class that is kept gives the logit of its own output."""
    from torchvision.models import detection, get_model_weights

    torch.manual_seed(0)
    theirs: Any = getattr(detection, name)(weights=None, weights_backbone=None, num_classes=91).eval()
    for norm in theirs.backbone.modules():
        if name == "retinanet_resnet50_fpn" and isinstance(norm, nn.BatchNorm2d):
            norm.eps = 0  # which torchvision does when it loads the weights
    monkeypatch.setattr("dmc.models.detector_family.download_state_dict", lambda *_: theirs.state_dict())
    ours = load_detector(f"torchvision:{name}").keep(["zebra", "person"])
    side = ours.transform.blank().shape[-1]
    images = torch.randint(0, 256, (1, 3, side, side), dtype=torch.uint8)
    with torch.no_grad():
        features = list(theirs.backbone(ours.preprocessing.normalised(images)).values())
        raw = theirs.head(features)["cls_logits"]
        found = ours.answers(images).logits_NAK
    categories = get_model_weights(name).DEFAULT.meta["categories"]
    columns = [categories.index(name) for name in ours.names]
    if name.startswith("ssd"):  # what looks like another class is background
        p = raw.softmax(dim=-1)[..., columns]
        rest = 1 - p.sum(dim=-1, keepdim=True)
        torch.testing.assert_close(found.exp(), p / rest, rtol=1e-3, atol=1e-5)
    else:
        assert (found - raw[..., columns]).abs().max() < 1e-3 * raw.std()


@pytest.mark.parametrize("family", [RetinaNetFamily, FcosFamily, SsdFamily, FasterRcnnFamily])
def test_norms_without_an_epsilon_are_those_that_torchvision_changes(family: type[DetectorFamily]) -> None:
    """Its functions set the epsilon of some weights' norms to 0 when they load them."""
    from torchvision.models import detection

    changed = [name for name in family.with_coco_weights if "overwrite_eps" in getsource(getattr(detection, name))]
    assert changed == list(family.without_epsilon)


@pytest.mark.parametrize(
    ("arch", "words"),
    [
        (f"{TINY},depth=6", "depth is 1 to 4"),
        ("retinanet:timm/test_resnet,scale=0", "scale is 0.25 to 64"),
        ("retinanet:timm/test_resnet,scale=nan", "scale is 0.25 to 64"),
        ("retinanet:timm/test_resnet,norm=none", "norm is frozen or batch"),
        ("fcos:timm/test_resnet,width=abc", "invalid literal"),
        ("fcos:timm/test_resnet,width=100000", "width is 1 to 4096"),
        ("fcos:timm/test_resnet,scale=2", "scale is not a setting of fcos:timm/test_resnet"),
        ("ssd300_vgg16,width=64", "width is not a setting of ssd300_vgg16"),
        ("torchvision:retinanet_resnet18_fpn", "torchvision has no weights of 'retinanet_resnet18_fpn'"),
    ],
)
def test_bad_detector_names(arch: str, words: str) -> None:
    with pytest.raises(DmcError, match=words):
        dmc.load(arch) if arch.startswith("torchvision") else untrained("ab", arch)


def test_a_small_detectors_state_dict_loads_with_its_settings(tmp_path: Path) -> None:
    detector = untrained("ab", "retinanet:timm/test_resnet,width=16,depth=1")
    torch.save(detector.module.state_dict(), tmp_path / "d.pth")
    names = tmp_path / "names.txt"
    names.write_text("a\nb\n")
    spec = f"{tmp_path / 'd.pth'},arch=retinanet:timm/test_resnet,width=16,depth=1,norm=batch,classes={names}"
    loaded = load_detector(f"{spec},size=128")
    assert loaded.preprocessing.size == 128
    images = torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8)
    torch.testing.assert_close(loaded.answers(images).logits_NAK, detector.answers(images).logits_NAK)
    detector.save(tmp_path / "d")
    assert dmc.load(f"{tmp_path / 'd'},size=96").preprocessing.size == 96
    with pytest.raises(DmcError, match="are given for state dicts only"):
        dmc.load(f"{tmp_path / 'd'},classes={names}")
    for given in ({"source": f"{tmp_path / 'd'},output=softmax"}, {"source": tmp_path / "d", "output": "softmax"}):
        with pytest.raises(DmcError, match="so output= is not a setting of it"):
            dmc.load(**given)
