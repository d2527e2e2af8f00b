"""The detection recipes, in seconds, on scenes made here; which COCO images are auxiliary, on a made-up file."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmc.bench.coco import IN_COCO, VOC, with_other_objects, without_voc_objects
from dmc.bench.detection import DetectionReproduction, load_detection_profile, load_detection_recipes
from dmc.errors import DmcError
from dmc.recipes.recipe import published
from tests.conftest import Answer
from tests.detectors import scene, write_voc

Dmc = Callable[..., Answer]
TEN = ("aeroplane", "bicycle", "bird", "boat", "bus", "cat", "dog", "horse", "sheep", "train")


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("voc")
    write_voc(root / "voc2012_lite", 80, TEN)
    write_voc(root / "voc2012_lite", 60, TEN, seed=1, split="val")
    (root / "aux" / "coco").mkdir(parents=True)
    draw = np.random.default_rng(3)
    for i in range(16):
        scene(draw, TEN)[0].save(root / f"{i}.png")
    with tarfile.open(root / "aux" / "coco" / "coco-0.tar", "w") as tar:
        for i in range(16):
            tar.add(root / f"{i}.png", arcname=f"{i}.png")
    return root


def coco(folder: Path, images: dict[str, list[str]]) -> Path:
    names = [IN_COCO.get(name, name) for name in VOC] + ["zebra", "kite"]
    content = {
        "images": [{"id": i, "file_name": file} for i, file in enumerate(images)],
        "categories": [{"id": 10 * k, "name": name} for k, name in enumerate(names)],
        "annotations": [
            {"id": 0, "image_id": i, "category_id": 10 * names.index(name), "bbox": [0, 0, 1, 1]}
            for i, there in enumerate(images.values())
            for name in there
        ],
    }
    path = folder / "instances.json"
    path.write_text(json.dumps(content))
    return path


def test_which_coco_images_are_auxiliary(tmp_path: Path) -> None:
    """60 other categories, with or without VOC's; exclusive: none of VOC's."""
    path = coco(
        tmp_path,
        {"a": ["zebra"], "b": ["zebra", "tv"], "c": ["couch", "person"], "d": [], "e": ["kite", "kite"], "f": ["cat"]},
    )
    assert [p.name for p in with_other_objects(path, tmp_path).paths] == ["a", "b", "e"]
    assert [p.name for p in without_voc_objects(path, tmp_path).paths] == ["a", "e"]
    path.write_text(json.dumps({"images": [], "annotations": [], "categories": [{"id": 1, "name": "zebra"}]}))
    with pytest.raises(DmcError, match="has no category 'airplane'"):
        with_other_objects(path, tmp_path)


@pytest.mark.parametrize("name", ["voc-10+10", "voc-19+1-each", "voc-base-networks", "voc-aux-amount"])
def test_a_detection_recipe_from_end_to_end(dmc: Dmc, data_root: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    command = ("reproduce", name, "--profile", "smoke", "--data-root", data_root, "-o", out)
    said = dmc(*command, "--json")
    assert said.code == 0, said.err
    rows = json.loads(said.out)
    recipe = load_detection_recipes()[name].at("smoke")
    assert {(row["setting"], row["row"]) for row in rows} == {(s, r) for s in recipe.splits for r in recipe.rows}
    assert not any("failed" in row for row in rows), said.err
    for row in rows:
        assert all(0 <= value <= 1 for value in row["per_class"].values())
        assert f"{row['row']} {row['made']['minutes']:.1f}" in (out / f"{name}-smoke.md").read_text()
    stamps = {p: p.stat().st_mtime_ns for p in out.rglob("model.safetensors")}
    said = dmc(*command)
    assert said.code == 0
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps  # finished rows are not made again
    assert "profile smoke" in said.out
    assert "mean nothing" in (out / f"{name}-smoke.md").read_text()
    require_made_as_planned(name, {p.parent.name: json.loads(p.read_text()) for p in out.rglob("models/*/run.json")})


def require_made_as_planned(name: str, runs: dict[str, Any]) -> None:
    """What each row's model was really made of."""
    if name == "voc-10+10":
        tasks = {row: runs[f"kind-{row}"]["task"]["name"] for row in ("shmelkov", "finetuning")}
        assert tasks == {"shmelkov": "AdaptedShmelkov", "finetuning": "Detection"}
        centrings = {row: run["centring"] for row, run in runs.items() if "dmc" in row}
        assert centrings == {"kind-dmc": "none", "kind-dmc-centring-per-teacher": "per-teacher"}
        assert [len(teacher["classes"]) for teacher in runs["kind-dmc"]["teachers"]] == [5, 5]
    if name == "voc-19+1-each":
        assert [len(teacher["classes"]) for teacher in runs["kind-dmc"]["teachers"]] == [2, 1]
    if name == "voc-aux-amount":
        seen = sorted((run["aux"]["images"], run["schedule"]["epochs"]) for run in runs.values())
        assert seen == [(4, 4), (8, 2), (16, 1)]
    if name == "voc-base-networks":
        (run,) = (run for row, run in runs.items() if "dmc" in row)
        assert [teacher["arch"].split(",")[0] for teacher in run["teachers"]] == [
            "retinanet:timm/test_resnet",
            "retinanet:timm/test_efficientnet",
        ]


def test_rows_of_other_settings_are_not_taken_over(data_root: Path, tmp_path: Path) -> None:
    """A profile has a folder of its own; one whose settings have changed since is refused."""
    recipe, profile = load_detection_recipes()["voc-10+10"], load_detection_profile("smoke")
    folders = set()
    for other, refused in (
        (profile, False),
        (profile, False),
        (profile.model_copy(update={"size": 99}), True),
        (load_detection_profile("lite"), False),
    ):
        (bench,) = DetectionReproduction("voc-10+10", recipe, other, 1, tmp_path, data_root).benches().values()
        folders.add(bench.folder)
        with pytest.raises(DmcError, match="holds another comparison") if refused else nullcontext():
            bench.settle()
    assert len(folders) == 2


def test_recipes_share_what_they_have_in_common() -> None:
    """The same detectors under the same names: of the nineteen classes, and of all auxiliary images."""
    recipes = {name: recipe.at("lite") for name, recipe in load_detection_recipes().items()}
    assert (
        recipes["voc-10+10"].plan("DMC").slug == recipes["voc-aux-amount"].plan("All auxiliary data").slug == "kind-dmc"
    )
    assert recipes["voc-10+10"].plan("DMC, centred per teacher").slug == "kind-dmc-centring-per-teacher"
    paper = load_detection_recipes()
    assert paper["voc-19+1"].plan("DMC").slug == paper["voc-base-networks"].plan("Consolidated (ResNet-34)").slug
    assert paper["voc-19+1"].plan("Finetuning").slug == "kind-finetuning"


def test_the_papers_rows(dmc: Dmc, tmp_path: Path) -> None:
    """Each row has the classes that it should, and their mean is what the paper prints (to its rounding)."""
    recipes = load_detection_recipes()
    for name in ("voc-10+10", "voc-19+1", "voc-19+1-each"):
        for row in published(name):
            old, new = recipes[name].splits[row.get("setting", "")]
            known = {n for n, ap in zip(VOC, row["ap"], strict=True) if ap is not None}
            expected = {"Old classes": set(old), "New classes": set(new)}.get(row["row"], set(VOC))
            assert known == expected, (name, row)
            if row["all"] is not None:
                assert np.mean(row["ap"]) == pytest.approx(row["all"], abs=0.2), (name, row)
    paper = load_detection_profile("paper")
    assert (paper.arch, paper.size) == ("retinanet_resnet50_fpn", 640)
    assert (paper.consolidation.epochs, paper.consolidation.lr, paper.consolidation.batch_size) == (100, 1e-3, 12)
    assert recipes["voc-19+1"].new_arch == "retinanet_resnet34_fpn"
    said = dmc("reproduce", "voc-10+10", "--data-root", tmp_path, "-o", tmp_path / "x")
    assert said.code == 2
    assert "PASCAL VOC 2007 is missing: put VOCdevkit/VOC2007/ with ImageSets/Main/trainval.txt" in said.err
    assert "0.9 GB" in said.err
