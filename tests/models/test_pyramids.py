"""Feature pyramids: where their anchors are, which backbones they have, which weights they start from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import dmc
from dmc.errors import DmcError
from dmc.models.detector import Detector
from tests.detectors import TINY, untrained


def test_anchors_are_the_papers() -> None:
    """There are 9 at each place of P3 to P7: three sizes from 4 times the stride on, in three shapes."""
    answers = untrained("a", "retinanet_resnet18_fpn,width=16").answers(
        torch.zeros((1, 3, 128, 128), dtype=torch.uint8)
    )
    assert answers.levels == [9 * n * n for n in (16, 8, 4, 2, 1)]
    areas = (answers.anchors_A4[:, 2:] - answers.anchors_A4[:, :2]).prod(dim=1)
    assert areas[:9].sqrt().tolist() == pytest.approx([32, 40, 50] * 3, rel=0.02)


def test_anchors_stay_where_they_are_when_a_batch_is_padded() -> None:
    """At 160 pixels P6 has three columns, at 192 as well: 64 apart in both."""
    for width in (160, 192, 224):
        answers = untrained("a").answers(torch.zeros((1, 3, 160, width), dtype=torch.uint8))
        coarse_A4 = answers.anchors_A4[sum(answers.levels[:3]) : sum(answers.levels[:4])]
        centres = sorted(set(((coarse_A4[:, 0] + coarse_A4[:, 2]) / 2).tolist()))
        assert centres == [64.0 * i for i in range(-(-width // 64))]


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "hrnet_w18_small"])
def test_unusual_backbones(name: str) -> None:
    """Swin takes other sizes than its own; HRNet, whose finest features are made of all others, stays trainable."""
    network = Detector.architectures.create(f"retinanet:timm/{name},width=16,depth=1", 2).eval()
    with torch.no_grad():
        assert network(torch.zeros(1, 3, 64, 96)).levels[0] == 9 * 8 * 12
    body = network.get_submodule("backbone.body")
    trained = sum(p.numel() for p in body.parameters() if p.requires_grad)
    assert trained > 0.9 * sum(p.numel() for p in body.parameters())


def test_layers_that_stay_as_they_are_do_so_after_loading(tmp_path: Path) -> None:
    import timm
    from safetensors.torch import save_file

    save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "w.safetensors")
    fresh = Detector.untrained(TINY, "ab", weights=str(tmp_path / "w.safetensors"))
    loaded = dmc.load(fresh.save(tmp_path / "d"))
    free = [
        [n for n, p in d.module.named_parameters() if p.requires_grad] for d in (fresh, loaded, loaded.widened("c"))
    ]
    assert free[0] == free[1] == free[2]
    assert len(free[0]) < len(list(fresh.module.parameters()))


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """timm itself would leave an EfficientNet with random weights."""
    import timm
    from safetensors.torch import save_file

    save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(
        DmcError, match=r"w.safetensors does not fit timm/test_efficientnet: 'conv_stem.weight' is missing"
    ):
        Detector.untrained("retinanet:timm/test_efficientnet", "ab", weights=str(tmp_path / "w.safetensors"))


def test_backbone_weights_from_a_file(tmp_path: Path) -> None:
    import timm
    from safetensors.torch import save_file

    torch.manual_seed(5)
    weights = timm.create_model("test_resnet").state_dict()
    save_file(weights, tmp_path / "w.safetensors")
    detector = Detector.untrained(TINY, "ab", weights=str(tmp_path / "w.safetensors"))
    own = detector.module.state_dict()
    assert torch.equal(own["backbone.body.conv1.0.weight"], weights["conv1.0.weight"])
    frozen = {name for name, p in detector.module.named_parameters() if not p.requires_grad and p.ndim == 4}
    assert "backbone.body.conv1.0.weight" in frozen  # the general first layers stay as they are
    assert not any("layer3" in name or "layer4" in name or "head" in name for name in frozen)
    norms = [m for m in detector.module.train().modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms
    assert not any(norm.training for norm in norms)  # statistics stay those of the weights
    assert all(m.training for m in untrained("ab").module.train().modules() if isinstance(m, nn.BatchNorm2d))
    resnet = timm.create_model("resnet18").state_dict()
    save_file(resnet, tmp_path / "r.safetensors")
    with pytest.raises(DmcError, match=r"does not fit timm/test_resnet: 'conv1.0.weight' is missing"):
        Detector.untrained(TINY, "ab", weights=str(tmp_path / "r.safetensors"))
