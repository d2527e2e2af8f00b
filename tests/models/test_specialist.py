"""Saving and loading, from wherever a model may live."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

import dmc
from dmc.data.decode import CenterCrop, decode
from dmc.data.open import open_images
from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError
from dmc.models.cifar_resnet import register_with_timm
from tests.conftest import SMALL, load_specialist, tiny, write_images

IMAGES = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_a_folder_gives_the_same_model_back(tmp_path: Path) -> None:
    first = tiny(["cat", "dog", "owl"])
    first.provenance = {"made by": "a test"}
    second = load_specialist(first.save(tmp_path / "m"))
    assert second.names == ("cat", "dog", "owl")
    assert second.preprocessing == first.preprocessing
    assert (second.arch, second.output, second.provenance) == (first.arch, first.output, first.provenance)
    assert torch.equal(second.logits(IMAGES), first.logits(IMAGES))
    assert second.fingerprint == first.fingerprint
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == ["README.md", "config.json", "model.safetensors"]


def test_a_subset_survives_saving(tmp_path: Path) -> None:
    whole = tiny("abcd")
    part = load_specialist(whole.keep("db").save(tmp_path))
    assert part.names == ("b", "d")
    assert torch.equal(part.logits(IMAGES), whole.logits(IMAGES)[:, [1, 3]])
    assert part.keep("d").names == ("d",)


def test_a_saved_folder_is_a_timm_model(tmp_path: Path) -> None:
    register_with_timm()
    saved = dmc.Specialist.untrained("cifar_resnet20", "abc")
    module = timm.create_model(f"local-dir:{saved.save(tmp_path)}", pretrained=True).eval()
    seen = saved.preprocessing(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
    assert torch.equal(module(seen), saved.module(seen))
    assert timm.data.resolve_data_config(model=module)["mean"] == list(saved.preprocessing.mean)


def test_a_merged_model_with_its_balance_is_a_timm_model(tmp_path: Path, aux_folder: Path) -> None:
    """What balances the student's outputs is a part of its last layer, and so of what timm loads."""
    shown = Preprocessing(32, (0.5,) * 3, (0.5,) * 3)
    teachers = [dmc.Specialist.untrained("test_resnet", names, shown, seed=len(names)) for names in ("ab", "cde")]
    with torch.no_grad():
        for parameter in teachers[1].module.get_submodule("fc").parameters():
            parameter.mul_(20)  # which would drown the first
    merged = dmc.consolidate(teachers, aux_folder, tmp_path / "m", epochs=1, batch_size=8, balance=True)
    module = timm.create_model(f"local-dir:{tmp_path / 'm'}", pretrained=True).eval()
    torch.testing.assert_close(module(merged.preprocessing(IMAGES)), merged.logits(IMAGES), rtol=0, atol=1e-5)
    plain = dmc.consolidate(teachers, aux_folder, epochs=1, batch_size=8, balance=False)
    assert not torch.allclose(plain.logits(IMAGES), merged.logits(IMAGES))


def test_probabilities_follow_the_output_kind() -> None:
    soft = tiny("abc")
    torch.testing.assert_close(soft.probabilities(IMAGES).sum(1), torch.ones(4))
    logits = soft.logits(IMAGES)
    independent = dmc.Specialist(soft.module, "abc", SMALL, output="sigmoid")
    torch.testing.assert_close(independent.probabilities(IMAGES), logits.sigmoid())


def test_widening_leaves_the_old_answers_alone() -> None:
    narrow = tiny("ab")
    wide = narrow.widened("cd")
    assert wide.names == ("a", "b", "c", "d")
    torch.testing.assert_close(wide.logits(IMAGES)[:, :2], narrow.logits(IMAGES))
    assert narrow.module.state_dict()["fc.weight"].shape == (2, 64)
    assert not torch.equal(wide.logits(IMAGES)[:, 2:], narrow.widened("cd", seed=1).logits(IMAGES)[:, 2:])


def test_any_module_can_be_a_specialist_but_only_a_named_one_can_be_saved(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2))
    specialist = dmc.Specialist(module, ["x", "y"], Preprocessing(8), name="mine")
    assert specialist.logits(IMAGES).shape == (4, 2)
    with pytest.raises(DmcError, match="mine has no architecture name"):
        specialist.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


class WithAuxiliaryHead(nn.Module):
    """A network that answers as torchvision's GoogLeNet and Inception do while they train."""

    class Answer(NamedTuple):
        logits: Tensor
        aux: Tensor

    def forward(self, x: Tensor) -> Answer:
        return self.Answer(x.mean((2, 3)), x)


def test_of_several_outputs_the_logits_count() -> None:
    assert dmc.Specialist(WithAuxiliaryHead(), "abc", SMALL).logits(IMAGES).shape == (4, 3)


def test_class_names_may_be_numbers(tmp_path: Path) -> None:
    module = tiny("ab").module
    assert dmc.Specialist(module, range(2), SMALL, arch="cifar_resnet8").save(tmp_path)  # type: ignore[arg-type]
    assert dmc.load(tmp_path).names == ("0", "1")


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


@pytest.mark.parametrize(
    ("module", "names", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), "abc", "mine has 3 class names but its head has 2 outputs"),
        (nn.Sequential(nn.Flatten(), nn.Linear(100, 2)), "ab", "mine does not accept 8x8 images"),
        (nn.Conv2d(3, 2, 3), "ab", "does not map images to a vector of logits"),
        (Pair(), "ab", "does not map images to a vector of logits"),
    ],
)
def test_a_module_that_does_not_fit_is_refused(module: nn.Module, names: str, message: str) -> None:
    with pytest.raises(DmcError, match=message) as error:
        dmc.Specialist(module, names, Preprocessing(8), name="mine")
    assert "\n" not in str(error.value)


def wrapped(state: dict[str, Tensor]) -> list[Any]:
    return [
        state,
        {"state_dict": state, "epoch": 3},
        {"model": state},
        {"state_dict": {f"module.{key}": value for key, value in state.items()}},
    ]


@pytest.mark.parametrize("wrapping", range(4))
def test_state_dicts_come_out_of_their_usual_wrappings(tmp_path: Path, wrapping: int) -> None:
    trained = tiny("ab")
    content = wrapped(dict(trained.module.state_dict()))[wrapping]
    torch.save(content, tmp_path / "w.pth")
    if wrapping == 3:
        save_file(content["state_dict"], tmp_path / "w.safetensors")
    path = tmp_path / ("w.safetensors" if wrapping == 3 else "w.pth")
    loaded = load_specialist(path, arch="cifar_resnet8", classes=["a", "b"], preprocessing=SMALL)
    assert torch.equal(loaded.logits(IMAGES), trained.logits(IMAGES))


def test_a_state_dict_as_text_with_half_precision_weights(tmp_path: Path) -> None:
    trained = tiny(["cat", "dog"])
    halves = {k: v.half() if v.is_floating_point() else v for k, v in trained.module.state_dict().items()}
    save_file(halves, tmp_path / "w.safetensors")
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    spec = f"{tmp_path}/w.safetensors,arch=cifar_resnet8,classes={tmp_path}/names.txt,size=16,mean=0.5/0.5/0.5"
    loaded = load_specialist(spec)
    assert loaded.names == ("cat", "dog")
    assert loaded.preprocessing == Preprocessing(16, mean=(0.5, 0.5, 0.5))
    assert next(loaded.module.parameters()).dtype == torch.float32


def test_a_grey_state_dict(tmp_path: Path) -> None:
    grey = Preprocessing(16, (0.5,), (0.5,))
    trained = dmc.Specialist.untrained("cifar_resnet8", "ab", grey)
    torch.save(trained.module.state_dict(), tmp_path / "w.pt")
    loaded = load_specialist(tmp_path / "w.pt", "cifar_resnet8", ["a", "b"], grey)
    assert torch.equal(loaded.logits(IMAGES), trained.logits(IMAGES))


class Bomb:
    """An object that writes a file when it is unpickled."""

    target = Path(tempfile.gettempdir()) / "dmc-bomb"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.target,))


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": {}, "trainer": Bomb()}, tmp_path / "w.pth")
    with pytest.raises(DmcError, match=r"w\.pth is refused: .* could unpickle arbitrary objects"):
        dmc.load(tmp_path / "w.pth", "cifar_resnet8", ["a", "b"])
    torch.save(tiny("ab").module, tmp_path / "whole.pt")
    with pytest.raises(DmcError, match=r"whole\.pt is refused"):
        dmc.load(tmp_path / "whole.pt", "cifar_resnet8", ["a", "b"])
    assert not Bomb.target.exists()


def test_weights_that_do_not_fit_say_why(tmp_path: Path) -> None:
    state = dict(tiny("abcde").module.state_dict())
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(DmcError, match=r"2 class names but the head 'fc\.(weight|bias)' has 5 outputs"):
        dmc.load(tmp_path / "w.pt", "cifar_resnet8", ["a", "b"])
    with pytest.raises(
        DmcError, match=r"does not fit cifar_resnet14: it lacks 30 tensors that cifar_resnet14 has, such as 'blocks"
    ):
        dmc.load(tmp_path / "w.pt", "cifar_resnet14", list("abcde"))
    with pytest.raises(DmcError, match=r"needs an architecture \(arch=NAME\)"):
        dmc.load(tmp_path / "w.pt", classes=list("abcde"))
    with pytest.raises(DmcError, match=r"needs class names \(classes=FILE\)"):
        dmc.load(tmp_path / "w.pt", "cifar_resnet8")
    torch.save({"epoch": 3}, tmp_path / "empty.pt")
    with pytest.raises(DmcError, match="holds no state dict"):
        dmc.load(tmp_path / "empty.pt", "cifar_resnet8", ["a"])


def test_folders_that_are_not_models_say_so(tmp_path: Path) -> None:
    with pytest.raises(DmcError, match=r"no model at .*nowhere"):
        dmc.load(tmp_path / "nowhere")
    with pytest.raises(DmcError, match=r"is not a model folder: it has no config\.json"):
        dmc.load(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(DmcError, match="holds a run that is not finished: resume it first"):
        dmc.load(tmp_path)
    bare = {"architecture": "cifar_resnet8", "num_classes": 2, "pretrained_cfg": {"input_size": [3, 16, 16]}}
    (tmp_path / "config.json").write_text(json.dumps(bare))
    with pytest.raises(DmcError, match=r"says nothing about its 2 classes: give classes=FILE"):
        dmc.load(tmp_path)
    with pytest.raises(DmcError, match=r"has no weights \(model\.safetensors or pytorch_model\.bin\)"):
        dmc.load(tmp_path, classes=["a", "b"])
    save_file(dict(tiny("ab").module.state_dict()), tmp_path / "model.safetensors")
    assert dmc.load(tmp_path, classes=["a", "b"]).names == ("a", "b")
    (tmp_path / "config.json").write_text(json.dumps(bare | {"label_names": {"1": "dog", "0": "cat"}}))  # timm's way
    assert dmc.load(tmp_path).names == ("cat", "dog")
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(DmcError, match="cannot read the weights"):
        dmc.load(tmp_path, classes=["a", "b"])


def fill_hub_cache(cache: Path, repo: str, files: dict[str, Path]) -> None:
    """Fill the hub client's cache as a download would."""
    root = cache / f"models--{repo.replace('/', '--')}"
    snapshot = root / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("0" * 40)
    for name, path in files.items():
        (snapshot / name).write_bytes(path.read_bytes())


def test_a_hub_model_is_a_saved_folder_that_was_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = tiny("ab")
    folder = saved.save(tmp_path / "m")
    fill_hub_cache(tmp_path / "cache", "me/mine", {p.name: p for p in folder.iterdir() if p.name != "README.md"})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    loaded = load_specialist("hf-hub:me/mine")
    assert loaded.name == "hf-hub:me/mine"
    assert torch.equal(loaded.logits(IMAGES), saved.logits(IMAGES))
    with pytest.raises(DmcError, match="cannot get hf-hub:me/other") as error:
        dmc.load("hf-hub:me/other")
    assert "\n" not in str(error.value)


def test_a_timm_model_brings_imagenet_names_and_its_preprocessing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = timm.create_model("test_resnet").eval()
    save_file(module.state_dict(), tmp_path / "w.safetensors")
    fill_hub_cache(tmp_path, "timm/test_resnet.r160_in1k", {"model.safetensors": tmp_path / "w.safetensors"})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    loaded = load_specialist("timm:test_resnet")
    assert len(loaded.names) == 1000
    assert loaded.names[0] == "tench, Tinca tinca"
    assert {"crane", "crane (2)"} <= set(loaded.names)
    assert loaded.preprocessing.size == module.pretrained_cfg["input_size"][1]
    assert torch.equal(loaded.module(torch.ones(1, 3, 64, 64)), module(torch.ones(1, 3, 64, 64)))
    with pytest.raises(DmcError, match="cannot get timm:test_vit"):
        dmc.load("timm:test_vit")


def test_a_torchvision_model_brings_its_categories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = torchvision.models.get_model_weights("squeezenet1_1").DEFAULT
    module = torchvision.models.squeezenet1_1().eval()
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(module.state_dict(), tmp_path / "hub" / "checkpoints" / weights.url.rsplit("/", 1)[1])
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    loaded = load_specialist("torchvision:squeezenet1_1")
    assert loaded.names[0] == "tench"
    assert loaded.preprocessing.crop_pct == 0.875
    assert torch.equal(loaded.module(torch.ones(1, 3, 64, 64)), module(torch.ones(1, 3, 64, 64)))
    torch.save({"trainer": Bomb()}, tmp_path / "hub" / "checkpoints" / weights.url.rsplit("/", 1)[1])
    with pytest.raises(DmcError, match="cannot get torchvision:squeezenet1_1"):
        dmc.load("torchvision:squeezenet1_1")
    assert not Bomb.target.exists()


def test_the_real_pretrained_network_answers_as_timm_does(real_data: Path, tmp_path: Path) -> None:
    """timm's own transform and ours differ in rounding only, so nearly all answers must be the same."""
    loaded = load_specialist(
        real_data / "weights" / "tf_efficientnet_lite0.safetensors",
        arch="tf_efficientnet_lite0",
        classes="imagenet-1k",
    )
    transform = timm.data.create_transform(**timm.data.resolve_data_config(model=loaded.module))
    from PIL import Image

    folder = real_data / "voc2012_lite" / "JPEGImages"
    same = 0
    paths = sorted(folder.glob("*.jpg"))[:40]
    source = {Path(r.name): r for r in open_images(folder).records() if Path(r.name) in paths}
    for path in paths:
        ours = loaded.probabilities(decode(source[path], loaded.transform)[None])
        with torch.no_grad():
            theirs = loaded.module(transform(Image.open(path).convert("RGB"))[None]).softmax(1)
        same += int(ours.argmax() == theirs.argmax())
    assert same >= 37


def test_broken_images_that_lie_together_are_skipped_in_evaluation(tmp_path: Path) -> None:
    """They are 9% of all images, but most of the first class; a class without any image left is an error."""
    for name, count in (("a", 30), ("b", 270)):
        write_images(tmp_path / name, count)
    files = sorted((tmp_path / "a").iterdir())
    for path in files[:27]:
        path.write_bytes(b"broken")
    result = dmc.evaluate(tiny("ab"), tmp_path)
    assert (result.images, result.skipped, set(result.per_class)) == (273, 27, {"a", "b"})
    for path in files[27:]:
        path.write_bytes(b"broken")
    with pytest.raises(DmcError, match="no image of class 'a'"):
        dmc.evaluate(tiny("ab"), tmp_path)


def test_predict_gives_the_most_probable_first(tmp_path: Path) -> None:
    model = tiny("abc")
    files = sorted(write_images(tmp_path, 2).iterdir())
    answers = dmc.predict(model, files, top=2)
    pixels = [decode(r, CenterCrop(16)) for r in open_images(tmp_path).records()]
    expected = model.probabilities(torch.stack(pixels))
    for answer, row in zip(answers, expected, strict=True):
        best = row.argsort(descending=True)[:2].tolist()
        assert answer is not None
        assert list(answer) == ["abc"[i] for i in best]
        assert list(answer.values()) == pytest.approx([row[i].item() for i in best])
