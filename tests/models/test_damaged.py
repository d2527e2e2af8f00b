"""Model folders and weights from anywhere: what is wrong with them is one line that names the file and the field."""

from __future__ import annotations

import json
import os
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dmc.errors import DmcError
from dmc.models.load import load
from tests.conftest import load_specialist, tiny

Change = Callable[[dict[str, Any]], Any]


def refused(folder: Path, **given: Any) -> str:
    """Load a model that must be refused in one line, and with little work; give the line."""
    started = time.process_time()
    with pytest.raises(DmcError) as error:
        load(folder, **given)
    assert time.process_time() - started < 10  # loading timm is some of it
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "config.json should be an object"),
        ("null", "config.json should be an object"),
        ("3", "config.json should be an object"),
        ("", "config.json is no valid JSON: EOF"),
        ("[" * 100_000, "config.json is no valid JSON: recursion limit"),
        ('{"dmc": ' * 100_000, "config.json is no valid JSON: recursion limit"),
        ('{"architecture": "x", "num_classes": ' + "9" * 5000 + "}", "config.json is no valid JSON: number out of"),
        ("{}", "config.json has no 'architecture'"),
    ],
)
def test_a_config_that_is_no_config(tmp_path: Path, text: str, said: str) -> None:
    folder = tiny("ab").save(tmp_path / "m")
    (folder / "config.json").write_text(text)
    assert said in refused(folder)


CHANGES: dict[str, tuple[Change, str]] = {
    "architecture": (lambda c: c.update(architecture=["x"]), "architecture ['x'], which should be a valid string"),
    "deep": (lambda c: c.update(architecture="cifar_resnet999999998"), "cifar_resnet999999998 is deeper than any"),
    "endless": (lambda c: c.update(architecture="cifar_resnet" + "9" * 499), "architecture 'cifar_resnet9"),
    "digits": (lambda c: c.update(architecture="cifar_resnet" + "9" * 50), "unknown architecture 'cifar_resnet9"),
    "count": (lambda c: c.update(num_classes="two"), "num_classes 'two', which should be a valid integer"),
    "no classes": (lambda c: c.update(num_classes=0), "num_classes 0, which should be greater than or equal to 1"),
    "absurd": (lambda c: c.update(num_classes=10**9), "1000000000 outputs is said to be in it, but no tensor"),
    "labels": (lambda c: c.update(label_names=[1, 2]), "label_names.0 1, which should be a valid string"),
    "label": (lambda c: c.update(label_names="ab"), "label_names 'ab', which should be a valid array"),
    "keys": (lambda c: c.update(label_names={"a": "b"}), "label_names {'a': 'b'}, which should have numbers"),
    "looks": (lambda c: c.update(pretrained_cfg=None), "pretrained_cfg None, which should be an object"),
    "sides": (lambda c: c["pretrained_cfg"].update(input_size=[3, 16]), "pretrained_cfg.input_size.2"),
    "huge": (lambda c: c["pretrained_cfg"].update(input_size=[3, 10**6, 10**6]), "less than or equal to 4096"),
    "mean": (lambda c: c["pretrained_cfg"].update(mean=[float("nan")] * 3), "pretrained_cfg.mean.0 nan, which should"),
    "std": (lambda c: c["pretrained_cfg"].update(std=[0, 1, 1]), "config.json has a pretrained_cfg of which std (0"),
    "crop": (lambda c: c["pretrained_cfg"].update(crop_pct="all"), "pretrained_cfg.crop_pct 'all'"),
    "section": (lambda c: c.update(dmc=[]), "dmc [], which should be an object"),
    "task": (lambda c: c["dmc"].update(task={}), "dmc.task {}, which should be a valid string"),
    "output": (lambda c: c["dmc"].update(output="max"), "dmc.output 'max', which should be 'softmax' or 'sigmoid'"),
    "provenance": (lambda c: c["dmc"].update(provenance=[1]), "dmc.provenance [1], which should be an object"),
    "same": (lambda c: c["dmc"].update(columns=[0, 0]), "dmc.columns that are not distinct outputs"),
    "negative": (lambda c: c["dmc"].update(columns=[-1, 0]), "dmc.columns that are not distinct outputs"),
    "beyond": (lambda c: c["dmc"].update(columns=[0, 2]), "dmc.columns that are not distinct outputs"),
    "few": (lambda c: c["dmc"].update(columns=[1]), "1 outputs in use but 2 class names"),
    "true": (lambda c: c["dmc"].update(columns=[True, False]), "dmc.columns.0 True, which should be a valid integer"),
    "lacks": (lambda c: c.pop("label_names"), "config.json has no 'label_names'"),
}


@pytest.mark.parametrize("which", CHANGES)
def test_a_config_with_a_wrong_value(tmp_path: Path, which: str) -> None:
    folder = tiny("ab").save(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    change, said = CHANGES[which]
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    assert said in refused(folder)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    folder = tiny("ab").save(tmp_path / "m")
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    assert "config.json: it is not a regular file" in refused(folder)


def test_a_config_in_another_encoding(tmp_path: Path) -> None:
    folder = tiny("ab").save(tmp_path / "m")
    (folder / "config.json").write_bytes(b'{"architecture": "\xff"}')
    assert "config.json: it is not text in UTF-8" in refused(folder)


def test_what_another_version_wrote_is_read(tmp_path: Path) -> None:
    """It may have keys that are unknown here, and none for what came later; timm writes some as null."""
    folder = tiny("ab").keep(["b"]).save(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_features": 64, "global_pool": None}
    config["pretrained_cfg"] |= {"hf_hub_id": None, "classifier": "fc", "crop_pct": 1}
    for key in ("task", "output", "provenance"):
        del config["dmc"][key]
    (folder / "config.json").write_text(json.dumps(config))
    assert load_specialist(folder).classes.columns == (1,)


TENSORS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "int8": (lambda t: (t * 100).to(torch.int8), "int8"),
    "int64": (lambda t: t.long(), "int64"),
    "float8": (lambda t: t.to(torch.float8_e4m3fn), "float8_e4m3fn"),
    "complex": (lambda t: t.to(torch.complex64), "complex64"),
    "sparse": (lambda t: t.to_sparse(), "sparse_coo"),
    "meta": (lambda t: t.to("meta"), "meta"),
    "quantised": (lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8), "qint8"),
}


@pytest.mark.parametrize("which", TENSORS)
def test_tensors_that_are_not_the_numbers_themselves(tmp_path: Path, which: str) -> None:
    made, kind = TENSORS[which]
    state = dict(tiny("ab").module.state_dict())
    with warnings.catch_warnings(action="ignore"):
        state["fc.weight"] = made(state["fc.weight"])
        torch.save(state, tmp_path / "w.pt")
    with warnings.catch_warnings(action="error"):  # it would be another line
        said = refused(tmp_path / "w.pt", arch="cifar_resnet8", classes=["a", "b"])
    assert "w.pt" in said
    assert f"its 'fc.weight' is a {kind} tensor" in said


def test_an_archive_that_would_fill_the_memory(tmp_path: Path) -> None:
    torch.save({"fc.weight": torch.zeros(100_000)}, tmp_path / "stored.pt")
    with zipfile.ZipFile(tmp_path / "stored.pt") as stored, zipfile.ZipFile(tmp_path / "w.pt", "w") as small:
        for part in stored.infolist():
            small.writestr(part.filename, stored.read(part), zipfile.ZIP_DEFLATED)
    assert "w.pt: its parts are compressed" in refused(tmp_path / "w.pt", arch="cifar_resnet8", classes=["a", "b"])


def test_a_tensor_that_repeats_one_number_makes_no_room_for_classes(tmp_path: Path) -> None:
    folder = tiny("ab").save(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text()) | {"num_classes": 10**9}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").unlink()
    torch.save({"fc.bias": torch.zeros(1).expand(10**9)}, folder / "pytorch_model.bin")
    assert "1000000000 outputs is said to be in it, but no tensor is longer than 0" in refused(folder)


def test_a_counter_of_another_shape_does_not_matter(tmp_path: Path) -> None:
    state = dict(tiny("ab").module.state_dict())
    state["bn1.num_batches_tracked"] = torch.zeros(3)
    torch.save(state, tmp_path / "w.pt")
    assert load(tmp_path / "w.pt", "cifar_resnet8", ["a", "b"]).names == ("a", "b")
