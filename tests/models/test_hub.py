"""The hub without a network."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

import dmc as library
from dmc.errors import DmcError
from dmc.models.detector import Detector
from tests.conftest import Answer, bad
from tests.models.test_specialist import fill_hub_cache

Dmc = Callable[..., Answer]
NOWHERE = "http://127.0.0.1:9"  # nothing listens there


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give an empty cache, and make the hub unreachable."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return tmp_path / "cache"


def test_no_network_is_one_line_at_once(
    dmc: Dmc, tmp_path: Path, cache: Path, labeled_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    started = time.monotonic()
    bad(dmc("predict", "timm:test_resnet", "x.png"), f"cannot get timm:test_resnet: no connection to {NOWHERE}")
    train = ("train", labeled_folder, "-o", tmp_path / "out", "--arch", "test_resnet", "--weights", "imagenet")
    instead = "set `weights` to a file of them, or to random"
    typed = instead.replace("`weights`", "--weights")
    bad(dmc(*train), f"cannot get ImageNet weights of test_resnet: no connection to {NOWHERE}; {typed}")
    bad(dmc("predict", "hf-hub:me/mine", "x.png"), f"cannot get hf-hub:me/mine: no connection to {NOWHERE}")
    with pytest.raises(DmcError, match=f"timm/test_resnet: no connection to {NOWHERE}; {instead}"):
        Detector.architectures.create("retinanet:timm/test_resnet", 2, weights="imagenet")
    assert time.monotonic() - started < 20  # the client's own retries take half a minute each
    assert not [record for record in caplog.records if record.name.startswith(("huggingface_hub", "timm"))]
    assert constants.HF_HUB_OFFLINE is False


def test_without_a_network_earlier_downloads_are_there(tmp_path: Path, cache: Path) -> None:
    module = timm.create_model("test_resnet").eval()
    save_file(module.state_dict(), tmp_path / "w.safetensors")
    fill_hub_cache(cache, "timm/test_resnet.r160_in1k", {"model.safetensors": tmp_path / "w.safetensors"})
    loaded = library.load("timm:test_resnet")
    assert torch.equal(loaded.module(torch.ones(1, 3, 64, 64)), module(torch.ones(1, 3, 64, 64)))
