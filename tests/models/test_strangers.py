"""State dicts from elsewhere: other names, other networks."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision.models import GoogLeNet, Inception3

import dmc as library
from dmc.data.decode import CenterCrop
from dmc.data.open import open_labeled
from dmc.data.preprocess import Preprocessing
from dmc.distill.teachers import Teachers
from dmc.errors import DmcError
from dmc.models.architectures import default_preprocessing
from dmc.models.weights import load_weights, read_weights
from dmc.schedule import Schedule
from dmc.training.classification import Supervised
from dmc.training.labeled import fit_labeled
from tests.conftest import Answer, bad, classifiers, load_specialist, tiny, write_images

Dmc = Callable[..., Answer]
PIXELS = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """The basic block of the most used public CIFAR ResNets; `shortcut` is option A, or B with a convolution."""

    def __init__(self, inside: int, outside: int, option: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, outside // inside, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut = nn.Sequential()
        self.grows = outside > inside
        if self.grows and option == "B":
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, 2, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.grows and not len(self.shortcut):
            quarter = out.shape[1] // 4
            return F.relu(out + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, quarter, quarter), "constant", 0))
        return F.relu(out + self.shortcut(x))


class PublicResNet(nn.Module):
    """A ResNet whose tensors are called `layer1.0.conv1.weight` and `linear.weight`."""

    def __init__(self, blocks: int, classes: int, option: str = "A", width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = self._stage(width, width, blocks, option)
        self.layer2 = self._stage(width, width * 2, blocks, option)
        self.layer3 = self._stage(width * 2, width * 4, blocks, option)
        self.linear = nn.Linear(width * 4, classes)

    def _stage(self, inside: int, outside: int, blocks: int, option: str) -> nn.Sequential:
        return nn.Sequential(*(Block(inside if i == 0 else outside, outside, option) for i in range(blocks)))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer3(self.layer2(self.layer1(out)))
        return self.linear(F.avg_pool2d(out, out.shape[3]).flatten(1))  # type: ignore[no-any-return]


def public_resnet(*arguments: Any, **settings: Any) -> PublicResNet:
    """Make a network in which no two layers have the same statistics or scales, so that none passes for another."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = PublicResNet(*arguments, **settings)
        for norm in network.modules():
            if isinstance(norm, nn.BatchNorm2d):
                for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
                    assert tensor is not None
                    tensor.data.uniform_(0.5, 1.5)
    return network.eval()


def saved(network: nn.Module, path: Path, **more: Any) -> Path:
    """Save a network as the public training script does."""
    state = {f"module.{key}": value for key, value in network.state_dict().items()}
    torch.save({"state_dict": state, "best_prec1": 91.7}, path, **more)
    return path


def names_file(folder: Path, count: int) -> Path:
    path = folder / f"names-{count}.txt"
    path.write_text("".join(f"class {i}\n" for i in range(count)))
    return path


def same_answers(loaded: library.Specialist, network: nn.Module) -> None:
    """Expect equal logits but for the last bit: taking the mean and pooling round differently."""
    with torch.no_grad():
        torch.testing.assert_close(loaded.logits(PIXELS), network(loaded.preprocessing(PIXELS)), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("depth", "zipped"), [(20, True), (32, False), (44, True)])
def test_public_checkpoints_load_as_they_are(
    tmp_path: Path, depth: int, zipped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    network = public_resnet((depth - 2) // 6, 10)
    path = saved(network, tmp_path / f"resnet{depth}-12fca82f.th", _use_new_zipfile_serialization=zipped)
    loaded = load_specialist(f"{path},arch=resnet{depth},classes={names_file(tmp_path, 10)}")
    same_answers(loaded, network)
    assert loaded.arch == f"cifar_resnet{depth}"
    assert not caplog.messages  # these names are understood, and nothing is guessed


def test_usual_names_are_understood_whatever_the_order(tmp_path: Path) -> None:
    """A .safetensors file is sorted by name."""
    network = public_resnet(3, 10)
    renamed = {key.replace("linear", "fc"): value for key, value in network.state_dict().items()}
    save_file(renamed, tmp_path / "w.safetensors")
    loaded = load_specialist(tmp_path / "w.safetensors", "resnet20", [str(i) for i in range(10)])
    same_answers(loaded, network)


def test_a_public_checkpoint_on_the_command_line(dmc: Dmc, tmp_path: Path) -> None:
    """It predicts, it teaches, and a training starts from it."""
    path = saved(public_resnet(1, 10), tmp_path / "r.th")
    teacher = f"{path},arch=cifar_resnet8,classes={names_file(tmp_path, 10)}"
    aux = write_images(tmp_path / "aux", 8)
    said = dmc("predict", teacher, aux / "000.png")
    assert (said.code, said.err) == (0, "")
    other = tiny("ab").save(tmp_path / "b")
    assert "12 classes" in dmc("check", teacher, other, "--aux", aux, "--batch-size", 8).out
    data = tmp_path / "data"
    for name in "xyz":
        write_images(data / name, 4)
    begin = ("--arch", "cifar_resnet8", "--lr", 1e-12, "--epochs", 1, "--weights", path)
    said = dmc("train", data, "-o", tmp_path / "t", *begin)
    assert said.code == 0, said.err
    begun = read_weights(tmp_path / "t" / "model.safetensors")
    torch.testing.assert_close(begun["blocks.2.conv2.weight"], public_resnet(1, 10).layer3[0].conv2.weight.data)  # type: ignore[union-attr]
    bad(dmc("predict", f"{path},arch=cifar_resnet8,classes={names_file(tmp_path, 7)}", aux / "000.png"),
        "7 class names but the head 'fc.bias' has 10 outputs")  # fmt: skip


def in_another_tongue(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename every layer to something that no public implementation uses."""
    numbers: dict[str, int] = {}
    return {
        f"part{numbers.setdefault(key.rpartition('.')[0], len(numbers))}.{key.rpartition('.')[2]}": value
        for key, value in state.items()
    }


def test_tensors_that_agree_in_all_but_name_are_taken_in_order(dmc: Dmc, tmp_path: Path) -> None:
    network = public_resnet(1, 10)
    torch.save(in_another_tongue(network.state_dict()), tmp_path / "w.pth")
    spec = f"{tmp_path}/w.pth,arch=cifar_resnet8,classes={names_file(tmp_path, 10)}"
    image = write_images(tmp_path / "aux", 1) / "000.png"
    said = dmc("predict", spec, image)
    assert said.code == 0
    assert said.err.startswith(
        f"dmc: {tmp_path}/w.pth: its tensors have other names than those of cifar_resnet8 and are"
    )
    assert "'part0.weight' for 'conv1.weight'" in said.err
    assert said.err.count("\n") == 1
    loaded = load_specialist(spec)
    same_answers(loaded, network)
    bad(dmc("predict", spec.replace("names-10", "names-3"), image), "names-3", "cannot read")
    names_file(tmp_path, 3)
    bad(
        dmc("predict", spec.replace("names-10", "names-3"), image),
        "3 class names but the head 'fc.bias' has 10 outputs",
    )
    bad(dmc("predict", spec.replace("resnet8", "resnet14"), image), "it has 37 tensors, such as 'part0.weight', where")


def swapped(state: dict[str, Tensor], suffix: str) -> dict[str, Tensor]:
    """Swap the two tensors of a norm."""
    keys = list(state)
    place = next(i for i, key in enumerate(keys) if key.endswith(suffix) and state[key].ndim == 1)
    keys[place], keys[place + 1] = keys[place + 1], keys[place]
    return {key: state[key] for key in keys}


def pre_activation(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename tensors as in a network that normalises before it convolves: shapes and roles are the same, in order."""
    names = [key for key in state if not key.endswith("num_batches_tracked")]
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    theirs = ["conv1"]
    theirs += [f"group{stage}.0.{layer}" for stage in (1, 2, 3) for layer in ("bn1", "conv1", "bn2", "conv2")]
    renamed = dict(zip(layers, [*theirs, "bn", "linear"], strict=True))
    return {f"{renamed[n.rpartition('.')[0]]}.{n.rpartition('.')[2]}": state[n] for n in names}


def test_order_alone_is_not_enough(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each of these has the right number of tensors of the right shapes in order."""
    state = dict(public_resnet(1, 10).state_dict())
    foreign = in_another_tongue(state)
    torch.save(swapped(foreign, ".weight"), tmp_path / "swapped.pth")
    torch.save(pre_activation(state), tmp_path / "before.pth")
    save_file(foreign, tmp_path / "sorted.safetensors")
    for file in ("swapped.pth", "before.pth", "sorted.safetensors"):
        with pytest.raises(DmcError, match=r"does not fit cifar_resnet8: .*dmc\.Specialist\(module, classes"):
            load_specialist(tmp_path / file, "cifar_resnet8", [str(i) for i in range(10)])
    assert not caplog.messages


def test_any_architecture_is_filled_in_order(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)) for _ in range(2))
    load_weights(ours, in_another_tongue(theirs.state_dict()), Path("w.pt"), "mine", 2)
    assert torch.equal(ours.state_dict()["2.weight"], theirs.state_dict()["2.weight"])
    assert len(caplog.messages) == 1
    assert caplog.records[0].levelno == logging.WARNING


def test_a_file_that_is_sorted_by_name_tells_no_order() -> None:
    """`part10` comes before `part2`, and both have the same shape and role."""
    ours, theirs = (nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(11))) for _ in range(2))
    state = in_another_tongue(theirs.state_dict())
    with pytest.raises(DmcError, match=r"a \.safetensors file does not keep their order"):
        load_weights(ours, {key: state[key] for key in sorted(state)}, Path("w.safetensors"), "mine", 2)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ({"option": "B"}, "it has 10 tensors that cifar_resnet8 lacks, such as 'layer2.0.shortcut.0.weight'"),
        ({"width": 64}, "its 'conv1.weight' is 64x3x3x3 where cifar_resnet8 has 16x3x3x3"),
        ({"blocks": 2}, "it has 30 tensors that cifar_resnet8 lacks, such as 'layer1.1.conv1.weight'"),
    ],
)
def test_another_network_is_told_by_what_differs(dmc: Dmc, tmp_path: Path, network: dict[str, Any], words: str) -> None:
    path = saved(public_resnet(**{"blocks": 1, "classes": 10} | network), tmp_path / "w.th")
    said = dmc("predict", f"{path},arch=cifar_resnet8,classes={names_file(tmp_path, 10)}", "x.png")
    bad(said, f"{path} does not fit cifar_resnet8", words)
    assert said.err.endswith("dmc.Specialist(module, classes, preprocessing) takes the module itself\n")


def test_zeros_in_another_place_are_another_network(tmp_path: Path) -> None:
    """A public family with these names fills up its shortcuts behind the channels, which no tensor shows."""
    state = public_resnet(1, 10).state_dict()
    torch.save({k.replace("conv1", "conv_a") if "layer" in k else k: v for k, v in state.items()}, tmp_path / "w.pth")
    with pytest.raises(DmcError, match=r"'layer1\.0\.conv_a\.weight' pad their shortcuts with zeros behind"):
        load_specialist(tmp_path / "w.pth", "cifar_resnet8", [str(i) for i in range(10)])


@pytest.mark.parametrize(("name", "network"), [("googlenet", GoogLeNet), ("inception_v3", Inception3)])
def test_networks_that_normalise_inside_see_what_torchvision_shows_them(name: str, network: Any) -> None:
    """With weights, torchvision has them turn ImageNet's mean and std into their own; dmc's have no such step."""
    seen = default_preprocessing(f"torchvision:{name}")
    pixels = torch.randint(0, 256, (2, 3, seen.size, seen.size), dtype=torch.uint8)
    usual = replace(seen, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))(pixels)
    inside = network._transform_input(SimpleNamespace(transform_input=True), usual)
    torch.testing.assert_close(seen(pixels), inside, rtol=0, atol=1e-5)


def test_timms_older_form_of_a_folder(tmp_path: Path) -> None:
    """What the network wants to see stands outside, and classes are `labels`."""
    told = {"input_size": [3, 96, 64], "mean": [0.5] * 3, "std": [0.25] * 3, "interpolation": "bilinear"}
    told |= {"crop_pct": 1.0, "labels": ["a", "b", "c"], "num_classes": 3, "architecture": "test_resnet"}
    network = timm.create_model("test_resnet", num_classes=3)
    save_file(network.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**told, "input_size": [3, 64, 64]}))
    loaded = load_specialist(tmp_path)
    assert loaded.names == ("a", "b", "c")
    assert loaded.preprocessing == Preprocessing(64, (0.5,) * 3, (0.25,) * 3, "bilinear", 1.0)
    changed = {**told, "input_size": [3, 64, 64], "model_args": {"global_pool": "max"}}
    (tmp_path / "config.json").write_text(json.dumps(changed))
    with pytest.raises(DmcError, match=r"model_args \(global_pool\), which dmc does not know"):
        load_specialist(tmp_path)


def test_a_student_sees_colours_if_any_teacher_of_its_kind_does(aux_folder: Path) -> None:
    grey = library.Specialist.untrained("cifar_resnet8", "ab", Preprocessing(16, (0.5,), (0.5,)))
    for teachers in ([grey, tiny("cd")], [tiny("cd"), grey]):
        assert classifiers(teachers, aux_folder, Schedule()).student.preprocessing.channels == 3


def test_side_by_side_teachers_see_what_all_of_them_want() -> None:
    squashing = [Preprocessing(size, crop_mode="squash", crop_pct=0.9) for size in (16, 32)]
    teachers = [library.Specialist.untrained("cifar_resnet8", f"a{i}", seen) for i, seen in enumerate(squashing)]
    assert Teachers(teachers).transform == replace(teachers[1].transform, size=32)
    assert Teachers([*teachers, tiny("xy")]).transform == CenterCrop(32)


class Own(nn.Module):
    """A network with something of its own, by name."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.fc = what, nn.Linear(3, 2)
        if what == "mask":
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    def get_extra_state(self) -> object:
        return {"a": 1} if self.what == "state" else torch.zeros(1)

    def set_extra_state(self, state: object) -> None:
        pass

    def forward(self, x: Tensor) -> Any:
        logits = self.fc(x.mean(dim=(2, 3)))
        return (logits, logits) if self.what == "two" and self.training else logits


@pytest.mark.parametrize(
    ("what", "words"),
    [("state", "keeps '_extra_state', which is no tensor"), ("two", "gives a tuple, not a tensor"), ("mask", "")],
)
def test_networks_of_their_own(what: str, words: str, tmp_path: Path) -> None:
    model = library.Specialist(Own(what), ["x", "y"], Preprocessing(16), arch="own")
    assert len(model.fingerprint) == 16
    for name in "xy":
        write_images(tmp_path / name, 4)
    data = open_labeled(tmp_path)
    schedule, objective = Schedule(epochs=1, batch_size=4, lr=1e-3), Supervised(model, data.classes)
    with pytest.raises(DmcError, match=words) if words else nullcontext():  # an infinite buffer is no divergence
        fit_labeled(model, data, objective, schedule)
