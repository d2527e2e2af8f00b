"""transformers' image classifiers, as teachers and as students, offline."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    CLIPImageProcessor,
    ConvNextImageProcessor,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
)

import dmc as library
from dmc.data.decode import decode
from dmc.data.pictures import pictures
from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError
from dmc.models.image_processor import as_processor, preprocessing_of
from dmc.models.specialist import Specialist
from tests.conftest import Answer, bad, load_specialist, tiny
from tests.models.test_specialist import fill_hub_cache
from tests.test_cli import QUICK

Dmc = Callable[..., Answer]
PROCESSOR = ViTImageProcessor(size={"height": 16, "width": 16}, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.25, 0.3])


def save_vit(folder: Path, names: list[str], seed: int = 0, processor: Any = PROCESSOR, **changes: Any) -> Path:
    """Save a small vision transformer with large random weights, as transformers does."""
    torch.manual_seed(seed)
    settings: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16,
                                "intermediate_size": 32, "patch_size": 8, "initializer_range": 0.3}  # fmt: skip
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    ViTForImageClassification(ViTConfig(**settings | labels | changes)).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture
def vit(tmp_path: Path) -> Path:
    return save_vit(tmp_path / "vit", ["cat", "dog", "owl"])


def photograph(path: Path) -> Path:
    """Draw something with edges and slow changes, wider than high, as photographs have."""
    across, down = np.meshgrid(np.linspace(0, 6, 72), np.linspace(0, 4, 48))
    waves = [np.sin(across + down), np.cos(2 * across), np.sign(np.sin(across * down))]
    Image.fromarray((127 + 110 * np.stack(waves, axis=2)).astype(np.uint8)).save(path)
    return path


def theirs(folder: Path, image: Path) -> torch.Tensor:
    """Ask a model as transformers' users do."""
    seen = AutoImageProcessor.from_pretrained(folder)(Image.open(image), return_tensors="pt")
    with torch.no_grad():
        logits: torch.Tensor = AutoModelForImageClassification.from_pretrained(folder).eval()(**seen).logits
    return logits


def ours(model: Specialist, image: Path) -> torch.Tensor:
    with torch.no_grad():
        return model.logits(decode(pictures(image)[0], model.transform)[None])


def test_a_folder_answers_as_it_does_in_transformers(vit: Path, tmp_path: Path) -> None:
    image = photograph(tmp_path / "photo.png")
    for source in (vit, f"transformers:{vit}"):
        model = load_specialist(source)
        assert model.names == ("cat", "dog", "owl")
        assert model.preprocessing == Preprocessing(16, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3), "bilinear", 1.0, "squash")
        wanted = theirs(vit, image)
        assert (ours(model, image) - wanted).abs().max() < 0.02 * wanted.abs().max()
    cropped = load_specialist(f"{vit},crop_mode=center")
    assert (ours(cropped, image) - wanted).abs().max() > 0.05 * wanted.abs().max()  # the measure sees what is wrong


@pytest.mark.parametrize(
    ("processor", "crop_pct", "mode"),
    [
        (CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=24), 0.75, "center"),
        (CLIPImageProcessor(size={"height": 32, "width": 32}, crop_size=24, do_normalize=False), 0.75, "squash"),
        (ConvNextImageProcessor(size={"shortest_edge": 24}, crop_pct=0.75, rescale_factor=1 / 127.5), 0.75, "center"),
        (ViTImageProcessor(size=24, resample=3), 1.0, "squash"),
    ],
)  # fmt: skip
def test_what_a_processor_does_is_found_out(tmp_path: Path, processor: Any, crop_pct: float, mode: str) -> None:
    processor.save_pretrained(tmp_path)
    found = preprocessing_of(tmp_path, "it")
    assert (found.size, found.crop_pct, found.crop_mode) == (24, crop_pct, mode)
    image = photograph(tmp_path / "photo.png")
    wanted = processor(Image.open(image), return_tensors="pt")["pixel_values"]
    model = Specialist(torch.nn.Flatten(), [str(i) for i in range(3 * 24 * 24)], found)
    seen = found(decode(pictures(image)[0], model.transform)[None])
    assert (seen - wanted).abs().mean() < 0.05 * wanted.std()


@pytest.mark.parametrize("mode", ["center", "squash"])
def test_a_preprocessing_that_is_written_is_found_again(tmp_path: Path, mode: Any) -> None:
    wanted = Preprocessing(20, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), "bicubic", 0.8, mode)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(as_processor(wanted)))
    assert preprocessing_of(tmp_path, "it") == wanted


def test_processors_that_do_more_are_refused(tmp_path: Path) -> None:
    def refused(**changes: Any) -> str:
        settings = as_processor(Preprocessing(16)) | changes
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
        with pytest.raises(DmcError) as error:
            preprocessing_of(tmp_path, "it")
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "does more than resize, crop and normalise" in refused(
        image_processor_type="MobileViTImageProcessor", do_flip_channel_order=True
    )
    assert "16x20 pixels, and dmc's are square" in refused(crop_size={"height": 16, "width": 20})
    assert "is damaged: it has size" in refused(size={"shortest_edge": 10**6})
    assert "cannot be used" in refused(image_processor_type="NoSuchProcessor")
    assert "cannot be used" in refused(image_processor_type=None, auto_map={"AutoImageProcessor": "code.Mine"})


def test_a_student_is_one_of_transformers_too(dmc: Dmc, vit: Path, tmp_path: Path, aux_folder: Path) -> None:
    other = tiny(["red", "blue"]).save(tmp_path / "other")
    merged, image = tmp_path / "merged", photograph(tmp_path / "photo.png")
    said = dmc("consolidate", vit, other, "--aux", aux_folder, "-o", merged, "--arch", f"transformers:{vit}", *QUICK)
    assert said.code == 0, said.err
    model = load_specialist(merged)
    assert model.names == ("cat", "dog", "owl", "red", "blue")
    assert model.provenance["made by"] == "dmc consolidate"
    shown = dmc("show", vit).out
    shutil.rmtree(vit)  # it needs no other folder
    found = AutoModelForImageClassification.from_pretrained(merged)
    assert type(found) is ViTForImageClassification
    assert found.config.id2label == dict(enumerate(model.names))
    wanted = theirs(merged, image)
    assert (ours(load_specialist(merged), image) - wanted).abs().max() < 0.02 * wanted.abs().max()
    assert "library_name: transformers" in (merged / "README.md").read_text()
    again = load_specialist(merged).save(tmp_path / "again")
    assert load_specialist(again).fingerprint == model.fingerprint
    assert "  sees image_processor_type ViTImageProcessor, size {'height': 16, 'width': 16}, " in shown
    assert dmc("show", merged).out.startswith(
        f"{merged}: transformers:ViTForImageClassification, image-classification, "
    )


def test_a_student_begins_at_random_by_its_seed(vit: Path) -> None:
    arch = f"transformers:{vit}"
    first, same, other = (Specialist.untrained(arch, ["a", "b"], seed=seed) for seed in (1, 1, 2))
    assert first.fingerprint == same.fingerprint != other.fingerprint
    taught = load_file(vit / "model.safetensors")
    theirs = {name: tensor for name, tensor in first.module.state_dict().items() if name in taught and tensor.ndim > 1}
    assert theirs
    assert not any(torch.equal(tensor, taught[name]) for name, tensor in theirs.items())


def test_some_classes_of_a_model_can_be_saved(vit: Path, tmp_path: Path) -> None:
    part = load_specialist(vit).keep(["owl", "cat"])
    saved = part.save(tmp_path / "part")
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    again = load_specialist(saved)
    assert again.names == part.names == ("cat", "owl")
    assert torch.equal(again.logits(images), part.logits(images))
    found = AutoModelForImageClassification.from_pretrained(saved)
    assert found.config.id2label == {0: "cat", 1: "LABEL_1", 2: "owl"}


def test_a_model_on_the_hub(vit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_hub_cache(tmp_path / "cache", "me/vit", {path.name: path for path in vit.iterdir()})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    for name in ("transformers:me/vit", "hf-hub:me/vit"):
        model = load_specialist(name)
        assert (model.arch, model.name) == ("transformers:me/vit", name)
        assert torch.equal(model.logits(images), load_specialist(vit).logits(images))
    with pytest.raises(DmcError, match="cannot get hf-hub:me/other"):
        library.load("transformers:me/other")


def changed(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_several_answers_may_be_true_at_once(vit: Path) -> None:
    changed(vit, problem_type="multi_label_classification")
    assert load_specialist(vit).output == "sigmoid"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "my_own", "auto_map": {"AutoConfig": "code.Mine"}}, "is a 'my_own', which this version of"),
        ({"model_type": "bert"}, "has no image classifier for"),
        ({"model_type": "timm_wrapper", "architecture": "hf_hub:evil/model"}, "is a 'timm_wrapper'"),
        ({"architectures": ["ViTModel"]}, "was saved as ViTModel, which is no image classifier"),
        ({"num_hidden_layers": 10**9}, "is said to have 1000000000 layers, but its weights are"),
        ({"hidden_size": 2**20, "intermediate_size": 2**22}, "parameters, but its weights are"),
        ({"num_channels": 1}, "takes images of 1 channels"),
        ({"id2label": {"0": "a", "2": "b"}}, "does not number its classes 0, 1, 2"),
        ({"id2label": {str(i): f"LABEL_{i}" for i in range(3)}}, "says nothing about its 3 classes: give classes=FILE"),
        ({"id2label": {str(i): str(i) for i in range(9999)}}, "a network with 9999 outputs is said to be in it"),
        ({"id2label": {str(i): str(i) for i in range(5)}}, "7,749 parameters, but its weights are 7,715"),
        ({"num_attention_heads": 3}, "cannot be built"),
    ],
)  # fmt: skip
def test_configurations_that_lie(vit: Path, changes: dict[str, Any], words: str) -> None:
    changed(vit, **changes)
    with pytest.raises(DmcError) as error:
        library.load(vit)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_network_without_its_head_is_refused(dmc: Dmc, vit: Path, aux_folder: Path) -> None:
    """transformers would give it a random one."""
    kept = {name: tensor for name, tensor in load_file(vit / "model.safetensors").items() if "classifier" not in name}
    save_file(kept | {"rest": torch.zeros(99)}, vit / "model.safetensors", metadata={"format": "pt"})
    bad(dmc("predict", vit, aux_folder), "'classifier.bias' is missing; was it saved without its classifier?")
    (vit / "preprocessor_config.json").unlink()
    bad(dmc("predict", vit, aux_folder), "has no preprocessor_config.json: save its image processor beside it")
    bad(dmc("predict", "transformers:nowhere", aux_folder), "it is no folder, and no OWNER/NAME on the hub")


def test_the_package_may_be_missing(dmc: Dmc, vit: Path, aux_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setattr("dmc.extras.find_spec", lambda _: None)
    bad(dmc("predict", vit, aux_folder), "not installed: transformers; pip install 'deep-model-consolidation[transf")
