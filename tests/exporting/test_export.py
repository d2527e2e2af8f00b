"""Exported files: they answer as the model does, by the programs of others, and say what the model knows."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import dmc as library
from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError
from dmc.exporting.export import FORMATS, made_images
from dmc.models.detector import Detector
from dmc.models.one_stage import Answers, OneStage, Targets
from dmc.models.specialist import Specialist
from dmc.tasks.detector_export import difference
from tests.conftest import Answer, bad, load_detector, load_specialist, tiny, write_images
from tests.onnx_files import network, write

Dmc = Callable[..., Answer]
IMAGES_N3HW = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
SHOWN = Preprocessing(16, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3), "bicubic", 0.9)
DOCS = Path(__file__).parents[2] / "docs"


def small(output: Any = "softmax", shown: Preprocessing = SHOWN) -> Specialist:
    """Make a network that is traced quickly, and sure of its answers; it has no architecture name."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        features = [nn.Conv2d(shown.channels, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
        module = nn.Sequential(*features, nn.Flatten(), nn.Linear(8, 4))
        nn.init.normal_(next(module[-1].parameters()), std=3)
    return Specialist(module, "abcd", shown, output, name="small")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a network of our own as a folder, and export it beside that."""
    folder = tmp_path_factory.mktemp("exported") / "model"
    tiny(["cat", "dog", "owl"]).save(folder)
    photos = write_images(folder.parent / "photos", 3)
    library.export(folder, folder.with_suffix(".onnx"), images=photos)
    return folder


@pytest.fixture(scope="module")
def pixels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export two classes of four, with the preprocessing inside."""
    path = tmp_path_factory.mktemp("exported") / "pixels.onnx"
    library.export(small().keep("db"), path, pixels=True)
    return path


def ask(path: Path, images: Tensor) -> list[Tensor]:
    """Run a file as others would, without dmc."""
    session = onnxruntime.InferenceSession(path)
    return [torch.from_numpy(answer) for answer in session.run(None, {"images": images.numpy()})]


def test_an_exported_file_is_the_same_model(saved: Path) -> None:
    model, file = load_specialist(saved), load_specialist(saved.with_suffix(".onnx"))
    assert (file.names, file.preprocessing, file.output) == (model.names, model.preprocessing, model.output)
    torch.testing.assert_close(file.logits(IMAGES_N3HW), model.logits(IMAGES_N3HW), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(file.logits(IMAGES_N3HW[:1]), model.logits(IMAGES_N3HW[:1]), atol=1e-5, rtol=1e-4)
    for count in (1, 7):
        seen = model.preprocessing(IMAGES_N3HW[:1].expand(count, 3, 16, 16))
        assert ask(saved.with_suffix(".onnx"), seen)[0].shape == (count, 3)


def test_the_verbs_take_it(dmc: Dmc, saved: Path, tmp_path: Path) -> None:
    for name in ("cat", "owl"):
        write_images(tmp_path / "data" / name, 5, seed=len(name))
    answers = [dmc("evaluate", model, tmp_path / "data") for model in (saved, saved.with_suffix(".onnx"))]
    assert answers[0].out == answers[1].out != ""
    picture = tmp_path / "data" / "cat" / "000.png"
    told = [json.loads(dmc("predict", m, picture, "--json").out) for m in (saved, saved.with_suffix(".onnx"))]
    for name, probability in told[0][0]["classes"].items():
        assert told[1][0]["classes"][name] == pytest.approx(probability, abs=1e-5)


def test_the_file_names_no_path_of_this_machine(saved: Path) -> None:
    content = saved.with_suffix(".onnx").read_bytes()
    assert b".py" not in content
    model = onnx.load(saved.with_suffix(".onnx"))
    said = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(said["names"]) == {"0": "cat", "1": "dog", "2": "owl"}
    assert json.loads(said["dmc.json"])["classes"] == ["cat", "dog", "owl"]


def test_pixels_in_probabilities_out(pixels: Path) -> None:
    """Of the kept classes alone; and at any square size, as `Specialist.probabilities` takes it."""
    model = small().keep("db")
    for side in (16, 23, 9):
        images_N3HW = torch.randint(0, 256, (3, 3, side, side), dtype=torch.uint8)
        (found_NK,) = ask(pixels, images_N3HW)
        torch.testing.assert_close(found_NK, model.probabilities(images_N3HW), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(found_NK.sum(dim=1), torch.ones(3))
    file = load_specialist(pixels)
    assert (file.names, file.preprocessing.crop_pct, file.preprocessing.interpolation) == (("b", "d"), 0.9, "bicubic")
    torch.testing.assert_close(file.logits(IMAGES_N3HW), model.logits(IMAGES_N3HW), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("format", ["torch-export", "torchscript"])
@pytest.mark.parametrize("inside", [False, True])
def test_torchs_own_formats(tmp_path: Path, format: Any, inside: bool) -> None:
    model = small("sigmoid", Preprocessing(16, (0.5,), (0.2,)))
    path = tmp_path / f"model{FORMATS[format].suffix}"
    made = library.export(model, path, format, pixels=inside)
    assert made.difference < 1e-5
    extra = {"dmc.json": ""}
    if format == "torchscript":
        run = torch.jit.load(str(path), _extra_files=extra)  # type: ignore[no-untyped-call]
    else:
        run = torch.export.load(path, extra_files=extra).module()
    said = json.loads(extra["dmc.json"])
    assert (said["classes"], said["output"], said["input"]) == (
        ["a", "b", "c", "d"],
        "sigmoid",
        "pixels" if inside else "normalised",
    )
    for count in (1, 5):
        images_N3HW = IMAGES_N3HW[:count]
        wanted = model.probabilities(images_N3HW) if inside else model.logits(images_N3HW).detach()
        torch.testing.assert_close(run(images_N3HW if inside else model.preprocessing(images_N3HW)), wanted)


def test_the_documented_ten_lines_run_an_exported_file(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "export.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(code.strip().splitlines()) <= 12
    assert "dmc" not in re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)
    (tmp_path / "merged.onnx").write_bytes(saved.with_suffix(".onnx").read_bytes())
    picture = write_images(tmp_path, 1, size=25) / "000.png"
    picture.rename(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    (answer,) = library.predict(load_specialist(saved), "photo.jpg", top=1)
    assert answer is not None
    assert capsys.readouterr().out.split()[0] == next(iter(answer))


# Detectors.


class OneLevel(OneStage):
    """A detector with one square anchor at each place of one level, so that it is traced quickly."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.backbone, self.head = nn.Conv2d(3, 8, 32, 32), nn.Conv2d(8, classes + 4, 1)

    def forward(self, images_N3HW: Tensor) -> Answers:
        grid_NJHW = self.head(self.backbone(images_N3HW).relu())
        places_NAJ = grid_NJHW.flatten(2).transpose(1, 2)
        rows, columns = torch.arange(grid_NJHW.shape[2]), torch.arange(grid_NJHW.shape[3])
        corners_A2 = 32.0 * torch.stack(torch.meshgrid(rows, columns, indexing="ij")[::-1], dim=-1).view(-1, 2)
        anchors_A4 = torch.cat([corners_A2, corners_A2 + 64], dim=1)  # neighbours overlap, so that some are suppressed
        return Answers(places_NAJ[..., 4:], places_NAJ[..., :4], anchors_A4, [])

    def scores(self, logits_NAK: Tensor, boxes_NAB: Tensor) -> Tensor:
        return logits_NAK.sigmoid()

    def decoded(self, boxes_MB: Tensor, anchors_M4: Tensor) -> Tensor:
        return anchors_M4 + boxes_MB

    def encoded(self, boxes_M4: Tensor, anchors_M4: Tensor) -> Tensor:
        raise NotImplementedError

    def answer(self, head: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def objective(self, answers: Answers, targets: Targets) -> dict[str, Tensor]:
        raise NotImplementedError


def detector(bias: float = -3) -> Detector:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = OneLevel(5)
        assert isinstance(module.head, nn.Conv2d)
        assert module.head.bias is not None
        nn.init.normal_(module.head.weight)
        nn.init.constant_(module.head.bias, bias)
    return Detector(module, "abcde", Preprocessing(160), "sigmoid", name="finds").keep("dbe")


@pytest.fixture(scope="module")
def frames() -> list[Tensor]:
    shapes = ((160, 192), (256, 160), (256, 320))
    return [torch.randint(0, 256, (1, 3, *shape), dtype=torch.uint8) for shape in shapes]


def found_by(model: Detector, frame: Tensor) -> list[Tensor]:
    return [torch.from_numpy(part) for part in model.detections(frame, [(frame.shape[2], frame.shape[3])])[0]]


def test_a_detectors_file_finds_what_the_detector_finds(tmp_path: Path, frames: Sequence[Tensor]) -> None:
    model, path = detector(), tmp_path / "finds.onnx"
    assert library.export(model, path, pixels=True).difference < 1e-4
    for frame in frames:
        wanted, found = found_by(model, frame), ask(path, frame)
        assert 3 < len(wanted[1]) < 300
        assert difference(wanted, found) < 1e-4
        assert [part.dtype for part in found] == [torch.float32, torch.float32, torch.int64]
    opened = load_detector(path)
    assert opened.names == model.names
    for frame in frames:
        assert difference(found_by(model, frame), found_by(opened, frame)) < 1e-3


def test_a_traced_detector_takes_any_frame(tmp_path: Path, frames: Sequence[Tensor]) -> None:
    """With the most objects that are given, too: the largest frame has more candidates."""
    model, path = detector(3), tmp_path / "finds.pt"
    library.export(model, path, "torchscript")
    run = torch.jit.load(str(path))  # type: ignore[no-untyped-call]
    for frame in (*frames, torch.randint(0, 256, (1, 3, 512, 640), dtype=torch.uint8)):
        assert difference(found_by(model, frame), run(model.preprocessing.normalised(frame))) < 1e-4


def test_finds_are_compared_with_their_nearest() -> None:
    boxes = torch.tensor([[0.0, 0, 50, 100], [20, 20, 80, 80]])
    one = [boxes, torch.tensor([0.9, 0.8]), torch.tensor([0, 1])]
    assert difference(one, [boxes.flip(0), one[1].flip(0), one[2].flip(0)]) == 0
    assert difference(one, [boxes + 1, one[1], one[2]]) == pytest.approx(1 / 100)
    assert difference(one, [boxes, torch.tensor([0.9, 0.5]), one[2]]) == pytest.approx(0.3)
    assert difference(one, [boxes, one[1], torch.tensor([0, 0])]) == torch.inf
    assert difference(one, [part[:1] for part in one]) == torch.inf
    faint = [boxes, torch.tensor([0.9, 0.051]), one[2]]
    assert difference(faint, [part[:1] for part in faint]) == 0  # rounding decides whether it is found


def test_a_detector_that_finds_nothing_tells_little(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    library.export(detector(-100), tmp_path / "finds.pt", "torchscript")
    assert "finds nothing in these images" in caplog.text


# What is refused.


def test_a_file_that_answers_differently_is_not_kept(dmc: Dmc, saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.pt"
    said = dmc("export", saved, "--format", "torchscript", "-o", out, "--tolerance", 0)
    bad(said, "the exported file answers differently from", "at most 0 is allowed", "it is not kept")
    assert list(tmp_path.iterdir()) == []
    assert dmc("export", saved, "--format", "torchscript", "-o", out, "--images", saved.parent / "photos").code == 0


def test_one_wrong_answer_among_many_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = FORMATS["torchscript"].opened

    def wrong(path: Path) -> Callable[[Tensor], list[Tensor]]:
        run = right(path)
        return lambda images: [answer + 0.01 * (torch.arange(len(answer)) == 2)[:, None] for answer in run(images)]

    monkeypatch.setattr(FORMATS["torchscript"], "opened", wrong)
    with pytest.raises(DmcError, match=r"answers differently from small, by up to 0.0"):
        library.export(small(), tmp_path / "m.pt", "torchscript")
    assert list(tmp_path.iterdir()) == []


class Undecided(nn.Module):
    """A network that looks at its numbers before it decides what to compute."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)) if x.sum() > 0 else x.amax((2, 3))


def test_a_network_that_cannot_be_traced_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DmcError, match="cannot export odd as onnx: ") as error:
        library.export(Specialist(Undecided(), "abc", SHOWN, name="odd"), tmp_path / "m.onnx")
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "{}/m.pt"], "m.pt: a file of this format ends in .onnx"),
        (["-o", "{}/none/m.onnx"], "there is no folder"),
        (["-o", "{}/there.onnx"], "there.onnx is there already"),
        (["-o", "{}/m.onnx", "--keep", "fish"], "no class 'fish'"),
        (["-o", "{}/m.onnx", "--images", "{}/broken"], "none of the images to compare on can be read"),
        (["-o", "{}/m.onnx", "--images", "{}/none"], "none of the images to compare on can be read"),
        (["-o", "{}/m.onnx", "--format", "caffe"], "caffe"),
    ],
)
def test_what_cannot_work_is_said_first(
    dmc: Dmc, saved: Path, tmp_path: Path, arguments: Sequence[str], words: str
) -> None:
    (tmp_path / "there.onnx").touch()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "x.png").write_bytes(b"no image")
    before = sorted(tmp_path.rglob("*"))
    said = dmc("export", saved, *(text.format(tmp_path) for text in arguments))
    assert said.code == 2
    assert words in said.err.splitlines()[-1]
    assert sorted(tmp_path.rglob("*")) == before


def test_an_onnx_file_is_not_exported_again(dmc: Dmc, tmp_path: Path) -> None:
    source = write(tmp_path / "m.onnx", network(said={"names": "['w', 'x', 'y', 'z']"}))
    out = tmp_path / "n.pt"
    bad(
        dmc("export", f"{source},mean=0/0/0,std=1/1/1", "--format", "torchscript", "-o", out),
        "m.onnx is an ONNX file already",
    )


def test_the_command_says_what_it_did(dmc: Dmc, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = dmc("export", saved, "--format", "torchscript", "--keep", "owl,cat")
    assert said.code == 0
    first, second = said.out.splitlines()
    size = Path("model.pt").stat().st_size
    assert first == f"model.pt: torchscript, {size:,} bytes, classes and preprocessing inside"
    assert re.fullmatch(r"  compared on 4 images \(images made for this\): largest difference \S+", second)
    with zipfile.ZipFile("model.pt") as archive:
        (described,) = (archive.read(name) for name in archive.namelist() if name.endswith("dmc.json"))
    assert json.loads(described)["classes"] == ["cat", "owl"]
    assert len({np.asarray(record.image).tobytes() for record in made_images(16)}) == 4
