"""Publishing: what is sent, by a hub that only writes it down, and what happens if it fails."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard, constants

import dmc as library
from dmc.errors import DmcError
from dmc.models.push import published
from tests.conftest import Answer, bad, load_specialist, tiny
from tests.models.test_hub import NOWHERE
from tests.test_cli import QUICK

Dmc = Callable[..., Answer]


class Hub:
    """A hub that keeps what it is sent, in one commit for each upload."""

    def __init__(self, kept: Path) -> None:
        self.kept = kept
        self.repos: dict[str, bool] = {}  # and whether they are private
        self.commits: list[dict[str, bytes]] = []
        self.breaks = ""

    def __call__(self, **_: Any) -> Hub:
        return self

    def repo_exists(self, repo: str) -> bool:
        return repo in self.repos

    def create_repo(self, repo: str, private: bool) -> None:
        if self.breaks == "create":
            raise OSError("403 Client Error: you may not create models here\nRequest ID: 1")
        self.repos[repo] = private

    def delete_repo(self, repo: str, missing_ok: bool) -> None:
        if self.breaks == "both":
            raise OSError("connection lost")
        self.repos.pop(repo)

    def upload_folder(self, repo_id: str, folder_path: Path, commit_message: str) -> Any:
        if self.breaks:
            raise OSError("connection lost")
        self.commits.append({path.name: path.read_bytes() for path in Path(folder_path).iterdir()})
        for name, content in self.commits[-1].items():
            (self.kept / name).write_bytes(content)
        return SimpleNamespace(repo_url=f"https://hub/{repo_id}")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    (tmp_path / "kept").mkdir()
    hub = Hub(tmp_path / "kept")
    monkeypatch.setattr("huggingface_hub.HfApi", hub)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_x")
    monkeypatch.setattr("dmc.models.push.reachable", lambda: True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return hub


def test_a_trained_model_is_sent_with_its_score_and_without_its_run(
    dmc: Dmc, tmp_path: Path, labeled_folder: Path, hub: Hub
) -> None:
    tested = shutil.copytree(labeled_folder, tmp_path / "others" / "labeled")  # in truth, of other images
    said = dmc("train", labeled_folder, "-o", tmp_path / "m", "--arch", "cifar_resnet8", "--val", tested, *QUICK)
    assert said.code == 0, said.err
    said = dmc("push", tmp_path / "m", "me/colours", "--license", "apache-2.0")
    assert (said.code, said.out) == (0, "https://hub/me/colours\n  load it with hf-hub:me/colours\n")
    assert hub.repos == {"me/colours": True}
    (sent,) = hub.commits
    assert sorted(sent) == ["README.md", "config.json", "model.safetensors"]
    assert not [name for name, content in sent.items() if str(tmp_path).encode() in content]  # no path of this machine
    found: Any = ModelCard(sent["README.md"].decode()).data
    assert (found.license, found.library_name, found.pipeline_tag) == ("apache-2.0", "timm", "image-classification")
    (score,) = found.eval_results or []
    accuracy = library.evaluate(load_specialist(tmp_path / "m"), labeled_folder).accuracy
    assert (score.metric_type, score.metric_value) == ("accuracy", pytest.approx(accuracy, abs=6e-4))
    assert (score.task_type, score.dataset_name, found.model_name) == ("image-classification", "labeled", "me/colours")
    images = torch.zeros(1, 3, 16, 16, dtype=torch.uint8)
    assert torch.equal(load_specialist(hub.kept).logits(images), load_specialist(tmp_path / "m").logits(images))


def test_a_merged_model_names_its_teachers_and_its_data(hub: Hub) -> None:
    model = tiny(['a: "b"\n---\nlicense: mit', "# [x](http://y)"])
    model.provenance = {
        "made by": "dmc consolidate",
        "teacher 1": "hf-hub:me/cats, 2 classes: they win 50% of the images",
        "teacher 2": "timm:resnet18.a1_in1k, 1000 classes: they win 50%",
        "teacher 3": "/home/me/secret place/dogs, 2 classes",
        "auxiliary images": "hf-hub:me/photos + /data/more (8000, 0 skipped)",
        "warning": ["one", "at /home/me/x"],
    }
    assert library.push(model, "me/merged", public=True) == "https://hub/me/merged"
    assert hub.repos == {"me/merged": False}
    text = hub.commits[0]["README.md"].decode()
    data: Any = ModelCard(text).data
    found = data.to_dict()
    assert found["license"] == "unknown"
    assert found["base_model"] == ["me/cats", "timm/resnet18.a1_in1k"]
    assert (found["base_model_relation"], found["datasets"]) == ("merge", ["me/photos"])
    assert "model-index" not in found
    assert text.count("\n---\n") == 1  # a class name ends no front matter
    assert "\\# \\[x\\](http://y)" in text
    assert "/home" not in text
    assert "- warning: at x" in text.splitlines()
    assert "/home/me/x" in model.provenance["warning"][1]  # what is saved here still says where


def test_paths_are_cut_and_addresses_stay() -> None:
    model = tiny("ab")
    model.provenance = {"data": "/a/b/c (5) and ../d/e, https://x.org/y/z, 3/4, hf-hub:me/mine"}
    assert published(model).provenance["data"] == "c (5) and ../d/e, https://x.org/y/z, 3/4, hf-hub:me/mine"


@pytest.mark.parametrize(
    ("breaks", "words", "left"),
    [
        ("create", "403 Client Error: you may not create models here; nothing was sent", {}),
        ("upload", "connection lost; nothing was sent", {}),
        ("both", "connection lost; nothing was sent, but an empty repository is left there", {"me/m": True}),
    ],
)
def test_what_fails_leaves_nothing_half_sent(
    dmc: Dmc, tmp_path: Path, hub: Hub, breaks: str, words: str, left: dict[str, bool]
) -> None:
    folder = tiny("ab").save(tmp_path / "m")
    hub.breaks = breaks
    bad(dmc("push", folder, "me/m"), f"cannot send to me/m: {words}")
    assert (hub.repos, hub.commits) == (left, [])


def test_a_model_that_is_there_stays_there_if_the_next_one_fails(tmp_path: Path, hub: Hub) -> None:
    hub.repos["me/m"] = False
    hub.breaks = "upload"
    with pytest.raises(DmcError, match=r"nothing was sent$"):
        library.push(tiny("ab"), "me/m")
    assert hub.repos == {"me/m": False}


def test_what_cannot_be_sent_is_refused_before_it_is_loaded(
    dmc: Dmc, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad(dmc("push", "nothing", "merged"), "'merged' is no name on the hub: give OWNER/NAME, such as me/merged")
    bad(dmc("push", "nothing", "me/m", "--license", "Apache 2"), "'Apache 2' is no license of the hub's")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    bad(dmc("push", "nothing", "me/m"), "cannot send to me/m: there is no token; log in with `hf auth login`")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_x")
    monkeypatch.undo()
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_x")
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)
    bad(dmc("push", "nothing", "me/m"), f"cannot send to me/m: no connection to {NOWHERE}; nothing was sent")
