"""Recipes as a researcher runs them, in seconds, on data made here in the official formats."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from matplotlib.colors import to_hex
from PIL import Image

from dmc.bench.engines import Job
from dmc.bench.reproduce import recipe_job
from dmc.bench.runner import Cell
from dmc.bench.tuning import FACTORS
from dmc.errors import DmcError
from dmc.files import write_text
from dmc.methods import title_of
from dmc.recipes.recipe import comparisons, load_recipes, published
from dmc.report.figures import LOOKS, look_of
from dmc.report.reproduce import draw, lwf_lines
from dmc.report.reproduction_page import reproduction_page
from tests.conftest import Answer, write_images

Dmc = Callable[..., Answer]


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write eight classes of coloured noise as CIFAR-100 and as CUB-200, and two sets of auxiliary images."""
    root = tmp_path_factory.mktemp("data")
    folder = root / "cifar-100-binary"
    folder.mkdir()
    (folder / "fine_label_names.txt").write_text("".join(f"class-{i}\n" for i in range(8)))
    draw = np.random.default_rng(0)
    for name, count in (("train.bin", 12), ("test.bin", 4)):
        labels = np.repeat(np.arange(8, dtype=np.uint8), count)
        pixels = (draw.integers(0, 90, (len(labels), 3072)) + 20 * labels[:, None]).astype(np.uint8)
        np.column_stack([labels, labels, pixels]).astype(np.uint8).tofile(folder / name)
    write_images(root / "tiny-imagenet-200" / "train" / "n02123045" / "images", 60)
    write_images(root / "dtd" / "images" / "banded", 40, seed=1)
    birds = root / "CUB_200_2011"
    rows = [(f"{c:03}.Bird_{c}", f"{i}.png", i < 8) for c in range(1, 7) for i in range(10)]
    for kind, file, _ in rows:
        (birds / "images" / kind).mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 255, (24, 24, 3), dtype=np.uint8)).save(birds / "images" / kind / file)
    lines = {
        "classes": [f"{c} {c:03}.Bird_{c}" for c in range(1, 7)],
        "images": [f"{i} {kind}/{file}" for i, (kind, file, _) in enumerate(rows)],
        "image_class_labels": [f"{i} {int(kind[:3])}" for i, (kind, _, _) in enumerate(rows)],
        "train_test_split": [f"{i} {int(train)}" for i, (_, _, train) in enumerate(rows)],
        "bounding_boxes": [f"{i} 2 2 20 20" for i in range(len(rows))],
    }
    for name, content in lines.items():
        (birds / f"{name}.txt").write_text("\n".join(content) + "\n")
    write_images(root / "birdsnap" / "download" / "images" / "Bald_Eagle", 40, seed=2)
    return root


SLOW = ("accuracy-g50", "confusion", "first-task", "exemplars")


@pytest.mark.parametrize(
    "name",
    ["losses", "aux-amount", "cub200", "overlap", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)],
)
def test_a_recipe_from_end_to_end(dmc: Dmc, data_root: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    said = dmc("reproduce", name, "--profile", "smoke", "--orders", 1, "--data-root", data_root, "-o", out, "--json")
    assert said.code == 0, said.err
    recipe = load_recipes()[name].at("smoke")
    rows = json.loads(said.out)
    settings = comparisons(load_recipes()[name], "smoke", {})
    wanted = {title_of(row) for row in recipe.all_rows}
    assert {(row["setting"], row["row"]) for row in rows} == {(c.setting, row) for c in settings for row in wanted}
    table = (out / f"{name}-smoke.md").read_text()
    assert recipe.title in table
    assert "profile smoke" in table
    assert "mean nothing" in table
    assert f"`dmc reproduce {name} --profile smoke --orders 1" in table
    assert "Minutes, not counting what was there before: " in table
    assert json.loads((out / f"{name}-smoke.json").read_text()) == rows
    assert (out / f"{name}-smoke.png").stat().st_size > 5_000


def test_published_numbers_stand_beside_the_measured(dmc: Dmc, data_root: Path, tmp_path: Path) -> None:
    said = dmc(
        "reproduce", "losses", "--profile", "smoke", "--orders", 1, "--data-root", data_root, "-o", tmp_path / "l"
    )
    assert said.code == 0, said.err
    row = next(line for line in said.out.splitlines() if line.startswith("| KD (T = 1)"))
    assert "46.95 ± 2.01" in row
    assert len([*(tmp_path / "l").rglob("first/learned")]) == 1  # trained once for the four settings


def test_overlapping_groups_are_taught_by_both(dmc: Dmc, data_root: Path, tmp_path: Path) -> None:
    out = tmp_path / "o"
    said = dmc(
        "reproduce", "overlap", "--profile", "smoke", "--orders", 1, "--data-root", data_root, "-o", out, "--json"
    )
    by_row = {row["row"]: row for row in json.loads(said.out)}
    assert {"only first", "common"} < set(by_row["Model 1"])
    assert "only second" not in by_row["Model 1"]
    assert {"common", "only second"} < set(by_row["Model 2"])
    assert {"only first", "common", "only second", "all"} < set(by_row["Consolidated"])
    config = json.loads(next(out.rglob("consolidated/run.json")).read_text())
    assert [len(teacher["classes"]) for teacher in config["teachers"]] == [4, 4]
    assert len(config["student"]["classes"]) == 6
    assert by_row["Consolidated"]["published"]["all"]  # the paper's numbers, though its groups were larger
    more = ("--also", "Mine: {loss: l1}", "--methods", "finetuning")
    command = ("reproduce", "overlap", "--profile", "smoke", "--orders", 1, "--data-root", data_root, "-o", out)
    rows = json.loads(dmc(*command, *more, "--json").out)
    assert {row["setting"] for row in rows} == {"g = 4", "Mine"}  # the user's variant is added to the recipe's
    mine = {row["row"]: row for row in rows if row["setting"] == "Mine"}
    assert set(mine) == {"Model 1", "Model 2", "Consolidated", "Finetuning"}
    assert mine["Finetuning"]["only first"]["mean"] == 0  # it forgot them all
    assert not any(row["published"] for row in mine.values())  # the paper has no numbers for it
    said = dmc(*command, "--also", "Three: {classes: 8}")
    assert (said.code, "Three: overlap is measured between two groups, not 3" in said.err) == (2, True)


def test_recipes_share_what_is_the_same_and_nothing_else(tmp_path: Path) -> None:
    def folders(name: str, also: Sequence[str] = ()) -> dict[str, tuple[Path, Path | None]]:
        job = recipe_job(name, "lite", 1, tmp_path, None, [], also, False)
        return {setting: (bench.folder, bench.common) for setting, bench in job.benches().items()}

    assert folders("accuracy-g10")["g = 10"] == folders("confusion")["g = 10"]
    assert folders("losses")["L2"] == folders("aux-amount")["8,000 images"]
    losses = folders("losses", ["Small: {arch: cifar_resnet14}"])
    assert len({cells for cells, _ in losses.values()}) == 5
    assert losses["L1"][1] == losses["L2"][1] != losses["Small"][1]  # another network needs its own specialists
    assert losses["L1"][1] == folders("accuracy-g10")["g = 10"][1]  # which has more classes, but begins with the same
    pools = folders("losses", ["A: {aux: a/photos}", "B: {aux: b/photos/}", "C: {aux: b/photos}"])
    assert pools["A"][0] != pools["B"][0] == pools["C"][0]


def test_a_recipe_takes_more_methods(dmc: Dmc, data_root: Path, tmp_path: Path) -> None:
    command = ("reproduce", "losses", "--profile", "smoke", "--orders", 1, "--data-root", data_root)
    said = dmc(*command, "--methods", "lwf.mc", "-o", tmp_path / "l", "--json")
    assert said.code == 0, said.err
    assert {row["row"] for row in json.loads(said.out)} == {"DMC", "LwF.MC"}
    assert "unknown method 'lwff'" in dmc(*command, "--methods", "lwff", "-o", tmp_path / "m").err


def test_settings_can_be_changed_in_all_rows_of_a_recipe(dmc: Dmc, data_root: Path, tmp_path: Path) -> None:
    """They are the last word, also where a row has its own; the report says so."""
    command = ("reproduce", "losses", "--profile", "smoke", "--orders", 1, "--data-root", data_root, "-o", tmp_path)
    changes = ("--set", "consolidation.epochs=2", "--set", "loss=l2", "--set", "temperature=null")
    said = dmc(*command, *changes, "--json")
    assert said.code == 0, said.err
    ran_as = "smoke with consolidation.epochs=2, loss=l2, temperature=null"
    assert {row["profile"] for row in json.loads(said.out)} == {ran_as}
    runs = [json.loads(run.read_text()) for run in tmp_path.rglob("consolidated/run.json")]
    assert {(run["loss"], run["schedule"]["epochs"]) for run in runs} == {("l2", 2)}
    assert f"(profile {ran_as})" in (tmp_path / "losses-smoke.md").read_text()
    assert reproduction_page(tmp_path).sections[0].title.endswith(f"({ran_as})")
    said = dmc(*command, "--set", "epochs=2")
    assert (said.code, "write specialist.epochs or consolidation.epochs" in said.err) == (2, True)


def test_missing_pools_are_named_or_left_out_when_asked(dmc: Dmc, data_root: Path, tmp_path: Path) -> None:
    command = ("reproduce", "aux-distribution", "--profile", "smoke", "--orders", 1, "--data-root", data_root)
    said = dmc(*command, "-o", tmp_path / "a")
    assert said.code == 2
    assert "MNIST is missing" in said.err
    assert "SVHN is missing" in said.err  # one error names all that is missing
    assert not (tmp_path / "a").exists()  # nothing was trained
    mine = write_images(tmp_path / "photos", 30, seed=5)
    said = dmc(*command, "-o", tmp_path / "a", "--skip-missing", "--also", f"My photos: {{aux: {mine}}}", "--json")
    assert said.code == 0, said.err
    assert "SVHN is left out: SVHN is missing" in said.err
    rows = json.loads(said.out)
    assert [row["setting"] for row in rows] == ["DTD", "Tiny-ImageNet", "My photos"]
    assert {row["profile"] for row in rows} == {"smoke"}
    assert all(row["published"] == {} for row in rows)  # the paper's one number is MNIST's


def test_the_list_says_what_each_recipe_needs(dmc: Dmc) -> None:
    said = dmc("reproduce", "--list")
    assert said.code == 0
    for name in ("accuracy-g5", "accuracy-g50", "first-task", "confusion", "aux-distribution", "losses", "aux-amount"):
        assert f"\n{name} " in f"\n{said.out}"
    found = json.loads(dmc("reproduce", "--list", "--json").out)
    assert found["cub200"]["data"]["birdsnap"]["from"].startswith("http://thomasberg.org")
    assert found["aux-distribution"]["settings"] == ["MNIST", "SVHN", "DTD", "Places365", "ImageNet32"]
    assert found["losses"]["group sizes"] == [20]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("loses",), "unknown recipe 'loses'; did you mean 'losses'?"),
        (("losses", "--profile", "papers"), "unknown profile 'papers'; did you mean 'paper'?"),
        (("losses", "--also", "nonsense"), "variant nonsense: write 'LABEL: {SETTING: VALUE}'"),
        (("losses", "--also", "Mine: {los: kd}"), "there is no setting 'los'; did you mean 'loss'?"),
        (
            ("losses", "--profile", "smoke", "--also", "Mine: {arch: cifar_resnet15}"),
            "cifar_resnet15: a CIFAR ResNet has depth",
        ),
        ((), "say which recipe"),
    ],
)
def test_bad_input(dmc: Dmc, data_root: Path, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    said = dmc("reproduce", *arguments, "--data-root", data_root, "-o", tmp_path / "x")
    assert said.code == 2
    assert words in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_published_rows_fit_the_recipes() -> None:
    """Published rows have names of the recipe's rows; others would never be shown."""
    for name, recipe in load_recipes().items():
        rows = published(name)
        settings = {c.setting for c in comparisons(recipe, "paper", {})}
        for row in rows:
            assert row["setting"] in settings
            numbers = {key: value for key, value in row.items() if key not in ("setting", "row", "ap")}
            assert set(numbers) <= set(recipe.columns)
            assert all(0 < value[0] < 100 for value in numbers.values())
    assert published("accuracy-g10") == []


@pytest.mark.slow
def test_tuning_picks_a_strength_on_images_held_out_of_two_groups(dmc: Dmc, tmp_path: Path) -> None:
    command = ("bench", "digits", "--group-size", 2, "--profile", "smoke", "--orders", 1, "--methods", "mas")
    said = dmc(*command, "--tune", "-o", tmp_path / "b", "--json")
    assert said.code == 0, said.err
    tried = json.loads((tmp_path / "b" / "tuning" / "order-0" / "mas" / "accuracies.json").read_text())
    assert [float(strength) for strength in tried] == pytest.approx([0.1 * factor for factor in FACTORS])
    best = float(max(tried, key=lambda strength: tried[strength]))
    run = json.loads((tmp_path / "b" / "order-0" / "mas" / "group-1" / "mas" / "run.json").read_text())
    assert run["task"]["strength"] == best
    trial = next((tmp_path / "b" / "tuning" / "order-0" / "mas").rglob("group-1/mas/run.json"))
    assert json.loads(trial.read_text())["data"]["images"] < run["data"]["images"]  # a tenth is held out
    assert len(list(trial.parents[2].glob("group-*"))) == 2
    assert "holds another comparison" in dmc(*command, "-o", tmp_path / "b").err


def test_settings_of_a_profile_can_be_changed(dmc: Dmc, tmp_path: Path) -> None:
    command = ("bench", "digits", "--group-size", 3, "--profile", "smoke", "--orders", 1, "--methods", "dmc,dmc+")
    changes = ("--set", "loss=kd", "--set", "consolidation.epochs=2", "--set", "selection=herding")
    said = dmc(*command, *changes, "-o", tmp_path / "b")
    assert said.code == 0, said.err
    assert "profile smoke with loss=kd, consolidation.epochs=2, selection=herding" in said.out
    config = json.loads(next((tmp_path / "b").rglob("consolidated/run.json")).read_text())
    assert (config["loss"], config["schedule"]["epochs"]) == ("kd", 2)
    assert yaml.safe_load((tmp_path / "b" / "bench.json").read_text())["profile"]["selection"] == "herding"
    assert "write SETTING=VALUE" in dmc(*command, "--set", "loss", "-o", tmp_path / "c").err
    said = dmc(*command, "--set", "consolidation.epochs=0", "-o", tmp_path / "c")
    assert "consolidation: epochs 0 should be greater than or equal to 1" in said.err


def test_amounts_are_drawn_with_and_without_a_spread_beside_lwf(data_root: Path, tmp_path: Path) -> None:
    """Of two amounts, one has a single finished order. LwF knows 2/2, 3/4 and 3/6 of the classes: 62.5% without the
    first group."""
    names = ("aux-amount", "accuracy-g10")
    job, other = (recipe_job(name, "smoke", 2, tmp_path, data_root, [], [], False) for name in names)
    assert lwf_lines(job, job.benches()) == []
    (bench,) = other.benches().values()
    for i, right in enumerate((2, 3, 3)):
        place = bench.cell_folder("lwf", 0) / f"group-{i}"
        place.mkdir(parents=True)
        classes = np.arange(2 * i + 2)
        confusion = np.zeros((len(classes), len(classes)), np.int64)
        confusion[classes, np.where(classes < right, classes, 0)] = 4
        np.save(place / "confusion.npy", confusion)
    for run in (bench, *job.benches().values()):
        write_text(run.folder / "order-0" / "groups.json", '[["a", "b"], ["c", "d"], ["e", "f"]]')
    (line,) = lwf_lines(job, job.benches())
    assert (line.label, line.x, line.y) == ("LwF, g = 2", [50, 100], [0.625, 0.625])
    assert line.look == look_of("lwf")
    rows = [
        {"row": "DMC", "method": "dmc", "setting": setting, "average incremental": {"mean": 0.5, "std": spread}}
        for setting, spread in zip(job.benches(), (0.1, None), strict=True)
    ]
    draw(job, job.benches(), rows, tmp_path / "amounts.png")
    assert (tmp_path / "amounts.png").stat().st_size > 5_000
    shares = recipe_job("aux-amount", "smoke", 2, tmp_path, data_root, [], [], False, ["aux_images=0.5"])
    draw(shares, shares.benches(), rows, tmp_path / "shares.png")  # which are no number to draw at
    assert not (tmp_path / "shares.png").exists()


def test_a_table_is_drawn_beside_the_papers_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars are as long as what was measured; the paper's stroke crosses the bar of its own row and column."""
    drawn: list[Any] = []
    monkeypatch.setattr("dmc.report.reproduce.save", lambda figure, _: drawn.append(figure))
    job = recipe_job("losses", "smoke", 1, tmp_path, None, [], [], False)
    rows = [
        {"row": "DMC", "method": "dmc", "setting": loss, "final": {"mean": mean, "std": None}, "published": paper}
        for loss, mean, paper in (("L1", 0.5, {}), ("L2", 0.25, {"final": [40.0, 2.0]}))
    ]
    draw(job, {}, rows, tmp_path / "losses.png")
    (incremental, final) = drawn[0].axes
    assert (incremental.get_title(), len(incremental.patches)) == ("average incremental", 0)
    first, second = final.patches
    assert (first.get_width(), second.get_width()) == (50, 25)
    (((x, top), (_, bottom)),) = final.collections[0].get_segments()
    assert x == 40
    assert (top, bottom) == pytest.approx((second.get_y(), second.get_y() + second.get_height()))
    assert [label.get_text() for label in incremental.get_yticklabels()] == ["L1", "L2"]
    assert len({look_of("dmc").colour, *(to_hex(bar.get_facecolor()) for bar in (first, second))}) == 3  # all is DMC


def test_rows_have_the_colours_of_their_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method keeps its colour where its row has another name; a teacher has a colour that no method has."""
    drawn: list[Any] = []
    monkeypatch.setattr("dmc.report.reproduce.save", lambda figure, _: drawn.append(figure))
    job = recipe_job("overlap", "smoke", 1, tmp_path, None, [], [], False)
    methods = {"Model 1": "old-classes", "Consolidated": "dmc", "Oracle": "oracle"}
    names = [{"row": row, "method": method} for row, method in methods.items()]
    rows = [name | {"setting": "g = 4", "common": {"mean": 0.5, "std": 0.1}, "published": {}} for name in names]
    draw(job, {}, rows, tmp_path / "overlap.png")
    colours = [to_hex(bar.get_facecolor()) for bar in drawn[0].axes[1].patches]
    assert colours[1:] == [look_of("dmc").colour, look_of("oracle").colour]
    assert colours[0] not in {look.colour for look in LOOKS.values()}


def test_an_engine_gets_all_comparisons_of_a_recipe_at_once(data_root: Path, tmp_path: Path) -> None:
    """Each cell once, also where a variant changes nothing."""
    given: list[Job] = []

    class Shelf:
        def run(self, jobs: Sequence[Job]) -> None:
            given.extend(jobs)

    also = ["Same as it was: {loss: l2}"]
    job = recipe_job("losses", "smoke", 2, tmp_path, data_root, [], also, skip_missing=False)
    with pytest.raises(DmcError, match="no cell is finished"):
        job.run(Shelf())
    wanted = {
        bench.cell_folder(method.name, order)
        for name, bench in job.benches().items()
        for method in job.rows_of(job.comparisons()[name]).values()
        for order in (0, 1)
    }
    assert len(wanted) < 2 * sum(len(job.rows_of(comparison)) for comparison in job.comparisons().values())
    assert sorted(cell.folder for cell in given if isinstance(cell, Cell)) == sorted(wanted)
