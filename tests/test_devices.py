"""Everything on a GPU, as far as it can be shown without one: on a pretended one, and on torch's fake tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dmc
from dmc.bench.runner import Bench, every_tracker
from dmc.config import LossName
from dmc.data.batch import Batch
from dmc.data.detection_batch import DetectionBatch
from dmc.data.loader import ALONE, ImageLoader, Share
from dmc.distill.anchor_teachers import AnchorTeachers
from dmc.distill.classifier_objective import Distillation
from dmc.distill.detector_objective import DetectionDistillation
from dmc.distill.teachers import TeacherGroup, Teachers
from dmc.jobs import Merge
from dmc.methods import METHODS
from dmc.methods.adapted_shmelkov import WithOldOutputs
from dmc.methods.fixed_representation import NewRowsOnly
from dmc.methods.icarl import SigmoidDistillation
from dmc.methods.importance import Penalty, Regularised
from dmc.methods.lwf import WithoutForgetting
from dmc.models.detector import Detector
from dmc.models.model import Model
from dmc.models.specialist import Specialist
from dmc.recipes.profile import Profile
from dmc.schedule import Schedule
from dmc.training.classification import Supervised
from dmc.training.detection import DetectionLoss
from dmc.training.loop import fit
from dmc.training.objective import Objective
from dmc.training.run_folder import Run
from tests.conftest import tiny, write_images
from tests.detectors import TINY, small, untrained, write_voc
from tests.fake_gpu import MixedDevicesError, OnGpu, PretendedGpu, fake_cuda, gpu

QUICK = Schedule(epochs=1, lr=1e-3, batch_size=2)
CUDA = torch.device("cuda")
FCOS, SSD = "fcos:timm/test_resnet,width=64,depth=1", "ssdlite320_mobilenet_v3_large"
KINDS = ("green", "red", "blue")
COLOURS = (*KINDS, "grey")
ONCE = ("index", "per_channel", "laid_alike")  # constants are made, and shapes compared, at first use


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a stream of four classes, with auxiliary images."""
    folder = tmp_path_factory.mktemp("pictures")
    for part, count in (("train", 4), ("test", 2)):
        for i, name in enumerate(COLOURS):
            write_images(folder / part / name, count, seed=i, colour=i if i < 3 else None, size=16)
    write_images(folder / "aux", 4, seed=9, size=16)
    return folder


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a stream of scenes with three kinds of squares, with auxiliary images."""
    folder = tmp_path_factory.mktemp("scenes")
    write_voc(folder / "train", 6, KINDS)
    write_voc(folder / "test", 2, KINDS, seed=1)
    write_images(folder / "aux", 4, size=64)
    return folder


@pytest.fixture
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let merges train at once; how they are timed before, the test of all verbs shows."""
    monkeypatch.setattr(Merge, "timed", lambda _, planned, trained=0: planned)


def is_on_the_gpu(model: Model) -> bool:
    return all(isinstance(value, OnGpu) for value in model.module.state_dict().values())


def require_no_waits(pretended: PretendedGpu) -> None:
    """Refuse steps that wait for the device.

    Only torchvision's losses do, which take rows by masks, and their gradients.
    """
    lines = {line for line in pretended.waits_in_steps if not line.endswith(ONCE)}
    theirs = {line for line in lines if line.startswith("torchvision/")}
    assert lines - theirs - ({"gradients"} if theirs else set()) == set()
    assert pretended.steps > 0


def test_the_pretended_gpu_refuses_what_a_gpu_refuses() -> None:
    with gpu():
        ours, host = torch.tensor([1.0, 2.0, 3.0], device=CUDA), torch.tensor([0, 2, 1])
        assert (ours.device, ours.device == CUDA) == (torch.device("cuda:0"), False)
        for mixture in (
            lambda: ours + host,
            lambda: host[ours.long()],
            lambda: ours.gather(0, host),
            lambda: torch.cat([ours, host]),
            lambda: torch.cat([ours, host.sum()[None]]),
            lambda: torch.stack([ours.sum(), host.sum()]),
            lambda: ours.index_put_((host,), host.float()),
            lambda: host.add_(ours),
            lambda: torch.allclose(ours, host.float()),
            lambda: torch.nn.functional.cross_entropy(ours[None], host[:1]),
        ):
            with pytest.raises(MixedDevicesError):
                mixture()
        with pytest.raises(RuntimeError, match="numpy"):
            ours.numpy()
        assert (ours * host.sum() + ours[host]).tolist() == [4, 9, 11]  # one number, or an index, may be the host's
        ours[:2] = host[:2].float()
        assert ours.tolist() == [0, 2, 3]


def test_the_pretended_gpu_counts_what_a_host_waits_for() -> None:
    def waits(of: Callable[[Tensor], object]) -> tuple[int, int]:
        with gpu() as pretended:
            ours = torch.ones(3, device=CUDA)
            pretended.uploads.clear()
            of(ours)
            return pretended.reads.total(), pretended.uploads.total()

    host = torch.tensor([1, 2])
    for read in (
        lambda t: t.sum().item(),
        lambda t: float(t.sum()),
        lambda t: bool((t > 0).all()),
        lambda t: t.tolist(),
        lambda t: t.cpu(),
        lambda t: t.nonzero(),
        lambda t: t[t > 0],
        lambda t: torch.where(t > 0),
        lambda t: torch.zeros(3).copy_(t),
    ):
        assert waits(read) == (1, 0)
    for upload in (lambda t: t[host], lambda t: t[[0, 1]], lambda t: host.to(CUDA), lambda t: t[:2].copy_(host)):
        assert waits(upload) == (0, 1)
    for free in (
        lambda t: t[0] * 2,
        lambda t: t.masked_fill(t > 0, 5.0),
        lambda t: host.to(CUDA, non_blocking=True),
        lambda t: t[t.argsort()],
        lambda t: torch.nn.functional.one_hot(t.long(), 2),
    ):
        assert waits(free) == (0, 0)


@pytest.fixture(scope="module")
def benches(pictures: Path, scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[type[Model], Bench]:
    """Set up a comparison for each kind of model, in which the first group's model is shared."""

    def bench(stream: Path, group_size: int, **network: Any) -> Bench:
        profile = Profile(name="test", specialist=QUICK, consolidation=QUICK, **network)
        return Bench(str(stream), group_size, profile, tmp_path_factory.mktemp("bench"))

    return {
        Specialist: bench(pictures, 2, arch="cifar_resnet8", size=16),
        Detector: bench(scenes, 1, arch=TINY, size=64, classes=2),
    }


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name, method in METHODS.items() for kind in (Specialist, Detector) if method.serves(kind)],
)
def test_every_method(benches: dict[type[Model], Bench], name: str, kind: type[Model]) -> None:
    """Two groups, from the first model to what is measured: no devices are mixed, and no step waits."""
    with gpu() as pretended:
        benches[kind].first(benches[kind].open(0), order=0)
        assert benches[kind].run_cell(METHODS[name], order=0) == ""
    assert pretended.operations[torch.ops.aten.convolution.default] > 10
    if pretended.steps:
        require_no_waits(pretended)


def interrupt_after_a_checkpoint(train: Callable[[], Model]) -> None:
    write = Run.checkpoint

    def interrupted(*state: Any) -> None:
        write(*state)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "checkpoint", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train()


def verbs(data: Path, names: Sequence[str], out: Path, teacher: Model, **settings: Any) -> list[Model]:
    """Go through every verb: what is trained is interrupted, resumed, loaded, merged, taught more, and asked."""
    learned, test, aux, first = names[:2], data / "test", data / "aux", sorted((data / "aux").iterdir())[0]

    def train() -> Model:
        how: dict[str, Any] = {"schedule": QUICK, "resume": True, "checkpoint_every": 0, **settings}
        return dmc.train(data / "train", out / "own", keep=learned, val=test, **how)

    interrupt_after_a_checkpoint(train)
    own = train()
    assert own.fingerprint == train().fingerprint  # which reads it
    others = {key: value for key, value in settings.items() if key != "arch"} | {"schedule": QUICK}
    assert dmc.check([own, teacher], aux, **others)["aux"]["images"] == 4
    both = dmc.consolidate([out / "own", teacher], aux, out / "both", **others)
    more = dmc.learn(both, data / "train", aux, keep=names[2:], val=None, specialist_schedule=QUICK, **others)
    assert more.names == (*learned, *teacher.names, *names[2:])
    for model in (more, [dmc.load(out / "own"), teacher]):
        dmc.evaluate(model, test, keep=learned)
    assert len(dmc.predict(more, first)) == 1
    return [own, both, more]


def test_every_verb_for_classifiers(pictures: Path, tmp_path: Path) -> None:
    """The pretended GPU computes what the CPU does, so the models are the same bit for bit; it needs no doubles."""

    def made(place: str) -> list[Model]:
        return verbs(pictures, COLOURS, tmp_path / place, tiny("xy"), arch="cifar_resnet8", size=16, weights=None)

    with gpu(doubles=False) as pretended:
        models = made("gpu")
        assert all(map(is_on_the_gpu, models))
        found = [model.fingerprint for model in models]
    require_no_waits(pretended)
    assert [model.fingerprint for model in made("cpu")] == found


@pytest.mark.slow
def test_every_verb_for_detectors(scenes: Path, tmp_path: Path) -> None:
    with gpu(doubles=False) as pretended:
        models = verbs(scenes, KINDS, tmp_path, untrained("xy"), arch=TINY, size=64, weights=None)
        assert all(map(is_on_the_gpu, models))
    require_no_waits(pretended)


@pytest.mark.parametrize("arch", [FCOS, SSD])
@pytest.mark.usefixtures("untimed")
def test_every_other_family_of_detectors(arch: str, scenes: Path) -> None:
    """Each has its own loss, its own outputs for a part of its classes, and its own boxes."""
    given: dict[str, Any] = {"weights": None, "size": 64, "schedule": QUICK.changed({"batch_size": 4})}
    with gpu() as pretended:
        own = dmc.train(scenes / "train", keep=["blue"], val=None, arch=arch, **given)
        part = untrained("xyz", arch).keep("xy")
        both = dmc.consolidate([own, part], scenes / "aux", aux_limit=2, **given)
        dmc.evaluate([own, both], scenes / "test", known=True)
    require_no_waits(pretended)


@pytest.mark.usefixtures("untimed")
def test_detectors_that_are_unlike(scenes: Path) -> None:
    """What they find is matched to the student's anchors on the device."""
    with gpu() as pretended:
        pair, quick = [small("ab"), small("c", FCOS)], QUICK.changed({"batch_size": 4})
        dmc.consolidate(pair, scenes / "aux", arch=TINY, weights=None, aux_limit=4, schedule=quick)
    require_no_waits(pretended)


@pytest.mark.slow
def test_a_detector_of_another_size_is_looked_at_before_another_is_trained(scenes: Path) -> None:
    """Its boxes are taken back to the batch's pixels on the device."""
    quick = QUICK.changed({"batch_size": 4})
    settings: dict[str, Any] = {"arch": TINY, "size": 64, "weights": "random", "schedule": quick}
    with gpu():
        made = untrained("ab", FCOS)
        old = Detector(made.module, "ab", replace(made.preprocessing, size=96), "sigmoid", made.arch)
        dmc.learn(old, scenes / "train", scenes / "aux", val=None, specialist_schedule=quick, **settings)


@pytest.mark.parametrize("kind", [Specialist, Detector])
@pytest.mark.usefixtures("untimed")
def test_kept_answers_of_teachers(kind: type[Model], pictures: Path, scenes: Path, tmp_path: Path) -> None:
    """Answers go to the host while the next step runs, and are not read before they are there."""

    def merged(place: str) -> str:
        teachers: list[Model] = [untrained("ab"), untrained("cd", seed=1)]
        data, size = scenes, 64
        if kind is Specialist:
            teachers, data, size = [tiny("ab"), tiny("cd", seed=1)], pictures, 16
        given: dict[str, Any] = {"views": 1, "size": size, "weights": None, "cache": str(tmp_path / place)}
        model: Model = dmc.consolidate(teachers, data / "aux", schedule=QUICK.changed({"epochs": 2}), **given)
        return model.fingerprint

    with gpu() as pretended:
        found = merged("gpu")
    require_no_waits(pretended)
    assert found == merged("cpu")


@pytest.mark.parametrize("kind", ["labels", "classifiers", "detectors"])
@pytest.mark.usefixtures("untimed")
def test_reads_do_not_grow_with_the_steps(kind: str, pictures: Path, scenes: Path) -> None:
    """Numbers are read when something is logged or saved: as often in an epoch of 2 steps as in one of 1."""

    def reads(batch_size: int) -> Counter[str]:
        given: dict[str, Any] = {"weights": None, "schedule": QUICK.changed({"batch_size": batch_size})}
        with gpu() as pretended:
            if kind == "labels":
                dmc.train(pictures / "train", keep=COLOURS[:2], val=None, arch="cifar_resnet8", size=16, **given)
            elif kind == "classifiers":
                dmc.consolidate([tiny("ab"), tiny("cd", seed=1)], pictures / "aux", **given)
            else:
                dmc.consolidate([untrained("ab"), untrained("c", seed=1)], scenes / "aux", size=64, **given)
        assert pretended.steps == (8 if kind == "labels" else 4) // batch_size
        return pretended.reads

    assert reads(batch_size=2) == reads(batch_size=4)


class SameBatch(ImageLoader):
    """Gives one batch again and again."""

    def __init__(self, batch: Batch) -> None:
        self.batch, self.count = batch, len(batch)

    def batches(self, seed: int, batch_size: int, first_step: int = 0, share: Share = ALONE) -> Iterator[Batch]:
        while True:
            yield self.batch

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        yield self.batch


def pixels(size: int) -> Tensor:
    return torch.zeros((2, 3, size, size), dtype=torch.uint8)


def classified() -> Batch:
    return Batch(pixels(16), torch.zeros(2, dtype=torch.long))


def annotated(size: int) -> Batch:
    boxes, labels = [torch.ones((3, 4))] * 2, [torch.zeros(3, dtype=torch.long)] * 2
    return DetectionBatch(pixels(size), torch.zeros(2), [(size, size)] * 2, boxes, labels, [None] * 2)


def distilled(loss: LossName) -> tuple[Model, Objective, Batch]:
    student, teachers = tiny("abcd"), Teachers([tiny("ab"), tiny("cd")]).to(CUDA)
    return student, Distillation(student, teachers, loss, 2.0), classified()


def regularised() -> tuple[Model, Objective, Batch]:
    """Watch and restrain with everything that methods have for it."""
    wide = tiny("abcd").to(CUDA)
    anchor = {name: weight.detach().clone() for name, weight in wide.module.named_parameters()}
    penalty = Penalty({name: torch.ones_like(weight) for name, weight in anchor.items()}, 1.0, limit=9.0)
    return wide, Regularised(wide, "cd", every_tracker(wide.module, Specialist), anchor, penalty), classified()


def of_wide(objective: Callable[[Specialist, Specialist], Objective]) -> tuple[Model, Objective, Batch]:
    wide = tiny("abcd")
    return wide, objective(wide, tiny("ab")), classified()


def detecting(arch: str, size: int) -> tuple[Model, Objective, Batch]:
    detector = untrained("ab", arch)
    return detector, DetectionLoss(detector, "ab"), annotated(size)


def detecting_as_taught() -> tuple[Model, Objective, Batch]:
    student, teachers = untrained("abc"), AnchorTeachers([untrained("ab"), untrained("c")]).to(CUDA)
    return student, DetectionDistillation(student, teachers, "l2", 1.0), annotated(64)


def detecting_as_before() -> tuple[Model, Objective, Batch]:
    wide = untrained("abc")
    return wide, WithOldOutputs(wide, untrained("ab"), "ac", 64), annotated(64)


@pytest.mark.parametrize(
    "made",
    [
        lambda: (tiny("ab"), None, classified()),
        lambda: distilled("l2"),
        lambda: distilled("l1"),
        lambda: distilled("kd"),
        lambda: of_wide(lambda wide, old: WithoutForgetting(wide, old, ("c", "d"), [2], 1.0)),
        lambda: of_wide(lambda wide, old: NewRowsOnly(wide, old, ("c", "d"))),
        lambda: of_wide(lambda wide, old: SigmoidDistillation(wide, old, "abcd")),
        regularised,
        lambda: detecting(TINY, 64),
        lambda: detecting(FCOS, 64),
        detecting_as_taught,
        detecting_as_before,
    ],
)
def test_every_objective_on_torchs_fake_tensors(
    made: Callable[[], tuple[Model, Objective | None, Batch]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch has its own rules about which devices an operation takes, and refuses what breaks them."""
    monkeypatch.setattr(TeacherGroup, "fold", lambda _: None)  # fake tensors cannot be copied as modules are
    with fake_cuda(), Run(None, {}) as run:
        model, objective, batch = made()
        objective = objective or Supervised(model, "ab")  # type: ignore[arg-type]
        at = fit(model.module, objective, SameBatch(batch), QUICK, run, seed=0, what="test")
        assert (at.step, model.device) == (1, torch.device("cuda:0"))
