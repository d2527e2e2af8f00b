"""Classifiers in ONNX files as teachers: what they answer, what they say of themselves, and which are refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import dmc as library
from dmc.distill.teachers import Teachers
from dmc.errors import DmcError
from dmc.models.onnx_network import OnnxNetwork
from dmc.models.specialist import Specialist
from tests.conftest import Answer, bad, load_specialist, tiny, write_images
from tests.fake_gpu import gpu
from tests.onnx_files import ROWS_8, WEIGHTS_3K, keep_outside, network, stored_outside, write

Dmc = Callable[..., Answer]
PLAIN = "mean=0/0/0,std=1/1/1"
NAMES = {"names": json.dumps(list("wxyz"))}
IMAGES_N3HW = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def loaded(path: Path, *settings: str) -> Specialist:
    return load_specialist(",".join([str(path), *settings]))


def expected(images_N3HW: torch.Tensor = IMAGES_N3HW) -> torch.Tensor:
    """Work out the logits of `network` for pixels from 0 to 1."""
    weighted_N3HW = images_N3HW.double() / 255 * torch.from_numpy(ROWS_8)[:, None]
    return weighted_N3HW.mean(dim=(2, 3)).float() @ torch.from_numpy(WEIGHTS_3K)


def test_the_answers_are_those_of_the_file(tmp_path: Path) -> None:
    model = loaded(write(tmp_path / "m.onnx", network(said=NAMES)), PLAIN)
    red = torch.tensor([255, 0, 0], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 8, 8)
    torch.testing.assert_close(model.logits(red), torch.tensor([[1, 2, -4, 0.5]]))
    torch.testing.assert_close(model.logits(IMAGES_N3HW), expected())
    assert (model.names, model.arch, model.parameter_count) == (("w", "x", "y", "z"), None, 12 + 8 + 2 + 1 + 2 + 4)
    torch.testing.assert_close(model.keep("zx").logits(IMAGES_N3HW), expected()[:, [1, 3]])
    with torch.autocast("cpu", torch.bfloat16):
        answer = model.logits(IMAGES_N3HW)
    torch.testing.assert_close(answer, expected())


@pytest.mark.parametrize(
    ("shape", "layout", "dtype"),
    [
        (("n", 3, "h", "w"), "NCHW", TensorProto.FLOAT),
        ((1, 3, 8, 8), "NCHW", TensorProto.FLOAT),
        ((3, 3, 8, 8), "NCHW", TensorProto.FLOAT),
        (("n", 8, 8, 3), "NHWC", TensorProto.FLOAT),
        (("n", 3, 8, 8), "NCHW", TensorProto.DOUBLE),
        (("n", 3, 8, 8), "NCHW", TensorProto.FLOAT16),
    ],
)
def test_any_layout_and_batch_size_gives_the_same(
    tmp_path: Path, shape: tuple[int | str, ...], layout: str, dtype: int
) -> None:
    path = write(tmp_path / "m.onnx", network(shape, layout, dtype, said=NAMES))
    answer = loaded(path, PLAIN, *(["size=8"] if "h" in shape else [])).logits(IMAGES_N3HW)
    torch.testing.assert_close(answer, expected(), atol=2e-3 if dtype == TensorProto.FLOAT16 else 1e-5, rtol=1e-4)


@pytest.mark.parametrize(("shape", "layout"), [(("n", 3, 8, 8), "NCHW"), ((1, 8, 8, 3), "NHWC")])
def test_a_file_that_takes_uint8_gets_the_pixels_as_they_are(
    tmp_path: Path, shape: tuple[int | str, ...], layout: str
) -> None:
    path = write(tmp_path / "m.onnx", network(shape, layout, TensorProto.UINT8, said=NAMES))
    torch.testing.assert_close(loaded(path).logits(IMAGES_N3HW) / 255, expected())
    with pytest.raises(DmcError, match="takes uint8 pixels and normalises them itself: leave out mean and std"):
        loaded(path, PLAIN)


@pytest.mark.parametrize(
    ("end", "output"),
    [
        ("softmax", "softmax"),
        ("log-softmax", "softmax"),
        ("softmax by hand", "softmax"),
        ("sigmoid", "sigmoid"),
        ("one image", "softmax"),  # says that it takes any number of images, but takes one
        ("in a map", "softmax"),
    ],
)
def test_probabilities_become_logits_again(tmp_path: Path, end: str, output: str) -> None:
    model = loaded(write(tmp_path / "m.onnx", network(end=end, said=NAMES)), PLAIN)
    assert model.output == output
    logits = model.logits(IMAGES_N3HW)
    if "by hand" in end:  # known but for a constant, which Eq. 4 takes out
        logits = logits - logits.mean(dim=1, keepdim=True) + expected().mean(dim=1, keepdim=True)
    torch.testing.assert_close(logits, expected(), atol=1e-5, rtol=1e-4)


def test_a_softmax_that_is_certain_loses_nothing(tmp_path: Path) -> None:
    """Its probabilities are 0 and 1 in fp32; the logits before them are not lost."""
    path = write(tmp_path / "m.onnx", network(end="softmax", weights_3K=1000 * WEIGHTS_3K, said=NAMES))
    torch.testing.assert_close(loaded(path, PLAIN).logits(IMAGES_N3HW) / 1000, expected())


@pytest.mark.parametrize(
    "said",
    [
        {"names": "{0: 'w', 1: 'x', 2: 'y', 3: 'z'}", "imgsz": "[8, 8]"},
        {"names": "['w', 'x', 'y', 'z']", "imgsz": "8"},
        {"classes": '["w", "x", "y", "z"]', "imgsz": "[8, 8]"},
        {"id2label": '{"3": "z", "0": "w", "2": "y", "1": "x"}', "imgsz": "[8, 8]"},
    ],
)
def test_class_names_and_size_are_read_from_the_metadata(
    tmp_path: Path, said: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    model = loaded(write(tmp_path / "m.onnx", network(("n", 3, "h", "w"), said=said)))
    assert (model.names, model.preprocessing.size) == (("w", "x", "y", "z"), 8)
    assert model.preprocessing.mean == (0.485, 0.456, 0.406)
    assert "m.onnx does not tell its mean, std: ImageNet's are assumed" in caplog.text
    caplog.clear()
    assert loaded(tmp_path / "m.onnx", PLAIN).preprocessing.mean == (0, 0, 0)
    assert caplog.text == ""


@pytest.mark.parametrize("text", ["__import__('os').abort()", "(" * 100_000, "[" * 100_000, "{'a': 'b'}", "[]", "7"])
def test_metadata_that_is_no_list_of_names_is_none(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "m.onnx", network(said={"names": text}))
    with pytest.raises(DmcError, match=r"m.onnx says nothing about its 4 classes: give classes=FILE"):
        loaded(path, PLAIN)
    names = tmp_path / "names.txt"
    names.write_text("a\nb\nc\nd\n")
    assert loaded(path, PLAIN, f"classes={names}").names == ("a", "b", "c", "d")


def test_the_fingerprint_covers_the_bytes(tmp_path: Path) -> None:
    first = loaded(write(tmp_path / "a.onnx", network(said=NAMES)), PLAIN)
    again = loaded(write(tmp_path / "b.onnx", network(said=NAMES)), PLAIN)
    other = loaded(write(tmp_path / "c.onnx", network(weights_3K=WEIGHTS_3K + 1e-3, said=NAMES)), PLAIN)
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first.fingerprint != loaded(tmp_path / "a.onnx", "mean=0/0/0,std=1/1/2").fingerprint


def test_it_takes_as_many_threads_as_torch(tmp_path: Path) -> None:
    path, before = write(tmp_path / "m.onnx", network(said=NAMES)), torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            runs = loaded(path, PLAIN).module
            assert isinstance(runs, OnnxNetwork)
            assert runs.session.get_session_options().intra_op_num_threads == threads
    finally:
        torch.set_num_threads(before)


def test_on_another_device_its_answers_are_there(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", network(said=NAMES))
    with gpu():
        model = loaded(path, PLAIN).to(torch.device("cuda"))
        assert model.device.type == "cuda"
        answer = model.logits(IMAGES_N3HW)
        assert answer.device.type == "cuda"
        torch.testing.assert_close(answer.cpu(), expected())


def test_teachers_answer_with_it_side_by_side(tmp_path: Path) -> None:
    one = loaded(write(tmp_path / "m.onnx", network(said=NAMES)), PLAIN)
    group = Teachers([one, tiny("ab")])
    group.fold()
    logits = group.logits(IMAGES_N3HW)
    torch.testing.assert_close(logits[:, :4], expected() - expected().mean(dim=1, keepdim=True))


def test_the_verbs_take_it(dmc: Dmc, tmp_path: Path) -> None:
    """Merge two files, keep their answers in a cache, learn a further class, evaluate and predict."""
    other = network(weights_3K=-WEIGHTS_3K[:, :2].copy(), said={"names": "['u', 'v']"})
    first = f"{write(tmp_path / 'a.onnx', network(said=NAMES))},{PLAIN}"
    second = f"{write(tmp_path / 'b.onnx', other)},{PLAIN}"
    aux = write_images(tmp_path / "aux", 24, size=8)
    quick = ("--aux", aux, "--epochs", 1, "--batch-size", 8, "--arch", "cifar_resnet8", "--size", 8)
    assert "teacher 1: " in (said := dmc("check", first, second, *quick)).out, said
    assert dmc("consolidate", first, second, *quick, "-o", tmp_path / "m", "--cache", tmp_path / "c").code == 0
    run = json.loads((tmp_path / "m" / "run.json").read_text())
    assert [teacher["fingerprint"] for teacher in run["teachers"]] == [
        library.load(model).fingerprint for model in (first, second)
    ]
    for name in "st":
        write_images(tmp_path / "new" / name, 4, size=8)
    learned = dmc("learn", first, tmp_path / "new", *quick, "--specialist-epochs", 1, "-o", tmp_path / "l")
    assert learned.code == 0, learned.err
    assert library.load(tmp_path / "l").names == ("w", "x", "y", "z", "s", "t")
    for colour, name in enumerate("wx"):
        write_images(tmp_path / "test" / name, 4, colour=colour, size=8)
    measured = json.loads(dmc("evaluate", first, tmp_path / "test", "--json").out)
    model = library.load(first, kind=Specialist)
    picture = tmp_path / "test" / "w" / "000.png"
    best = json.loads(dmc("predict", first, picture, "--top", 1, "--json").out)
    assert best[0]["classes"].keys() == library.predict(model, picture, top=1)[0].keys()  # type: ignore[union-attr]
    assert measured["images"] == 8


def test_it_cannot_be_a_student_or_a_folder(tmp_path: Path) -> None:
    model = loaded(write(tmp_path / "m.onnx", network(said=NAMES)), PLAIN)
    with pytest.raises(DmcError, match=r"m.onnx has no architecture name"):
        model.save(tmp_path / "out")
    with pytest.raises(DmcError, match=r"m.onnx has its own network; an architecture is given for state dicts only"):
        loaded(tmp_path / "m.onnx", "arch=resnet32")
    with pytest.raises(DmcError, match=r"m.onnx takes images of 8 pixels a side, not 16"):
        loaded(tmp_path / "m.onnx", "size=16")
    with pytest.raises(DmcError, match=r"m.onnx takes 3 channels; mean and std have 1 values"):
        loaded(tmp_path / "m.onnx", "mean=0,std=1")


# What is refused.


def two_inputs() -> Any:
    model = network(said=NAMES)
    model.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, [1]))
    return model.SerializeToString()


def two_outputs() -> Any:
    model = network(said=NAMES)
    model.graph.output.append(helper.make_tensor_value_info("colours", TensorProto.FLOAT, None))
    return model.SerializeToString()


def in_a_circle() -> Any:
    model = network(said=NAMES)
    model.graph.node[-1].input[0] = "answer"
    return model.SerializeToString()


WHOLE = network(said=NAMES).SerializeToString()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is no ONNX file, or it holds no network"),
        (b"not a network", "it is no ONNX file, or a damaged one"),
        (WHOLE[: len(WHOLE) // 2], "it is no ONNX file, or a damaged one"),
        (network(("n", 3, 8)).SerializeToString(), "its input 'images' is anyx3x8; a batch of images has four axes"),
        (network(("n", 3, 8, 9)).SerializeToString(), "is anyx3x8x9; dmc feeds square images only"),
        (network(("n", 4, 8, 8)).SerializeToString(), "is anyx4x8x8; images have one channel or three"),
        (network(("n", 3, 99999, 99999)).SerializeToString(), "images have at most 4096 pixels a side"),
        (network(dtype=TensorProto.INT64).SerializeToString(), "of type 7; images are floating-point numbers or uint8"),
        (network(end="unknown").SerializeToString(), "Fortune"),
        (WHOLE.replace(b"MatMul", b"Mat\xe6ul"), "onnxruntime cannot run"),
        (network(said={"names": "['a', 'b']"}).SerializeToString(), "2 class names but its head has 4 outputs"),
        (network(said={"names": "['a', 'a', 'b', 'c']"}).SerializeToString(), "'a' is named twice"),
        (network(said={"names": "['a', 1, 'b', 'c']"}).SerializeToString(), "a class is named 1"),
        (network(said={"dmc.json": "{}"}).SerializeToString(), "is damaged: its dmc.json has no 'task'"),
        (two_inputs(), "has 2 inputs (images, mask); it should have one"),
        (two_outputs(), "has 2 outputs (answer, colours); a classifier has one"),
        (in_a_circle(), "onnxruntime cannot run"),
    ],
)
def test_a_file_that_is_no_classifier_is_one_line(dmc: Dmc, tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    picture = write_images(tmp_path / "images", 1)
    bad(dmc("predict", f"{tmp_path / 'm.onnx'},{PLAIN}", picture), "m.onnx", words)


def test_what_is_no_file_is_not_waited_for(dmc: Dmc, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.onnx")
    bad(dmc("predict", tmp_path / "m.onnx", "x.png"), "cannot read", "it is not a regular file")
    bad(dmc("predict", tmp_path / "none.onnx", "x.png"), "cannot read", "No such file")
    with (tmp_path / "huge.onnx").open("wb") as huge:
        huge.truncate(2**31)
    bad(dmc("predict", tmp_path / "huge.onnx", "x.png"), "it has more than 2,147,483,647 bytes")


# Weights in other files.


def test_weights_may_be_in_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"12345678" + WEIGHTS_3K.tobytes() + b"more")
    model = stored_outside(network(said=NAMES), "w.bin", offset=8, length=WEIGHTS_3K.nbytes)
    first = loaded(write(tmp_path / "m.onnx", model), PLAIN)
    torch.testing.assert_close(first.logits(IMAGES_N3HW), expected())
    (tmp_path / "w.bin").write_bytes(b"12345678" + (2 * WEIGHTS_3K).tobytes())
    assert loaded(tmp_path / "m.onnx", PLAIN).fingerprint != first.fingerprint


@pytest.mark.parametrize("where", ["initializer", "attribute", "subgraph", "function"])
@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "link", "sub/../../secret"])
def test_weights_from_elsewhere_are_refused_before_any_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, location: str
) -> None:
    (tmp_path / "secret").write_bytes(bytes(48))
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path / "secret")
    model = network(said=NAMES)
    hidden = numpy_helper.from_array(np.zeros(12, np.float32), "hidden")
    keep_outside(hidden, location)
    inner = helper.make_graph([helper.make_node("Identity", ["hidden"], ["x"])], "inner", [], [], [hidden])
    holding = {
        "attribute": helper.make_node("Constant", [], ["c"], value=hidden),
        "subgraph": helper.make_node("If", ["yes"], ["c"], then_branch=inner, else_branch=inner),
    }
    if where == "initializer":
        model.graph.initializer.append(hidden)
    elif where == "function":
        made = helper.make_function(
            "org.example", "F", [], ["c"], [holding["attribute"]], [helper.make_opsetid("", 18)]
        )
        model.functions.append(made)
    else:
        model.graph.node.insert(0, holding[where])
    write(folder / "m.onnx", model)
    read: list[str] = []

    def reading(path: Path, limit: int) -> bytes:
        read.append(path.name)
        return path.read_bytes()

    monkeypatch.setattr("dmc.models.onnx_file.read_bytes", reading)
    with pytest.raises(DmcError, match=r"m.onnx is refused: its weights 'hidden' are said to be elsewhere") as error:
        loaded(folder / "m.onnx", PLAIN)
    assert read == ["m.onnx"]
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ({"location": "pipe"}, "it is not a regular file"),
        ({"location": "none"}, "No such file"),
        ({"location": "w.bin", "offset": -8}, "is damaged: the place of its weights 'weights'"),
        ({"location": "w.bin", "offset": 10**30}, "onnxruntime cannot run"),
        ({"location": "w.bin", "length": 3}, "onnxruntime cannot run"),
    ],
)
def test_weights_that_are_not_there_are_one_line(
    dmc: Dmc, tmp_path: Path, place: dict[str, str | int], words: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "w.bin").write_bytes(WEIGHTS_3K.tobytes())
    write(tmp_path / "m.onnx", stored_outside(network(said=NAMES), **place))  # type: ignore[arg-type]
    bad(dmc("predict", f"{tmp_path / 'm.onnx'},{PLAIN}", "x.png"), words)
