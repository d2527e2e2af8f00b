"""transformers' detectors as teachers, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    DetrConfig,
    DetrForObjectDetection,
    DetrImageProcessor,
    ResNetConfig,
    RTDetrImageProcessor,
)

import dmc
from dmc.errors import DmcError
from dmc.models.detector import Detector
from dmc.precision import autocast
from tests.conftest import load_detector
from tests.detectors import small

NAMES = {0: "N/A", 1: "person", 2: "dog"}


@pytest.fixture(scope="module")
def detr(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a small DETR with large random weights, as transformers does."""
    torch.manual_seed(0)
    body = ResNetConfig(embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1] * 4, out_features=["stage4"])
    sizes = {f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in (("layers", 1), ("ffn_dim", 32))}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = DetrConfig(
        use_timm_backbone=False,
        backbone=None,
        use_pretrained_backbone=False,
        backbone_config=body,
        d_model=16,
        num_queries=12,
        init_std=0.5,
        id2label=NAMES,
        label2id={name: i for i, name in NAMES.items()},
        **sizes,
        **heads,
    )
    folder = tmp_path_factory.mktemp("detr")
    network = DetrForObjectDetection(config)
    torch.nn.init.normal_(network.class_labels_classifier.weight)
    network.save_pretrained(folder)
    DetrImageProcessor(size={"shortest_edge": 64, "longest_edge": 107}).save_pretrained(folder)
    return folder


def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8))


@pytest.mark.parametrize("form", ["{}", "transformers:{}"])
def test_it_finds_what_transformers_finds(detr: Path, form: str) -> None:
    detector = load_detector(form.format(detr))
    assert detector.names == ("person", "dog")
    assert (detector.network.fit, detector.preprocessing.size) == ("frame", 64)
    processor, theirs = DetrImageProcessor.from_pretrained(detr), DetrForObjectDetection.from_pretrained(detr).eval()
    with torch.no_grad():
        answer = theirs(**processor(picture(), return_tensors="pt"))
        found = processor.post_process_object_detection(answer, 0.0, target_sizes=[(64, 96)])[0]
    pixels = torch.from_numpy(np.array(picture())).permute(2, 0, 1)[None]
    with torch.no_grad():
        ours = detector.answers(pixels)
    scores = detector.scores(ours)[0]
    real = found["labels"] != 0  # all but the gap in COCO's list, at its queries
    assert real.any()
    torch.testing.assert_close(scores.amax(dim=1)[real], found["scores"][real], atol=1e-3, rtol=0)
    torch.testing.assert_close(ours.boxes_NAB[0], found["boxes"], atol=0.05, rtol=0)


def test_a_square_processor_stretches(detr: Path, tmp_path: Path) -> None:
    for file in detr.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    RTDetrImageProcessor(size={"height": 96, "width": 96}).save_pretrained(tmp_path)
    detector = load_detector(tmp_path)
    assert (detector.network.fit, detector.preprocessing.size) == ("stretch", 96)
    assert detector.preprocessing.mean == (0.0,) * 3  # it only divides by 255


def with_processor(detr: Path, folder: Path, **settings: Any) -> Detector:
    for file in detr.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    DetrImageProcessor(**settings).save_pretrained(folder)
    return load_detector(folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"size": {"max_height": 96, "max_width": 96}, "pad_size": {"height": 96, "width": 96}},
        {"size": {"shortest_edge": 96, "longest_edge": 96}, "do_pad": False},
    ],
)
def test_a_processor_for_the_longer_side_keeps_proportions(
    detr: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """What it pads with is neither black nor white, and says nothing of mean and std."""
    detector = with_processor(detr, tmp_path, **settings)
    assert (detector.network.fit, detector.preprocessing.size) == ("letterbox", 96)
    assert detector.preprocessing.mean == pytest.approx((0.485, 0.456, 0.406), abs=1e-5)
    assert detector.preprocessing.std == pytest.approx((0.229, 0.224, 0.225), abs=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"size": {"shortest_edge": 64, "longest_edge": 107}},
        {"size": {"height": 64, "width": 64}},
        {"size": {"max_height": 64, "max_width": 64}, "pad_size": {"height": 64, "width": 64}},
    ],
)
def test_a_saved_detector_is_the_same_when_it_is_loaded(detr: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    (tmp_path / "theirs").mkdir()
    kept = with_processor(detr, tmp_path / "theirs", **settings).keep(["dog"])
    again = load_detector(kept.save(tmp_path / "mine"))
    assert (again.names, again.classes.columns) == (("dog",), (2,))
    assert again.network.fit == kept.network.fit
    assert again.preprocessing == kept.preprocessing
    pixels = torch.from_numpy(np.array(picture())).permute(2, 0, 1)[None]
    for mine, theirs in zip(again.detections(pixels, [(64, 96)]), kept.detections(pixels, [(64, 96)]), strict=True):
        assert mine.scores_M == pytest.approx(theirs.scores_M, abs=1e-4)


def test_boxes_are_as_exact_in_bf16(detr: Path) -> None:
    pixels, detector = torch.from_numpy(np.array(picture())).permute(2, 0, 1)[None], load_detector(detr)
    with torch.no_grad():
        exact = detector.answers(pixels).boxes_NAB
        with autocast("bf16", torch.device("cpu")):
            assert torch.equal(detector.answers(pixels).boxes_NAB, exact)


def test_it_teaches_but_cannot_be_a_student(detr: Path, unlabeled: Path) -> None:
    with pytest.raises(DmcError, match="can teach, but not learn"):
        Detector.untrained(f"transformers:{detr}", "ab")
    quick = dmc.Schedule(epochs=1, lr=1e-4, algorithm="adam", batch_size=4)
    pair = [load_detector(detr).keep(["person"]), small("c")]
    merged = dmc.consolidate(pair, unlabeled, weights=None, schedule=quick, aux_limit=4)
    assert merged.names == ("person", "c")
    assert merged.arch == pair[1].arch
