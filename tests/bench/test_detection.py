"""The detection recipes, in seconds, on scenes made here, and the choice of COCO images, on a made-up file."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmc.bench.coco import IN_COCO, VOC, with_other_objects, without_voc_objects
from dmc.bench.reproduce import recipe_job
from dmc.bench.runner import Bench
from dmc.data.annotations import Objects
from dmc.errors import DmcError
from dmc.methods import method_named, methods_named
from dmc.models.detector import Detector
from dmc.recipes.profile import load_profile
from dmc.recipes.recipe import comparisons, load_recipes, published
from dmc.schedule import DETECTION
from tests.bench.test_reach import reachable
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
    """`coco-others` show one of the 60 other categories, with or without VOC's; `coco-exclusive` show none of VOC's."""
    path = coco(
        tmp_path,
        {"a": ["zebra"], "b": ["zebra", "tv"], "c": ["couch", "person"], "d": [], "e": ["kite", "kite"], "f": ["cat"]},
    )
    assert with_other_objects(path, tmp_path).files == ["a", "b", "e"]
    assert without_voc_objects(path, tmp_path).files == ["a", "e"]
    path.write_text(json.dumps({"images": [], "annotations": [], "categories": [{"id": 1, "name": "zebra"}]}))
    with pytest.raises(DmcError, match="has no category 'airplane'"):
        with_other_objects(path, tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("voc-10+10", marks=pytest.mark.slow),
        pytest.param("voc-19+1-each", marks=pytest.mark.slow),
        "voc-base-networks",
        pytest.param("voc-aux-amount", marks=pytest.mark.slow),
    ],
)
def test_a_detection_recipe_from_end_to_end(dmc: Dmc, data_root: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    command = ("reproduce", name, "--profile", "smoke", "--data-root", data_root, "-o", out)
    said = dmc(*command, "--json")
    assert said.code == 0, said.err
    rows = json.loads(said.out)
    recipe = load_recipes()[name].at("smoke")
    assert [(row["setting"], row["row"]) for row in rows] == [(s, r) for s in recipe.all_variants for r in recipe.rows]
    assert "failed" not in said.err
    for row in rows:
        assert all(0 <= value["mean"] <= 1 for value in row["per class"].values())
        assert f"{row['row']} 0." in (out / f"{name}-smoke.md").read_text()  # minutes
    stamps = {p: p.stat().st_mtime_ns for p in out.rglob("model.safetensors")}
    said = dmc(*command)
    assert said.code == 0
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps  # finished rows are not made again
    assert "profile smoke" in said.out
    assert "mean nothing" in (out / f"{name}-smoke.md").read_text()
    assert (out / f"{name}-smoke.png").stat().st_size > 5_000
    require_made_as_planned(name, [json.loads(p.read_text()) for p in out.rglob("group-1/*/run.json")])


def require_made_as_planned(name: str, runs: list[Any]) -> None:
    """Check that each row's model was trained as its recipe says."""
    tasks = [run["task"]["name"] for run in runs if "task" in run]
    mergers = [run for run in runs if "teachers" in run]
    teachers = [[len(teacher["classes"]) for teacher in run["teachers"]] for run in mergers]
    if name == "voc-10+10":
        assert sorted(tasks) == ["AdaptedShmelkov", "Detection"]
        assert sorted(run["centring"] for run in mergers) == ["none", "per-teacher"]
        assert teachers == [[5, 5]] * 2
    if name == "voc-19+1-each":
        assert teachers == [[2, 1]] * 3
    if name == "voc-aux-amount":
        seen = sorted((run["aux"]["images"], run["schedule"]["epochs"]) for run in mergers)
        assert seen == [(4, 4), (8, 2), (16, 1)]
    if name == "voc-base-networks":
        assert [teacher["arch"].split(",")[0] for teacher in mergers[0]["teachers"]] == [
            "retinanet:timm/test_resnet",
            "retinanet:timm/test_efficientnet",
        ]


@pytest.mark.slow
def test_a_table_has_a_column_for_each_class(dmc: Dmc, data_root: Path, tmp_path: Path) -> None:
    """A row is tested on the classes that it knows; another setting and a user's own method add rows."""
    command = ("reproduce", "voc-base-networks", "--profile", "smoke", "--data-root", data_root, "-o", tmp_path / "v")
    said = dmc(*command, "--also", "Larger boxes: {box_weight: 2}", "--methods", "finetuning")
    assert said.code == 0, said.err
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in said.out.splitlines() if line[:1] == "|"]
    assert lines[0] == ["setting", "row", "bus", "cat", "dog", "old", "new", "all", "COCO AP50"]
    rows = [line[:2] for line in lines[2:]]
    labels = ["Old classes", "Consolidated, a smaller network", "Finetuning"]
    assert rows == [[setting, label] for setting in ("", "Larger boxes") for label in labels]
    old, merged = lines[2], lines[3]
    assert [place for place, cell in enumerate(old[2:]) if not cell] == [2, 4, 5]  # dog, new, all
    assert all(merged[1:])
    weights = {p: json.loads(p.read_text())["box_weight"] for p in (tmp_path / "v").rglob("consolidated/run.json")}
    assert sorted(weights.values()) == [1, 2]
    assert len([*(tmp_path / "v").rglob("first/learned")]) == 1  # trained once for both settings


@pytest.mark.slow
def test_detectors_are_compared_on_any_groups(dmc: Dmc, data_root: Path, tmp_path: Path) -> None:
    """Detectors run like classifiers: classes in an order, in several groups."""
    serving = {"finetuning", "adapted-shmelkov", "dmc", "dmc++", "inference-twice", "oracle"}
    assert {method.name for method in methods_named("all", Detector)} == serving
    command = ("bench", "voc", "--group-size", 1, "--set", "classes=3", "--profile", "smoke", "--orders", 1)
    some = ("--methods", "adapted-shmelkov,dmc,inference-twice")
    said = dmc(*command, *some, "--data-root", data_root, "-o", tmp_path / "b", "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert set(found) < serving
    assert {tuple(row["classes"]) for row in found.values()} == {(1, 2, 3)}
    assert len({row["accuracy"][0] for row in found.values()}) == 1  # the first group's model is shared
    said = dmc(*command, "--methods", "lwf", "--data-root", data_root, "-o", tmp_path / "c")
    assert (said.code, "lwf cannot train detectors, which voc needs: leave it out" in said.err) == (2, True)
    given = ("bench", "voc", "--profile", "smoke", "--orders", 2, "--methods", "finetuning", "--data-root", data_root)
    said = dmc(*given, "-o", tmp_path / "g")
    assert "# voc, 5 + 5 classes, profile smoke" in said.out
    runs = [json.loads(p.read_text()) for p in sorted((tmp_path / "g").glob("order-*/finetuning/group-1/*/run.json"))]
    assert [run["seed"] for run in runs] == [0, 1]  # all that differs, where the groups are given


def test_a_lesson_shows_no_objects_of_other_groups(data_root: Path, tmp_path: Path) -> None:
    """A lesson has images of old objects only if they also show new ones, and never their boxes."""
    bench = Bench("voc", 0, load_profile("smoke", "voc"), tmp_path, data_root)
    stream = bench.open(0)
    lesson = bench.lesson(stream, method_named("finetuning"), order=0, i=1)
    assert lesson.data.classes == tuple(sorted(stream.groups[1]))
    objects = [thing for thing in reachable(lesson) if isinstance(thing, Objects)]
    assert len(objects) == len(lesson.data) < len(stream.train)
    assert all((one.labels_M < len(lesson.data.classes)).all() for one in objects)
    everyone = [record.annotation for record in stream.train.records() if record.annotation]
    known = {stream.train.classes.index(name) for name in stream.groups[1]}
    boxes = sum(label in known for one in everyone for label in one.labels_M.tolist())
    assert sum(len(one.boxes_M4) for one in objects) == boxes < sum(len(one.boxes_M4) for one in everyone)
    everything = bench.lesson(stream, method_named("oracle"), order=0, i=1)
    assert set(everything.data.classes) == set(stream.so_far(1))


def test_settings_of_classifiers_are_refused(dmc: Dmc, data_root: Path, tmp_path: Path) -> None:
    said = dmc("bench", "voc", "--set", "balance=true", "--data-root", data_root, "-o", tmp_path / "b")
    assert (said.code, said.err) == (2, "dmc: balance is a setting of classifiers\n")


def test_recipes_share_what_they_have_in_common(tmp_path: Path) -> None:
    """Rows with the same settings share folders, and all splits share detectors."""

    def benches(name: str, profile: str) -> dict[str, Bench]:
        return recipe_job(name, profile, 1, tmp_path, None, [], [], False).benches()

    assert benches("voc-10+10", "lite")[""].folder == benches("voc-aux-amount", "lite")[""].folder
    paper = benches("voc-19+1", "paper")[""]
    assert paper.folder == benches("voc-base-networks", "paper")["Class 20 (ResNet-34)"].folder
    assert paper.folder == benches("voc-19+1-each", "paper")["tvmonitor"].folder
    other = benches("voc-10+10", "paper")
    assert {bench.common for bench in other.values()} == {paper.common}
    assert len({bench.folder for bench in other.values()} | {paper.folder}) == 4
    assert other[""].common != benches("voc-10+10", "lite")[""].common


def test_the_papers_rows(dmc: Dmc, tmp_path: Path) -> None:
    """Each published row has the right classes, and their mean is what the paper prints (to its rounding)."""
    recipes = load_recipes()
    for name in ("voc-10+10", "voc-19+1", "voc-19+1-each"):
        groups = {c.setting: c.profile.groups for c in comparisons(recipes[name], "paper", {})}
        for row in published(name):
            old, new = groups[row["setting"]]
            known = {n for n, ap in zip(VOC, row["ap"], strict=True) if ap is not None}
            expected = {"Old classes": set(old), "New classes": set(new)}.get(row["row"], set(VOC))
            assert known == expected, (name, row)
            if "all" in row:
                assert np.mean(row["ap"]) == pytest.approx(row["all"][0], abs=0.2), (name, row)
    paper = load_profile("paper", "voc", recipes["voc-19+1"].settings)
    assert (paper.arch, paper.new_arch, paper.weights) == (
        "retinanet_resnet50_fpn",
        "retinanet_resnet34_fpn",
        "imagenet",
    )
    assert paper.specialist == paper.consolidation == DETECTION
    assert Detector.architectures.preprocessing(paper.arch).size == 640
    said = dmc("reproduce", "voc-10+10", "--data-root", tmp_path, "-o", tmp_path / "x")
    assert said.code == 2
    assert "PASCAL VOC 2007 is missing: put VOCdevkit/VOC2007/ImageSets/Main/trainval.txt" in said.err
    assert said.err.count("MS COCO 2017 training images is missing") == 1
    assert "0.9 GB" in said.err
