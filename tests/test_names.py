"""Class names as people type them on the command line: `--keep`, `--rename`, `--known`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import dmc as library
from dmc.data.open import open_labeled
from dmc.errors import DmcError
from tests.conftest import Answer, bad, tiny, write_images
from tests.test_cli import QUICK

Dmc = Callable[..., Answer]
ROBIN = "robin, American robin, Turdus migratorius"
BIRDS = [ROBIN, "jay", "zebra", "tabby, tabby cat"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Write a folder of images for each of several classes; a folder's name may hold a comma."""
    for i, name in enumerate(BIRDS):
        write_images(tmp_path / "data" / name, 4 + i, seed=i)
    return tmp_path / "data"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny(BIRDS).save(tmp_path / "model")


def classes_in(folder: Path) -> list[str]:
    names: list[str] = json.loads((folder / "config.json").read_text())["label_names"]
    return names


def test_names_with_commas_are_kept_everywhere(
    dmc: Dmc, tmp_path: Path, data: Path, model: Path, aux_folder: Path
) -> None:
    small = ("--arch", "cifar_resnet8", "--size", 16)
    said = dmc("train", data, "-o", tmp_path / "t", "--keep", f"{ROBIN},tabby", *small, *QUICK)
    assert said.code == 0, said.err
    assert classes_in(tmp_path / "t") == [ROBIN, "tabby, tabby cat"]
    other = tiny("ab", 1).save(tmp_path / "other")
    said = dmc("learn", other, data, "--aux", aux_folder, "-o", tmp_path / "l", "--keep", f"Zebra,{ROBIN}",
               "--specialist-epochs", 1, *QUICK)  # fmt: skip
    assert said.code == 0, said.err
    assert classes_in(tmp_path / "l") == ["a", "b", ROBIN, "zebra"]
    found = json.loads(dmc("evaluate", model, data, "--keep", f"jay,{ROBIN}", "--json").out)
    assert (set(found["per_class"]), found["images"]) == ({"jay", ROBIN}, 9)
    (tmp_path / "names.txt").write_text(f"{ROBIN}\njay\n")
    assert json.loads(dmc("evaluate", model, data, "--keep", f"@{tmp_path}/names.txt", "--json").out) == found
    check = ("check", model, other, "--aux", aux_folder, "--batch-size", 8, "--json")
    said = dmc(*check, "--keep", f"1:{ROBIN},n02123045", "--rename", "tabby=cat", "--rename", "1:american robin=bird")
    assert json.loads(said.out)["teachers"][0]["classes"] == ["bird", "cat"]
    bad(dmc("evaluate", model, data, "--keep", "jay,robbin"), f"{data} has no class 'robbin'")


def test_only_the_classes_that_it_knows(dmc: Dmc, tmp_path: Path, data: Path) -> None:
    model = tiny(["jay", "tabby, tabby cat", "owl"]).save(tmp_path / "m")
    said = dmc("evaluate", model, data, "--known", "--json")
    assert said.code == 0
    assert said.err == f"dmc: 10 images of 2 classes that {model} does not know are left out, such as {ROBIN!r}\n"
    found = json.loads(said.out)
    assert (set(found["per_class"]), found["images"]) == ({"jay", "tabby, tabby cat"}, 12)
    alone = json.loads(dmc("evaluate", model, data, "--keep", "jay,tabby", "--json").out)
    assert alone == found
    assert dmc("evaluate", model, data, "--known", "--keep", "jay").err == ""  # nothing was left out
    assert library.evaluate(model, data, known=True).per_class == found["per_class"]


def test_what_is_missing_is_said_before_any_image_is_decoded(
    dmc: Dmc, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("dog1", "dog2", "dog3"):
        write_images(data / name, 2)
    monkeypatch.setattr("dmc.data.decode.upright_rgb", None)  # decoding would fail
    model = tiny(["zebras", "dog"]).save(tmp_path / "m")
    said = dmc("evaluate", model, data)
    bad(said, f"{model} does not know 7 of the 7 classes in {data}: 'dog1' (did you mean 'dog'?), 'dog2'")
    bad(said, "'jay', 'robin, American robin, Turdus migratorius', ...; known leaves them out, rename OLD=NEW")
    assert "zebra" not in said.err  # the message names five of the seven
    bad(dmc("evaluate", model, data, "--keep", "zebra"), "'zebra' (did you mean 'zebras'?); known")
    said = dmc("evaluate", model, data, "--known")
    bad(said, "does not know 7 of the 7 classes")
    assert "leaves them out" not in said.err  # that is what it was asked for


def test_classes_of_the_data_get_the_names_of_the_model(dmc: Dmc, tmp_path: Path, data: Path) -> None:
    """Two classes of the data may be one class of the model."""
    model = tiny(["bird", "zebra", "cat"]).save(tmp_path / "m")
    said = dmc(
        "evaluate", model, data, "--rename", "robin=bird", "--rename", "jay=Bird", "--rename", "tabby=cat", "--json"
    )
    assert (said.code, said.err) == (0, "")
    found = json.loads(said.out)
    assert (set(found["per_class"]), found["images"]) == ({"bird", "zebra", "cat"}, 22)
    for name, own in (("bird", [ROBIN, "jay"]), ("zebra", ["zebra"]), ("cat", ["tabby, tabby cat"])):
        answers = [
            next(iter(answer))
            for folder in own
            for answer in library.predict(model, sorted((data / folder).iterdir()), top=1)
        ]
        assert found["per_class"][name] == pytest.approx(answers.count(name) / len(answers))
    bad(dmc("evaluate", model, data, "--rename", "robin"), "--rename robin: write OLD=NEW")
    bad(dmc("evaluate", model, data, "--rename", "owl=bird"), f"{data} has no class 'owl'")
    bad(dmc("evaluate", model, data, "--known", "--rename", "jay=brid"), "has no class 'brid'; did you mean 'bird'?")


def test_images_under_other_names_stay_what_they_are(data: Path) -> None:
    source = open_labeled(data).rename({"robin": "bird", "jay": "bird", "tabby": "cat"})
    new_name = {ROBIN: "bird", "jay": "bird", "tabby, tabby cat": "cat", "zebra": "zebra"}
    shown = [(source.classes[record.label], new_name[Path(record.name).parent.name]) for record in source.records(1)]
    assert len(shown) == 22
    assert all(said == true for said, true in shown)
    assert list(source.labels()) == [record.label for record in source.records()]


def test_folders_named_by_wordnet_ids_and_first_words(dmc: Dmc, tmp_path: Path, model: Path) -> None:
    """ImageNet's folders are named like that."""
    for i, name in enumerate(("n02123045", "robin", "zebra")):
        write_images(tmp_path / "ids" / name, 3, seed=i)
    said = dmc("evaluate", model, tmp_path / "ids", "--json")
    assert said.code == 0, said.err
    assert set(json.loads(said.out)["per_class"]) == {"tabby, tabby cat", ROBIN, "zebra"}
    assert said.err.startswith(
        f"dmc: {model} has other names for 2 classes of {tmp_path}/ids, such as 'tabby, tabby cat'"
    )


def test_words_that_may_mean_two_classes(dmc: Dmc, tmp_path: Path, data: Path, aux_folder: Path) -> None:
    birds = tiny(["robin, redbreast", ROBIN]).save(tmp_path / "birds")
    two = (birds, tiny("ab").save(tmp_path / "ab"))
    several = f"2 classes that 'robin' may mean: 'robin, redbreast' or {ROBIN!r}"
    bad(dmc("check", *two, "--aux", aux_folder, "--keep", "1:robin"), f"{birds} has {several}")
    bad(dmc("check", *two, "--aux", aux_folder, "--rename", "robin=bird"), several)
    write_images(tmp_path / "robins" / "robin", 2)
    with pytest.raises(DmcError, match="does not know 1 of the 1 classes"):
        library.evaluate(birds, tmp_path / "robins")


def test_an_unfinished_learn_says_how_to_go_on(
    dmc: Dmc, tmp_path: Path, data: Path, aux_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed as the new specialist is finished, before the merge has begun."""
    old = tiny("ab").save(tmp_path / "old")
    learn = ("learn", old, data, "--aux", aux_folder, "-o", tmp_path / "n", "--specialist-epochs", 2, *QUICK,
             "--checkpoint-every", 0)  # fmt: skip

    def killed(*_: object, **__: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr("dmc.training.run_folder.Run.finish", killed)
        with pytest.raises(RuntimeError):
            dmc(*learn)
    assert not (tmp_path / "n" / "run.json").exists()
    image = aux_folder / "000.png"
    go_on = f"{tmp_path}/n holds a run that is not finished: resume it first"
    bad(dmc("predict", tmp_path / "n", image), go_on)
    bad(dmc("evaluate", tmp_path / "n", data), go_on)
    assert dmc(*learn, "--resume").code == 0
    assert dmc("predict", tmp_path / "n", image).code == 0
