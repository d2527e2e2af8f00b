"""What goes beyond the paper on request: a student and a specialist that begin as the old model, and new images."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import dmc
from dmc import beginning
from dmc.data.annotations import open_annotated
from dmc.data.detection_batch import ShorterSide
from dmc.data.loader import open_loader
from dmc.data.open import open_images
from dmc.data.readers import ArrayImages
from dmc.data.subsets import ListedImages, Repeated, Unlabeled
from dmc.errors import DmcError
from dmc.methods import METHODS
from dmc.methods.base import Learned, Lesson
from dmc.models.model import Model
from dmc.models.specialist import Specialist
from dmc.recipes.profile import load_profile
from tests.conftest import SMALL, classifiers, require_unlike, tiny, write_images
from tests.detectors import small
from tests.methods.conftest import lesson

NOISE = np.random.default_rng(0).integers(0, 256, (240, 16, 16, 3), dtype=np.uint8)
STILL = dmc.Schedule(epochs=1, batch_size=16, lr=1e-12, weight_decay=0)
OUTPUTS = ("fc", "head.classification_head.cls_logits")  # names of weights that have a row for each class
IMAGES = torch.from_numpy(NOISE[:4]).permute(0, 3, 1, 2)


def run_json(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return content


def require_alike(model: Model, other: Model) -> None:
    """Fail unless all layers but the last are another network's."""
    theirs = other.module.state_dict()
    for name, weight in model.module.named_parameters():
        if not name.startswith("fc"):
            torch.testing.assert_close(weight, theirs[name], rtol=1e-4, atol=1e-6)


def test_a_student_may_begin_as_the_first_teacher() -> None:
    first, second = tiny("ab", 1), tiny("cd", 2)
    student = classifiers([first, second], NOISE, STILL, from_teacher=True).student
    assert student.names == ("a", "b", "c", "d")
    with torch.no_grad():
        torch.testing.assert_close(student.logits(IMAGES)[:, :2], first.logits(IMAGES))
    require_alike(student, first)
    require_unlike(classifiers([first, second], NOISE, STILL).student, first)


def grown_from(model: Any, names: str, by: float) -> Any:
    """Give a model of other classes with the weights of one, all but those of outputs a little larger."""
    grown = type(model).untrained(str(model.arch), names, model.preprocessing, seed=3, weights=None)
    grown.begin_as(model)
    with torch.no_grad():
        for name, weight in grown.module.named_parameters():
            if not name.startswith(OUTPUTS):
                weight.add_(by)
    return grown


@pytest.mark.parametrize("kind", [tiny, small])
@pytest.mark.parametrize(("nearly", "moved", "words"), [(9, 0.5e-3, "the mean of its"), (0, 0, "the first teacher")])
def test_a_student_begins_as_the_mean_of_its_teachers_if_that_is_near_their_answers(
    kind: Any, nearly: float, moved: float, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beginning, "NEARLY", nearly)
    first = kind("ab", seed=1)
    second, images = grown_from(first, "cd", by=1e-3), write_images(tmp_path / "images", 40, size=64)
    settings: dict[str, Any] = {"from_teacher": True, "schedule": STILL} | ({"balance": False} if kind is tiny else {})
    student = dmc.consolidate([first, second], images, **settings)
    for name, weight in first.module.named_parameters():
        if not name.startswith(OUTPUTS):
            torch.testing.assert_close(student.module.get_parameter(name), weight + moved, rtol=1e-4, atol=1e-6)
    assert words in student.provenance["began as"]


def test_only_teachers_of_the_students_shape_have_a_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grey one of the same architecture has other first weights."""
    monkeypatch.setattr(beginning, "NEARLY", 9)
    grey = Specialist.untrained("cifar_resnet8", "cd", replace(SMALL, mean=(0.5,), std=(0.5,)), seed=2)
    student = dmc.consolidate([tiny("ab", 1), grey], NOISE, from_teacher=True, schedule=STILL, balance=False)
    assert student.provenance["began as"] == "the first teacher"


def test_the_mean_of_classifiers_has_the_outputs_of_those_that_know_a_class() -> None:
    """Of b, which is the second's first, the mean of both; of e, which nobody knows, what was there."""
    first, second, student = tiny("ab", 1), tiny("bc", 2), tiny("abce", 3)
    mean = student.as_mean_of([first, second]).module
    rows = [model.module.get_parameter("fc.weight") for model in (first, second, student)]
    expected = torch.stack([rows[0][0], (rows[0][1] + rows[1][0]) / 2, rows[1][1], rows[2][3]])
    torch.testing.assert_close(mean.get_parameter("fc.weight"), expected)
    body = [model.module.get_parameter("conv1.weight") for model in (first, second)]
    torch.testing.assert_close(mean.get_parameter("conv1.weight"), sum(body) / 2)
    assert torch.equal(student.module.get_parameter("fc.weight"), rows[2])


def test_the_mean_of_detectors_has_the_outputs_of_each_anchor() -> None:
    first, second, student = small("ab", seed=1), small("c", seed=2), small("cab", seed=3)
    name = "head.classification_head.cls_logits.bias"
    biases = [torch.arange(9 * classes) + start for classes, start in ((2, 0.0), (1, 100.0))]
    for model, bias in zip((first, second), biases, strict=True):
        model.module.get_parameter(name).data.copy_(bias)
    found = student.as_mean_of([first, second]).module.get_parameter(name).view(9, 3)
    assert found[0].tolist() == [100, 0, 1]
    assert found[8].tolist() == [108, 16, 17]


def test_a_student_of_another_shape_cannot_begin_as_a_teacher() -> None:
    with pytest.raises(
        DmcError, match=r"begins as its first teacher .tiny-1. has its architecture, its size, and all of"
    ):
        classifiers([tiny("ab", 1), tiny("cd", 2)], NOISE, STILL, from_teacher=True, arch="cifar_resnet14")


@pytest.mark.parametrize(("new", "joining", "times"), [(40, 40, 2), (200, 120, 1)])
def test_new_images_join_the_auxiliary_ones(new: int, joining: int, times: int, tmp_path: Path) -> None:
    """All of them, or half as many as there are auxiliary ones; none is among those to compare on.

    40 beside 216 are a sixth of all; shown twice, they are about a quarter.
    """
    bright = ArrayImages(np.full((new, 16, 16, 3), 255, dtype=np.uint8), np.arange(new) % 2, ("c", "d"))
    alone = classifiers([tiny("ab", 1), tiny("cd", 2)], NOISE, STILL)
    assert (alone.trained_on, "joining" in alone.run_json) == (216, False)
    merge = classifiers([tiny("ab", 1), tiny("cd", 2)], NOISE, STILL, bright)
    assert (merge.held_out, merge.trained_on) == (24, 216 + joining * times)
    assert (merge.run_json["joining"]["images"], merge.run_json["joining"]["times"]) == (joining, times)
    seen, unseen = merge.open_loaders(tmp_path)
    white = [sum(int((batch.images_N3HW == 255).all(dim=(1, 2, 3)).sum()) for batch in loader.in_order(16))
             for loader in (seen, unseen)]  # fmt: skip
    assert (seen.count, unseen.count, white) == (216 + joining * times, 24, [joining * times, 0])
    assert all(bool((batch.labels_N == -1).all()) for batch in seen.in_order(16))


def test_repeated_images_are_spread_over_an_epoch(tmp_path: Path) -> None:
    """Also in a stream, where each copy comes in an order of its own."""
    few = ArrayImages(NOISE[:20], np.arange(20) % 2, ("c", "d"))
    two = ArrayImages(NOISE[:2], np.arange(2), ("c", "d"))
    pair = [tiny("ab", 1), tiny("cd", 2)]
    assert classifiers(pair, NOISE[20:], STILL, few, held_out=0).times == 4
    assert classifiers(pair, NOISE[20:], STILL, two, held_out=0).times == 10  # not 37: they would be learned by heart
    names = [record.name for record in Repeated(Unlabeled(few), 4).records(seed=3)]
    orders = {tuple(names[start : start + 20]) for start in range(0, 80, 20)}
    assert (len(names), len(set(names)), len(orders)) == (80, 20, 4)


def test_answers_about_repeated_images_are_kept_once(tmp_path: Path) -> None:
    """By hand: 220 auxiliary images, and 20 new ones that are shown four times.

    A row has 8 bytes, and for both teachers and both views a checksum of 4 bytes and 2 fp16 logits.
    """
    first, second = tiny("ab", 1), tiny("cd", 2)
    new = ArrayImages(NOISE[:20], np.arange(20) % 2, ("c", "d"))
    merge = classifiers([first, second], NOISE[20:], STILL, new, held_out=0, cache=str(tmp_path / "answers"))
    assert merge.trained_on == 220 + 4 * 20
    assert merge.cache is not None
    kept = merge.teachers.kept()
    assert merge.cache.bytes_for(kept) == 240 * (8 + 2 * 2 * (4 + 2 * 2))


def test_without_images_to_spare_students_are_compared_on_auxiliary_ones_alone(tmp_path: Path) -> None:
    new = ArrayImages(np.zeros((8, 16, 16, 3), dtype=np.uint8), np.arange(8) % 2, ("c", "d"))
    merge = classifiers([tiny("ab", 1), tiny("cd", 2)], NOISE[:40], STILL, new, held_out=0)
    assert [loader.count for loader in merge.open_loaders(tmp_path)] == [40 + 2 * 8, 40]


def test_recipe_best_begins_as_the_old_model_and_looks_at_new_images(labeled_folder: Path, tmp_path: Path) -> None:
    old, out = tiny("ab", 1), tmp_path / "l"
    learned = dmc.learn(
        old, labeled_folder, NOISE, out, recipe="best", schedule=STILL, specialist_schedule=STILL, balance=False
    )
    require_alike(learned, old)
    require_alike(dmc.load(out / "specialist"), old)
    assert run_json(out)["joining"]["images"] == 32
    assert run_json(out)["from_teacher"] is True
    assert run_json(out / "specialist")["task"]["begins_as"] == old.fingerprint
    assert "labeled" in learned.provenance["images besides"]


def test_what_is_set_goes_before_the_recipe(labeled_folder: Path, tmp_path: Path) -> None:
    old, out = tiny("ab", 1), tmp_path / "l"
    settings: dict[str, Any] = {"recipe": "best", "from_old": False, "use_new": False, "from_teacher": False}
    learned = dmc.learn(old, labeled_folder, NOISE, out, schedule=STILL, specialist_schedule=STILL, **settings)
    require_unlike(learned, old)
    require_unlike(dmc.load(out / "specialist"), old)
    assert not {"joining", "from_teacher"} & run_json(out).keys()


def test_a_specialist_that_begins_as_the_old_model_takes_smaller_steps(labeled_folder: Path, tmp_path: Path) -> None:
    old, out = tiny("ab", 1), tmp_path / "l"
    dmc.learn(old, labeled_folder, NOISE, out, from_old=True, schedule=STILL, specialist_epochs=1)
    assert run_json(out / "specialist")["schedule"]["lr"] == 0.05
    dmc.learn(old, labeled_folder, NOISE, out, from_old=True, schedule=STILL, specialist_epochs=1, resume=True)


def test_recipes_that_contradict_each_other(labeled_folder: Path) -> None:
    with pytest.raises(DmcError, match=r"profile 'paper' .* recipe 'best' goes beyond it"):
        dmc.consolidate([tiny("ab", 1), tiny("cd", 2)], NOISE, recipe="best", profile="paper")
    with pytest.raises(DmcError, match="cannot begin with the weights of tiny-1, a cifar_resnet8"):
        dmc.learn(tiny("ab", 1), labeled_folder, NOISE, from_old=True, arch="cifar_resnet14")


def test_recipe_best_of_detectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The student begins as the first teacher, and more anchors teach it. What is set goes before that."""
    monkeypatch.setattr(beginning, "NEARLY", 0.0)  # the mean of two that know nothing is as near as the first of them
    pair, out = [small("ab", seed=1), small("cd", seed=2)], tmp_path / "out"
    images = write_images(tmp_path / "images", 8, size=64)
    student = dmc.consolidate(pair, images, out, recipe="best", schedule=STILL, report=False)
    asked = run_json(out)
    assert (asked["anchors"], asked["from_teacher"]) == (512, True)
    for name, weight in student.module.named_parameters():
        if "cls_logits" not in name:
            torch.testing.assert_close(weight, pair[0].module.get_parameter(name), rtol=1e-4, atol=1e-6)
    out = tmp_path / "other"
    dmc.consolidate(pair, images, out, recipe="best", anchors=32, schedule=STILL, report=False)
    assert run_json(out)["anchors"] == 32


def test_begin_as_copies_all_but_the_outputs() -> None:
    """Also where the number of classes is the same, so that no shape differs."""
    old, new = tiny("ab", 1), tiny("cd", 2)
    own = new.module.get_parameter("fc.weight").clone()
    new.begin_as(old)
    require_alike(new, old)
    assert torch.equal(new.module.get_parameter("fc.weight"), own)


def test_detectors_may_begin_as_the_old_one_and_look_at_new_scenes(
    squares: Path, unlabeled: Path, tmp_path: Path
) -> None:
    old, out = small("ab", seed=1), tmp_path / "l"
    still = STILL.changed({"algorithm": "adam"})
    beyond: dict[str, Any] = {"from_old": True, "use_new": True, "from_teacher": True, "weights": "random"}
    learned = dmc.learn(old, squares, unlabeled, out, schedule=still, specialist_schedule=still, **beyond)
    assert run_json(out)["joining"]["images"] == 20  # half as many as there are auxiliary images
    assert set(learned.names) == {"a", "b", "red", "green", "blue"}
    theirs = old.module.state_dict()
    for model in (learned, dmc.load(out / "specialist")):
        for name, weight in model.module.named_parameters():
            if "cls_logits" not in name:
                torch.testing.assert_close(weight, theirs[name], rtol=1e-3, atol=1e-5)


def test_recipe_best_lets_detectors_look_at_new_scenes(squares: Path, unlabeled: Path, tmp_path: Path) -> None:
    still = STILL.changed({"algorithm": "adam"})
    asked: dict[str, Any] = {"recipe": "best", "schedule": still, "specialist_schedule": still, "weights": "random"}
    dmc.learn(small("ab", seed=1), squares, unlabeled, tmp_path / "l", **asked)
    told = run_json(tmp_path / "l")
    assert (told["joining"]["images"], told["from_teacher"], told["anchors"]) == (20, True, 512)
    assert "with_labels" not in told


def test_dmc_plus_plus_begins_as_the_old_model(tmp_path: Path) -> None:
    given = lesson(ArrayImages(NOISE[:32], np.arange(32) % 2, ("c", "d")), tmp_path)
    profile = given.profile.changed({"specialist": STILL, "consolidation": STILL})
    old = tiny("ab", 1)
    learned = METHODS["dmc++"].learn(Learned([old]), replace(given, aux=ArrayImages(NOISE), profile=profile)).model
    assert learned.names == ("a", "b", "c", "d")
    require_alike(learned, old)
    require_alike(dmc.load(tmp_path / "specialist"), old)
    told = run_json(tmp_path / "consolidated")
    assert (told["joining"]["images"], told["views"], told["balance"], told["scale"]) == (32, 2, True, "auto")
    assert run_json(tmp_path / "specialist")["schedule"]["lr"] == STILL.lr / 2


def test_dmc_plus_plus_of_detectors_leaves_what_is_set(
    squares: Path, unlabeled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe's number of anchors is for those who name none."""
    monkeypatch.setattr(beginning, "NEARLY", 0.0)
    still = STILL.changed({"algorithm": "adam"})
    profile = load_profile("smoke", "voc", {"anchors": 32}).changed({"specialist": still, "consolidation": still})
    aux, data = open_images(unlabeled), open_annotated(squares)
    given = Lesson(data, aux, profile, 0.0, 1, tmp_path / "lesson", tmp_path / "shared" / "group-1")
    old = small("ab", seed=1, arch=profile.arch)
    METHODS["dmc++"].learn(Learned([old]), given)
    assert run_json(tmp_path / "lesson" / "consolidated")["anchors"] == 32


def test_inference_twice_scales_its_specialists(tmp_path: Path) -> None:
    """The same network twice, once with outputs a hundredth as large: scaled by its own spread, it is as loud."""
    given = lesson(ArrayImages(NOISE[:32], np.arange(32) % 2, ("c", "d")), tmp_path)
    aux = ArrayImages(NOISE)
    method = METHODS["inference-twice"]
    assert not method.needs_aux(given.profile)
    scaled = given.profile.changed({"scale": "pool-std"})
    assert method.needs_aux(scaled)
    loud, faint = tiny("ab", 1), tiny("ab", 1)
    with torch.no_grad():
        for name in ("fc.weight", "fc.bias"):
            faint.module.get_parameter(name).mul_(0.01)
    method.learn(Learned([loud]), replace(given, aux=aux, profile=scaled)).save(tmp_path / "loud")
    method.learn(Learned([faint]), replace(given, aux=aux, profile=scaled)).save(tmp_path / "faint")
    answers = [method.predictor(Learned.load(tmp_path / name)).logits(IMAGES) for name in ("loud", "faint")]
    torch.testing.assert_close(*answers, rtol=1e-3, atol=1e-4)
    assert 0.2 < float(answers[0][:, :2].std()) < 5


def test_new_images_that_lie_among_the_auxiliary_ones_are_refused(labeled_folder: Path) -> None:
    for aux in (labeled_folder, labeled_folder / "red", labeled_folder.parent):
        with pytest.raises(DmcError, match="are named twice, and would count twice"):
            dmc.learn(tiny("ab", 1), labeled_folder, aux, use_new=True, schedule=STILL)


def test_a_student_that_begins_as_a_teacher_has_its_shape_unless_asked_otherwise() -> None:
    """Not the largest teacher's, which would be the usual choice."""
    large = Specialist.untrained("cifar_resnet14", "cd", SMALL, seed=2)
    assert dmc.check([tiny("ab", 1), large], NOISE)["student"]["arch"] == "cifar_resnet14"
    assert dmc.check([tiny("ab", 1), large], NOISE, recipe="best")["student"]["arch"] == "cifar_resnet8"
    with pytest.raises(DmcError, match="either with imagenet weights or with its first teacher's"):
        dmc.check([tiny("ab", 1), large], NOISE, from_teacher=True, weights="imagenet")
    with pytest.raises(DmcError, match=r"choose these, or let it begin anew \(`from_teacher=False`\)"):
        classifiers([tiny("abe", 1).keep(["a", "b"]), large], NOISE, STILL, from_teacher=True)


def test_repeated_names_do_not_keep_images_from_joining(tmp_path: Path) -> None:
    """A name that was held out is left out as often as it occurs, so fewer images come than were counted."""
    twice = ListedImages(
        ArrayImages(NOISE), [r._replace(name=f"{i // 2}") for i, r in enumerate(ArrayImages(NOISE).records())]
    )
    new = ArrayImages(NOISE[:8], np.arange(8) % 2, ("c", "d"))
    merge = classifiers([tiny("ab", 1), tiny("cd", 2)], twice, STILL, new)
    seen, unseen = merge.open_loaders(tmp_path)
    assert unseen.count == 24
    assert 72 + 240 - 2 * 24 <= seen.count < 72 + 240 - 24


def test_beginnings_are_compared_on_as_many_images_whatever_their_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Portraits and landscapes in turn make batches of one image."""
    monkeypatch.setattr(beginning, "IMAGES", 12)
    for i in range(20):
        Image.new("RGB", (32, 48) if i % 2 else (48, 32)).save(tmp_path / f"{i:02d}.png")
    loader = open_loader(open_images(tmp_path), ShorterSide(32))
    assert [len(batch) for batch in beginning.first_of(loader)] == [1] * 12
