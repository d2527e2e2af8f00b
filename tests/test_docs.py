"""The documentation: it builds without warnings, every command on it runs, and so does the notebook."""

from __future__ import annotations

import logging
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from mkdocs.commands.build import build
from mkdocs.config import load_config
from nbclient import NotebookClient
from typer.main import get_command

import dmc as library
from dmc.bench.comparison import ComparisonFolder
from dmc.cli import app
from dmc.methods import METHODS, OWN_FILES
from dmc.models.detector import Detector
from dmc.models.specialist import Specialist
from dmc.recipes.profile import load_profile
from tests.conftest import Answer, tiny, write_images
from tests.detectors import TINY, small, write_voc
from tests.onnx_detectors import write as write_detector

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?ms)^```sh( title=\"[^\"]+\")?\n(.*?)^```$")
LAUNCHED = re.compile(r"^(?:srun )?(?:torchrun|accelerate launch) .*?(?:-m|--module) dmc ")
# What stands for the networks and numbers on the pages, so that a command takes a second here and not hours.
SMALLER = {
    "--arch resnet34": "--arch cifar_resnet8",
    "retinanet_resnet50_fpn": TINY,
    "retinanet_resnet34_fpn": TINY,
    "--arch transformers:vit": "",
    "--minutes 30": "--epochs 1",
}
RUNS_ELSEWHERE = ("make ", "pip ", "python ", "curl ", "hf ", "tensorboard ", "#", "head=")


class Typed(NamedTuple):
    """A line of a page."""

    page: str
    line: str
    runs: bool  # or needs what its block's title says


def typed() -> Iterator[Typed]:
    """Give every line of every `sh` block, without its comment."""
    for page in PAGES:
        for title, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                if line.strip():
                    yield Typed(page.stem, re.sub(r"\s+#.*", "", line).strip(), not title)


def parse(words: list[str]) -> None:
    """Fail if the command line does not know the verb, an option, or a value."""
    top: Any = get_command(app)
    verb = top.commands[words[0]]
    with verb.make_context(words[0], words[1:]):
        pass


def test_options_in_the_text_are_options() -> None:
    """Commands are parsed below; a table or a sentence may still speak of an option that is gone."""
    top: Any = get_command(app)
    known = {name for verb in top.commands.values() for one in verb.params for name in (*one.opts, *one.secondary_opts)}
    for page in PAGES:
        text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8"))
        spans = [span for span in re.findall(r"`([^`]+)`", text) if not span.startswith(RUNS_ELSEWHERE)]
        assert {name for span in spans for name in re.findall(r"(?<!\S)--[a-z][a-z-]+", span)} <= known, page


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make small files of all names that the pages use."""
    folder = tmp_path_factory.mktemp("world")
    data = {"cats": "tabby siamese", "fish": "trout carp", "new_images": "fox owl"}
    data |= {"test_images": "tabby siamese robin jay", "birds": "robin jay"}
    for place, names in data.items():
        for colour, name in enumerate(names.split()):
            write_images(folder / place / name, 6, seed=colour, size=16, colour=colour % 3)
    write_parquet(folder / "birds", folder / "birds.parquet")
    for place in ("images", "photos"):
        write_images(folder / place, 12, size=48)
    for name in ("photo.jpg", "street.jpg"):
        shutil.copy(folder / "photos" / "000.png", folder / name)
    kinds = ("aeroplane", "bird", "bus", "cat", "dog", "sofa")
    write_voc(folder / "VOC2007", 8, kinds, split="trainval")
    write_voc(folder / "VOC2007", 8, kinds, seed=1, split="test")
    small("abcd").save(folder / "mine")
    write_detector(folder, "yolo", "yolo.onnx", said={"names": "['person', 'dog']", "stride": "32", "imgsz": "64"})
    old = ["ship", "truck"]
    (folder / "old.txt").write_text("\n".join(old))
    (folder / "net.py").write_text(NETWORK)
    torch.save(tiny(old).module.state_dict(), folder / "old.pth")
    scope: dict[str, Any] = {}
    exec(NETWORK, scope)
    torch.save(scope["make_network"](2).state_dict(), folder / "net.pth")
    own = re.search(r"(?s)```python\n(# mine\.py\n.*?)```", (ROOT / "docs" / "new-method.md").read_text())
    assert own
    (folder / "mine.py").write_text(own[1])
    return folder


NETWORK = """
from torch import nn


def make_network(classes: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, classes))
"""


def write_parquet(folder: Path, path: Path) -> None:
    files = sorted(folder.rglob("*.png"))
    images = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    pq.write_table(pa.table({"image": images, "label": [file.parent.name for file in files]}), path)


def provide(words: list[str]) -> None:
    """Make the models that a command names and no earlier command of its page has made."""
    out = words[words.index("-o") + 1] if "-o" in words else None
    if out is not None:
        shutil.rmtree(out, ignore_errors=True)  # a page may show two ways to the same result
    known = {
        "a": ["tabby", "siamese"],
        "b": ["robin", "jay"],
        "merged": ["tabby", "siamese", "robin", "jay", "cat", "dog"],
        "model": ["robin", "jay"],
    }
    known |= {"vit": ["fox", "cat"], "runs/a": ["fox", "cat"]}
    for name in known.keys() & set(words) - {out}:
        if not Path(name).exists():
            tiny(known[name]).save(Path(name))
    for name in {"run1", "run2", "run3"} & set(words):
        shutil.copytree("merged", name)
    if any(word.startswith("old.onnx") for word in words):
        library.export(tiny(["ship", "truck"]), "old.onnx")
    if words in (["show", "out"], ["report", "out"]):
        ComparisonFolder("digits", 2, load_profile("smoke", "digits"), Path("out")).claim_folder()


@pytest.mark.parametrize("page", sorted({line.page for line in typed()}))
def test_every_command_on_a_page_runs(
    dmc: Callable[..., Answer], page: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(world, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    for kind in ("classification", "detection"):
        monkeypatch.setattr(f"dmc.tasks.{kind}.clamped", lambda *_: 1)  # epochs
    monkeypatch.setattr("dmc.serving.server.serving", lambda *_: ServedElsewhere())
    for line in (line for line in typed() if line.page == page):
        text = LAUNCHED.sub("dmc ", line.line)
        if not text.startswith("dmc "):
            require_known(text)
            continue
        if not line.runs:
            parse(shlex.split(text.replace("consolidate ...", "consolidate a b --aux images/ -o merged"))[1:])
            continue
        for large, little in SMALLER.items():
            text = text.replace(large, little)
        words = shlex.split(text)[1:]
        if page == "detection" and words[0] in ("train", "consolidate", "learn", "check"):
            words += ["--weights", "random", "--size", "64"]  # ImageNet's would be fetched
        elif words[0] == "train" and "--arch" not in words:
            words += ["--arch", "cifar_resnet8"]
        if words[0] == "export" and Path("merged.onnx").exists():
            parse(words)  # tests/exporting runs them all
            continue
        provide(words)
        said = dmc(*words)
        assert said.code == 0, f"{line.line}: {said.err}"


def require_known(text: str) -> None:
    """Fail if a line is neither a command of dmc nor one that is known to need something else, which is there."""
    assert text.startswith(RUNS_ELSEWHERE), text
    if text.startswith("make "):
        assert re.search(f"(?m)^{text.split()[1]}:", (ROOT / "Makefile").read_text())
    for name in re.findall(r"python (?:-m )?([\w./]+)", text):
        assert (ROOT / name).exists() or (ROOT / f"{name.replace('.', '/')}.py").exists(), text


class ServedElsewhere:
    """Stands in for a server, which would not end; tests/serving has real ones."""

    url = "http://127.0.0.1:7860"

    def __enter__(self) -> ServedElsewhere:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self) -> None:
        pass


def test_the_site_builds_without_warnings_and_loads_nothing_from_elsewhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "mkdocs"):
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True))
    assert [record.getMessage() for record in caplog.records] == []
    pages = {str(path.relative_to(tmp_path)): path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")}
    for text in pages.values():
        assert re.findall(r'<(?:script|img|iframe)[^>]*src="?(?:https?:)?//', text) == []
        assert re.findall(r'<link[^>]*rel="?(?:stylesheet|preconnect)[^>]*//', text) == []
    assert {"--box-weight", "--max-megabytes"} <= set(re.findall("<code>(--[a-z-]+)</code>", pages["cli/index.html"]))
    assert "Merge models into one that knows every teacher" in pages["api/index.html"]
    assert "<math" in pages["method/index.html"]
    assert "data:image/png;base64" in pages["notebook/index.html"]
    assert "results/demo/" in pages["start/index.html"]


def test_the_readme_is_one_screen_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 50
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", text)
    assert len(links) > 15
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_page_of_results_is_in_their_index_and_begins_with_its_answer() -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "results").glob("*.md")}
    index = pages.pop("README.md")
    assert sorted(re.findall(r"(?m)^\| \[.+?\]\((\S+)\) \|", index)) == sorted(pages)
    assert [name for name, text in pages.items() if not re.match(r"# .+\n\n(\*\w|\| what)", text)] == []


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    notebook: Any = nbformat.read(ROOT / "docs" / "merge.ipynb", 4)  # type: ignore[no-untyped-call]
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)  # what is stored was run
    usual = "EPOCHS, LETTERS = 12, 4000"
    assert usual in cells[0].source
    cells[0].source = cells[0].source.replace(usual, "EPOCHS, LETTERS = 1, 250")
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    answer = cells[-1].outputs[-1]["data"]["text/plain"]
    assert re.match(r"\[\{'\d': 0\.\d+", answer)


def test_the_benchmarks_page_names_every_method() -> None:
    rows = [line for line in (ROOT / "docs" / "benchmark.md").read_text().splitlines() if line.startswith("| `")]
    for method in (one for name, one in METHODS.items() if name not in OWN_FILES):
        kinds = [kind for kind, model in (("classifiers", Specialist), ("detectors", Detector)) if method.serves(model)]
        row = next(row for row in rows if f"`{method.name}`" in row)
        assert method.title in row
        assert row.endswith(f"| {'both' if len(kinds) == 2 else kinds[0]} |")
