"""Networks that a user's own file makes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import dmc as library
from dmc.errors import DmcError
from dmc.models.architectures import create
from dmc.models.detector import Detector
from dmc.models.load import load_saved
from tests.conftest import SMALL, Answer, bad, load_specialist, tiny, write_images
from tests.test_cli import QUICK

Dmc = Callable[..., Answer]
PIXELS = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
NET = """
from pathlib import Path

from torch import nn

Path(__file__).with_name("was-run").touch()


def make_network(num_classes):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes))
"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    path = tmp_path / "code" / "net.py"
    path.write_text(NET)
    return path


def was_run(folder: Path) -> bool:
    """Tell whether the file was run since the last call."""
    mark = folder / "was-run"
    there = mark.exists()
    mark.unlink(missing_ok=True)
    return there


def test_a_module_is_saved_with_the_code_that_makes_it(tmp_path: Path, net: Path) -> None:
    arch = f"{net}:make_network"
    mine = library.Specialist(create(arch, 2), ["x", "y"], SMALL, arch=arch, name="mine")
    folder = mine.save(tmp_path / "m")
    assert (folder / "net.py").read_text() == NET
    assert json.loads((folder / "config.json").read_text())["architecture"] == "net.py:make_network"
    net.unlink()
    again = load_specialist(folder, arch="net.py:make_network")
    assert torch.equal(again.logits(PIXELS), mine.logits(PIXELS))
    assert again.fingerprint == mine.fingerprint
    third = load_specialist(f"{again.save(tmp_path / 'n')},arch={tmp_path}/n/net.py:make_network,output=sigmoid")
    assert (third.output, third.fingerprint == mine.fingerprint) == ("sigmoid", False)
    assert torch.equal(third.logits(PIXELS), mine.logits(PIXELS))


def test_code_in_a_folder_is_not_run_by_surprise(
    dmc: Dmc, tmp_path: Path, net: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arch = f"{net}:make_network"
    folder = library.Specialist(create(arch, 2), ["x", "y"], SMALL, arch=arch).save(tmp_path / "m")
    image = write_images(tmp_path / "images", 1) / "000.png"
    bad(dmc("predict", folder, image), f"name it to run it: {folder},arch=net.py:make_network")
    with pytest.raises(DmcError, match="is made by code"):
        load_specialist(folder)
    bad(dmc("predict", f"{folder},arch=cifar_resnet8", image), "is made by net.py:make_network, not by cifar_resnet8")
    assert not was_run(folder)
    assert dmc("predict", f"{folder},arch=net.py:make_network", image).code == 0
    assert was_run(folder)
    monkeypatch.chdir(net.parent)  # where a file of that name is the user's own, and the same
    was_run(net.parent)
    assert dmc("predict", f"{folder},arch=net.py:make_network", image).code == 0
    assert (was_run(folder), was_run(net.parent)) == (False, True)
    (folder / "net.py").write_text(f"{NET}# changed\n")
    bad(dmc("predict", f"{folder},arch=net.py:make_network", image), "differ; say which one to run")
    assert not was_run(folder)
    assert dmc("predict", f"{folder},arch={folder}/net.py:make_network", image).code == 0
    assert was_run(folder)


def test_code_that_has_changed_since_is_not_run_with_the_old_weights(tmp_path: Path, net: Path) -> None:
    """A comparison that is continued, or a specialist that was kept."""
    arch = f"{net}:make_network"
    folder = library.Specialist(create(arch, 2), ["x", "y"], SMALL, arch=arch).save(tmp_path / "m")
    assert load_saved(folder, [arch]).names == ("x", "y")
    net.write_text(f"{NET}# changed\n")
    with pytest.raises(DmcError, match=r"net\.py has changed since .*m was saved with a copy of it"):
        load_saved(folder, [arch])


def test_an_own_network_goes_all_the_way(dmc: Dmc, tmp_path: Path, net: Path, aux_folder: Path) -> None:
    """It is trained, merged with another one, and taught new classes."""
    arch = f"{net}:make_network"
    for name in "xyz":
        write_images(tmp_path / "data" / name, 4)
    said = dmc("train", tmp_path / "data", "-o", tmp_path / "a", "--arch", arch, "--size", 16, *QUICK)
    assert said.code == 0, said.err
    own, other = f"{tmp_path}/a,arch=net.py:make_network", tiny("ab").save(tmp_path / "b")
    said = dmc("consolidate", own, other, "--aux", aux_folder, "-o", tmp_path / "m", "--arch", arch, *QUICK)
    assert said.code == 0, said.err
    assert (tmp_path / "m" / "net.py").read_text() == NET
    merged = f"{tmp_path}/m,arch=net.py:make_network"
    assert load_specialist(merged).names == ("x", "y", "z", "a", "b")
    write_images(tmp_path / "new" / "p", 4)
    write_images(tmp_path / "new" / "q", 4)
    said = dmc("learn", merged, tmp_path / "new", "--aux", aux_folder, "-o", tmp_path / "n", "--specialist-epochs", 1,
               *QUICK)  # fmt: skip
    assert said.code == 0, said.err
    assert "7 classes" in said.out


FLAT = "from torch import nn\ndef make_network({}): return nn.Sequential(nn.Flatten(), nn.Linear(768, {}))"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (FLAT.format("n", "n"), ""),
        (FLAT.format("", 2), ""),
        (FLAT.format("outputs=5", "outputs"), "has 2 class names but its head has 5 outputs"),
        ("make_network = 3", "has no function 'make_network'"),
        ("def make_network(num_classes):\n    return [num_classes]", "makes a list, not a torch.nn.Module"),
        ("def make_network(num_classes):\n    raise OSError('no disk')", "cannot run .*: OSError: no disk"),
        ("import", "cannot run .*: SyntaxError"),
    ],
)
def test_factories(tmp_path: Path, code: str, words: str) -> None:
    (tmp_path / "net.py").write_text(code)
    arch = f"{tmp_path}/net.py:make_network"
    if not words:
        assert library.Specialist.untrained(arch, "ab", SMALL).logits(PIXELS).shape == (2, 2)
        return
    with pytest.raises(DmcError, match=words):
        library.Specialist.untrained(arch, "ab", SMALL)


def test_a_file_is_no_detector_whatever_it_is_called() -> None:
    assert not Detector.claims("fcos_like.py:make_network")


def test_bad_factories(dmc: Dmc, tmp_path: Path, net: Path, labeled_folder: Path) -> None:
    command = ("train", labeled_folder, "-o", tmp_path / "out", "--size", 16, *QUICK, "--arch")
    bad(dmc(*command, f"{tmp_path}/gone.py:f"), "no such file", "gone.py")
    bad(dmc(*command, f"{net}:make_network", "--weights", "imagenet"), "there are no ImageNet weights of")
    assert not (tmp_path / "out").exists()
    with pytest.raises(DmcError, match=r"no such file: gone\.py"):
        library.Specialist(create(f"{net}:make_network", 2), "ab", SMALL, arch="gone.py:f").save(tmp_path / "lost")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "net.py").write_text("mine = 1\n")
    specialist = library.Specialist.untrained(f"{net}:make_network", "ab", SMALL)
    with pytest.raises(DmcError, match=r"net\.py is another file than"):
        specialist.save(tmp_path / "m")
    assert (tmp_path / "m" / "net.py").read_text() == "mine = 1\n"
