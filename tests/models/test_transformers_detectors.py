"""transformers' detectors as teachers, offline."""

from __future__ import annotations

from pathlib import Path

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


def test_it_teaches_but_cannot_be_a_student(detr: Path, unlabeled: Path) -> None:
    with pytest.raises(DmcError, match="can teach, but not learn"):
        Detector.untrained(f"transformers:{detr}", "ab")
    quick = dmc.Schedule(epochs=1, lr=1e-4, algorithm="adam", batch_size=4)
    pair = [load_detector(detr).keep(["person"]), small("c")]
    merged = dmc.consolidate(pair, unlabeled, weights=None, schedule=quick, aux_limit=4)
    assert merged.names == ("person", "c")
    assert merged.arch == pair[1].arch
