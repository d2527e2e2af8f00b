"""Eq. 4 against numbers worked out on paper."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dmc.classes import ClassUnion
from dmc.config import Output
from dmc.data.preprocess import Preprocessing
from dmc.distill.targets import build_targets
from dmc.distill.teachers import Teachers
from dmc.errors import DmcError
from dmc.models.specialist import Specialist
from tests.conftest import tiny

# Two images. Old model: means 2 and 4. New model: means 1 and 2.
OLD = torch.tensor([[1.0, 3.0], [2.0, 6.0]])
NEW = torch.tensor([[3.0, 0.0, 0.0], [1.0, 1.0, 4.0]])


def test_each_teacher_is_centred_over_its_own_classes_image_by_image() -> None:
    target = build_targets([OLD, NEW], ClassUnion.of(["ab", "cde"]))
    assert target.tolist() == [[-1, 1, 2, -1, -1], [-2, 2, -1, -1, 2]]


def test_the_two_known_mistakes_would_be_seen() -> None:
    target = build_targets([OLD, NEW], ClassUnion.of(["ab", "cde"]))
    over_the_batch = torch.cat([OLD - OLD.mean(0), NEW - NEW.mean(0)], 1)
    jointly = torch.cat([OLD, NEW], 1) - torch.cat([OLD, NEW], 1).mean(1, keepdim=True)
    assert not torch.allclose(target, over_the_batch)
    assert not torch.allclose(target, jointly)


def test_shared_classes_get_the_mean_of_the_normalised_logits() -> None:
    # b: 1 from the old model and 2 from the new one; then 2 and -1.
    target = build_targets([OLD, NEW], ClassUnion.of(["ab", "bcd"]))
    assert target.tolist() == [[-1, 1.5, -1, -1], [-2, 0.5, -1, 2]]


def test_three_teachers_of_one_class_set_are_an_ensemble() -> None:
    logits = [torch.tensor([[0.0, 2.0]]), torch.tensor([[5.0, 5.0]]), torch.tensor([[10.0, 4.0]])]
    target = build_targets(logits, ClassUnion.of(["ab", "ab", "ba"]))
    # Centred: (-1, 1), (0, 0), and the third, whose order is b a: (a -3, b 3).
    torch.testing.assert_close(target, torch.tensor([[-4 / 3, 4 / 3]]))


def test_without_centring_logits_pass_as_they_are() -> None:
    target = build_targets([OLD, NEW], ClassUnion.of(["ab", "cde"]), centring="none")
    assert target.tolist() == [[1, 3, 3, 0, 0], [2, 6, 1, 1, 4]]


def test_scales_divide_each_teacher_after_centring() -> None:
    target = build_targets([OLD, NEW], ClassUnion.of(["ab", "cde"]), scales=[2.0, 0.5])
    assert target.tolist() == [[-0.5, 0.5, 4, -2, -2], [-1, 1, -2, -2, 4]]


class Fixed(nn.Module):
    """A network that answers every image with the same logits."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.expand(len(x), -1)


def fixed(names: str, *logits: float, output: Output = "softmax") -> Specialist:
    return Specialist(Fixed(*logits), names, Preprocessing(4), output, name=f"fixed-{names}")


IMAGE = torch.zeros((1, 3, 4, 4), dtype=torch.uint8)


def test_teachers_do_not_learn_and_do_not_drop_out() -> None:
    """Models that come as they were trained; the first has dropout and no norm, the second norms."""
    dropping = Specialist(nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(48, 2)), "ab", Preprocessing(4))
    norming = tiny("cd", 1)
    images = torch.randint(0, 256, (8, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    one_by_one = [torch.cat([model.logits(image[None]) for image in images]) for model in (dropping, norming)]
    prints = [model.fingerprint for model in (dropping, norming)]
    for model in (dropping, norming):
        model.module.train()
    teachers = Teachers([dropping, norming])
    for _ in range(2):  # as they are, then folded
        for found, expected in zip(teachers.each(images), one_by_one, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
        teachers.fold()
    assert [model.fingerprint for model in (dropping, norming)] == prints


def test_a_dropped_class_has_no_part_in_the_mean() -> None:
    """A teacher cut down to a and b is one whose head has only those rows: the 9 must not count."""
    teachers = Teachers([fixed("axb", 1, 9, 3).keep("ab"), fixed("cd", 0, 4)])
    assert teachers.classes.names == ("a", "b", "c", "d")
    assert teachers.logits(IMAGE).tolist() == [[-1, 1, -2, 2]]


def test_renaming_makes_classes_shared() -> None:
    teachers = Teachers([fixed("ab", 1, 3), fixed("cd", 0, 4).rename({"c": "b"})])
    assert teachers.union.shared == ("b",)
    assert teachers.logits(IMAGE).tolist() == [[-1, -0.5, 2]]


def test_pool_std_gives_every_teacher_the_same_spread() -> None:
    teachers = Teachers([tiny("abc", 1), tiny("def", 2)])
    images = torch.randint(0, 256, (64, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    teachers.measure_scales("pool-std", [images[:32], images[32:]])
    target_NT = teachers.logits(images)
    torch.testing.assert_close(target_NT[:, :3].std(), torch.tensor(1.0))
    torch.testing.assert_close(target_NT[:, 3:].std(), torch.tensor(1.0))


def test_balanced_gives_every_teacher_its_share_and_a_usual_spread() -> None:
    """Teachers of three and two classes win 3/5 and 2/5 of the images, though the second one's logits are larger."""
    quiet, loud = tiny("abc", 1), tiny("de", 2)
    with torch.no_grad():
        for parameter in loud.module.fc.parameters():  # type: ignore[union-attr]
            parameter.mul_(10)
    teachers = Teachers([quiet, loud])
    images = torch.randint(0, 256, (200, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert (teachers.logits(images).argmax(dim=1) >= 3).float().mean() > 0.9
    teachers.measure_scales("balanced", [images])
    target_NT = teachers.logits(images)
    assert (target_NT.argmax(dim=1) >= 3).float().mean() == pytest.approx(0.4, abs=0.01)
    spreads = [target_NT[:, :3].std(), target_NT[:, 3:].std()]
    torch.testing.assert_close((spreads[0] * spreads[1]).sqrt(), torch.tensor(3.0))


def test_auto_leaves_teachers_alone_that_are_alike() -> None:
    """Two teachers that win about half each are left alone; with logits a hundred times as large, both are scaled."""
    images = torch.randint(0, 256, (200, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    teachers = Teachers([tiny("ab", 1), tiny("cd", 2)])
    teachers.measure_scales("balanced", [images])
    assert teachers.scales is not None
    with torch.no_grad():
        for teacher, scale in zip(teachers.specialists, teachers.scales, strict=True):
            for parameter in teacher.module.fc.parameters():  # type: ignore[union-attr]
                parameter.div_(scale)
    scales = []
    for factor in (1, 100):
        with torch.no_grad():
            for teacher in teachers.specialists:
                for parameter in teacher.module.fc.parameters():  # type: ignore[union-attr]
                    parameter.mul_(factor)
        teachers.measure_scales("auto", [images])
        scales.append(teachers.scales)
    assert scales == [None, pytest.approx([100, 100], rel=0.01)]


def test_sigmoid_teachers_keep_their_absolute_log_odds() -> None:
    teachers = Teachers([fixed("ab", -4, -5, output="sigmoid"), fixed("c", 2, output="sigmoid")])
    assert teachers.logits(IMAGE).tolist() == [[-4, -5, 2]]


def test_teachers_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(DmcError, match="fixed-ab is softmax, fixed-cd is sigmoid"):
        Teachers([fixed("ab", 1, 2), fixed("cd", 1, 2, output="sigmoid")])
    with pytest.raises(DmcError, match="fixed-c has one class"):
        Teachers([fixed("ab", 1, 2), fixed("c", 1)])
    with pytest.raises(DmcError, match="at least two"):
        Teachers([fixed("ab", 1, 2)])


def test_logits_that_are_not_finite_name_the_teacher() -> None:
    with pytest.raises(DmcError, match="fixed-cd gives answers that are not finite"):
        Teachers([fixed("ab", 1, 2), fixed("cd", 1, float("nan"))]).logits(IMAGE)
