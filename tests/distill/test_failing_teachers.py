"""Teachers that answered when they were loaded, and fail later, at images: one line names the teacher."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dmc.distill.anchor_teachers import AnchorTeachers
from dmc.distill.teachers import Teachers
from dmc.errors import DmcError
from dmc.schedule import Schedule
from tests.conftest import classifiers, tiny
from tests.detectors import untrained

IMAGES = torch.zeros((4, 3, 16, 16), dtype=torch.uint8)


class Fickle(nn.Module):
    """A network that answers in another way if it sees several images."""

    def __init__(self, network: nn.Module, later: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.network, self.later = network, later

    def forward(self, images_NCHW: Tensor) -> object:
        answer = self.network(images_NCHW)
        return answer if len(images_NCHW) == 1 else self.later(answer)


def failing(answer: Tensor) -> Tensor:
    raise KeyError("gone\nand more")


@pytest.mark.parametrize(
    ("later", "said"),
    [
        (lambda answer: answer[:, :1], "tiny-1 gives 4x1 logits to 4 images, and has 2 classes"),
        (lambda answer: answer[:1], "tiny-1 gives 1x2 logits to 4 images, and has 2 classes"),
        (lambda answer: answer[..., None], "tiny-1 gives 4x2x1 logits to 4 images, and has 2 classes"),
        (lambda answer: None, "tiny-1 gives a NoneType, not a tensor of logits"),
        (failing, r"tiny-1 cannot answer: KeyError: 'gone\nand more'"),
    ],
)
def test_a_classifier_that_answers_in_another_way_later(
    aux_folder: Path, later: Callable[[Tensor], object], said: str
) -> None:
    fickle = tiny("ab", 1)
    fickle = fickle.with_module(Fickle(fickle.module, later))
    teachers = Teachers([tiny("cd", 2), fickle])
    with pytest.raises(DmcError) as error:
        teachers.logits(IMAGES)
    assert str(error.value) == said
    with pytest.raises(DmcError, match="tiny-1 "):
        classifiers([tiny("cd", 2), fickle], aux_folder, Schedule(epochs=1, batch_size=4)).run(None)


def test_a_teacher_for_which_there_is_no_memory_is_not_blamed() -> None:
    def full(answer: Tensor) -> Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    fickle = tiny("ab", 1)
    fickle = fickle.with_module(Fickle(fickle.module, full))
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        Teachers([tiny("cd", 2), fickle]).logits(IMAGES)


@pytest.mark.parametrize("part", ["logits", "boxes", "classes", "error"])
def test_a_detector_that_answers_in_another_way_later(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fickle, other = untrained("ab", seed=1), untrained("cd", seed=2)
    really = type(fickle.module).forward
    frames = torch.zeros((2, 3, 64, 64), dtype=torch.uint8)
    changes = {
        "logits": lambda a: a._replace(logits_NAK=a.logits_NAK[:, 1:]),
        "boxes": lambda a: a._replace(boxes_NAB=a.boxes_NAB[:1]),
        "classes": lambda a: a._replace(logits_NAK=a.logits_NAK[..., :1]),
        "error": failing,
    }
    monkeypatch.setattr(fickle.module, "forward", lambda images: changes[part](really(fickle.module, images)))
    with pytest.raises(DmcError, match=r"detector-1 (gives .* logits to 2 images|cannot answer: KeyError)") as error:
        AnchorTeachers([other, fickle]).detections(frames, [(64, 64)] * 2)
    assert "\n" not in str(error.value)
