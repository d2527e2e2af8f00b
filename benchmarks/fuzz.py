"""Type thousands of command lines that nobody would, and see that each ends with status 0 or with one line and 2.

    python benchmarks/fuzz.py --count 10000

Prints what ended otherwise: a traceback, "unexpected", several lines, another status, or no end. Everything runs in one
process, in a temporary folder; trainings, downloads, connections and servers fail where they would begin. Every fourth
try is no command line but settings of any type, as a Python caller may give them.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from unittest.mock import patch

from PIL import Image
from typer.main import get_command

from dmc.cli import app, main
from dmc.errors import DmcError
from dmc.settings import Config, options_of

NUMBERS = [
    "0", "1", "2", "3", "8", "-1", "0.5", "0.01", "1e-300", "1e300", "1e400", "nan", "inf", "-inf",
    "9" * 400, "-" + "9" * 400, "٣",
]  # fmt: skip
WORDS = [
    "", " ", ".", "..", "~", "-", "--", "a", "b", "x,y", ",", "=", "a=b", "1:a", "3:a", "1:a=b", ":", "@",
    "@no", "@names.txt", "none", "auto", "all", "true", "[]", "{", "{a: b}", "!!python/name:os.system", "%s%n",
    "{0}", "*", "**", "[", "é", "\udcff", "\n", "a\nb", "\x1b[31mred", "\u202e", "x" * 300, "x" * 5000,
    "a" + "/b" * 3000
]  # fmt: skip
PLACES = [
    "one", "two", "data", "images", "empty", "file.txt", "names.txt", "broken", "broken.npz", "broken.parquet",
    "nosuch", "images/0.png", "data/..", "/dev/null", "images/*.png", "weights.pt", "hf-hub:", "hf-hub:a/b",
    "timm:", "timm:nosuch", "torchvision:nosuch", "weights.pt,arch=cifar_resnet8,classes=names.txt",
    "one,arch=", "one,size=x", "one,mean=1/2/x", "one,size=99999999999", ",",
    "weights.pt,arch=cifar_resnet8,classes=", "digits", "voc", "cub200"
]  # fmt: skip
NAMES = [
    "cifar_resnet8", "cifar_resnet9", "cifar_resnet", "timm/", "torchvision:", "file.txt:make",
    "nosuch.py:make", "retinanet:", "retinanet:x,width=-1", "l2", "kd", "softmax", "paper", "smoke", "lite",
    "imagenet", "random", "dmc", "lwf", "dmc,lwf", "loss=kd", "loss=3", "loss.x=1", "classes=-1",
    "consolidation.epochs=0", "epochs=3", "groups=[[a]]", "My photos: {aux: images}", "tables-cifar", "fp32",
    "bf16", "no", "yes"
]  # fmt: skip
FITTING = {
    "teachers": ["one"], "model": ["one", "two"], "models": ["one", "two"], "data": ["data"], "aux": ["images"],
    "images": ["images"], "stream": ["digits"], "name": ["accuracy-g5", "accuracy-g10"],
}  # fmt: skip
WRITTEN = ["out", "", ".", "file.txt", "deep/out", "images", "data/..", "x" * 300, "\udcff", "a\nb"]  # below the folder
PATIENCE = 60  # seconds after which a try hangs
COUNTS = ("seed", "orders", "order", "jobs", "group_size", "cpus_per_cell", "gpus_per_cell")
HEAVY = [
    "dmc.training.labeled.fit", "dmc.consolidation.fit", "dmc.bench.local.Local.run", "dmc.bench.ray_cluster.Ray.run",
    "dmc.demos.classification.run_demo", "dmc.demos.detection.run_demo", "dmc.bench.datasets.download",
    "dmc.bench.reproduce.Reproduction.run", "dmc.bench.digits._letter", "dmc.serving.app.application",
]  # fmt: skip
PYTHON: list[Any] = [
    None, True, 0, -1, 10**400, 0.5, float("nan"), float("inf"), "", "auto", b"x", [], [1], {}, {"a": 1},
    (0.5, 2), {"epochs": 0}, object(), "x" * 5000, "9" * 400, "25%", "²", Path("a"), print
]  # fmt: skip


def write_places(folder: Path) -> None:
    """Write small real things, and broken ones, that command lines may name."""
    from dmc.data.preprocess import Preprocessing
    from dmc.models.specialist import Specialist

    for seed, (name, classes) in enumerate((("one", "ab"), ("two", "cd"))):
        model = Specialist.untrained("cifar_resnet8", classes, Preprocessing(size=8), seed=seed)
        model.save(folder / name)
    for name in ("images", "data/a", "data/b", "empty", "broken"):
        (folder / name).mkdir(parents=True)
    for i in range(6):
        image = Image.new("RGB", (8 + i, 9), (40 * i, 90, 200 - 30 * i))
        image.save(folder / "images" / f"{i}.png")
        image.save(folder / "data" / "ab"[i % 2] / f"{i}.png")
    (folder / "names.txt").write_text("a\nb\n")
    for name in ("file.txt", "broken.npz", "broken.parquet", "weights.pt", "broken/config.json", "broken/1.png"):
        (folder / name).write_bytes(b"PK\x03\x04 neither text nor \xff\xfe anything else")


@cache
def verbs() -> dict[str, list[Any]]:
    """Give every verb, and what may be typed after it."""
    group: Any = get_command(app)
    return {name: list(command.params) for name, command in sorted(group.commands.items())}


def command_line(draw: random.Random) -> list[str]:
    """Draw a command line: mostly a known verb, its places and some of its options, with values of all kinds."""
    if draw.random() < 0.03:
        return [draw.choice(WORDS + NAMES + ["--version", "--help"]) for _ in range(draw.randint(1, 3))]
    verb = draw.choice(list(verbs()))
    parameters = verbs()[verb]
    typed: list[str] = []
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            typed += [place(draw, parameter.name) for _ in range(draw.choice([1] * 18 + [2, 0]))]
            typed += ["two"] * (parameter.name == "teachers")
        elif parameter.required and draw.random() < 0.95:
            typed += [draw.choice(parameter.opts), "out" if parameter.name == "out" else place(draw, parameter.name)]
    for parameter in draw.sample(parameters, draw.randint(0, min(4, len(parameters)))):
        if parameter.param_type_name == "option":
            typed.append(draw.choice(parameter.opts + parameter.secondary_opts))
            if parameter.name in ("out", "draw", "cache"):
                typed.append(draw.choice(WRITTEN))
            elif not getattr(parameter, "is_flag", False) and draw.random() < 0.97:
                typed.append(value(draw, usual_for(parameter.name) or draw.choice([NUMBERS, NAMES, PLACES]), 0.8))
    if draw.random() < 0.05:
        draw.shuffle(typed)
    return [verb, *typed]


@cache
def usual_for(name: str) -> list[str]:
    """Give values that fit the type of an option; none if any text does."""
    fields = dict(options_of(*below(Config)))
    kind = fields[name].annotation if name in fields else int if name in COUNTS else None
    words = [word for part in (kind, *get_args(kind)) if get_origin(part) is Literal for word in get_args(part)]
    number = {int, float} & {kind, *get_args(kind)}
    return words or (NUMBERS if number else [])


def place(draw: random.Random, name: str) -> str:
    """Draw a place for an argument, which is mostly one that it could be."""
    return value(draw, FITTING[name] if name in FITTING and draw.random() < 0.7 else PLACES, 0.95)


def value(draw: random.Random, usual: list[str], often: float) -> str:
    return draw.choice(usual if draw.random() < often else WORDS + NUMBERS)


def settings(draw: random.Random) -> tuple[type[Config], dict[str, Any]]:
    """Draw settings of one of the jobs, of any type."""
    owners = sorted(below(Config), key=lambda owner: owner.__name__)
    owner = draw.choice(owners)
    names = [*owner.model_fields, *draw.sample(["epochs", "nosuch", "anchors", "", "resume"], 1)]
    return owner, {name: draw.choice(PYTHON) for name in draw.sample(names, draw.randint(1, min(3, len(names))))}


def below(owner: type[Config]) -> set[type[Config]]:
    return set(owner.__subclasses__()).union(*map(below, owner.__subclasses__()))


@contextmanager
def harmless() -> Iterator[None]:
    """Let everything fail early that would take long or reach out."""

    def far_enough(*_: object, **__: object) -> None:
        raise DmcError("far enough")

    with ExitStack() as stack:
        for heavy in HEAVY:
            stack.enter_context(patch(heavy, far_enough))
        stack.enter_context(patch("typer.main.get_command", return_value=get_command(app)))  # to make it takes long
        stack.enter_context(patch.object(socket.socket, "connect", side_effect=OSError("no connections here")))
        stack.enter_context(patch.dict(os.environ, {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}))
        os.environ.pop("DMC_TRACEBACK", None)
        yield


def fault_of(typed: list[str]) -> str:
    """Run a command line; tell what is wrong with how it ends, or give an empty text."""

    def impatient(*_: object) -> None:
        raise TimeoutError(f"no end after {PATIENCE} s")

    signal.signal(signal.SIGALRM, impatient)
    signal.alarm(PATIENCE)
    out, err, code = io.StringIO(), io.StringIO(), None
    with patch.object(sys, "argv", ["dmc", *typed]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException:
            return traceback.format_exc()
        finally:
            signal.alarm(0)
    said = err.getvalue()
    if "dmc: unexpected" in said or "Traceback" in said:
        return said
    if code not in (0, 2):
        return f"status {code}"
    lines = [line for line in said.splitlines() if line]
    if code == 2 and typed and not all(line.startswith("dmc: ") for line in lines):
        return f"several lines: {said}"
    return "" if code == 0 or lines else "status 2 without a word"


def fault_in(owner: type[Config], given: dict[str, Any]) -> str:
    """Make a configuration; tell what is wrong with how that fails, or give an empty text."""
    try:
        owner.of(given)
    except DmcError as error:
        return "several lines" if "\n" in str(error).strip() else ""
    except Exception:
        return traceback.format_exc()
    return ""


def faults(count: int, seed: int = 0) -> Iterator[tuple[object, str]]:
    """Try so many command lines and configurations; give those that end as they should not, and how."""
    draw, home = random.Random(seed), Path.cwd()
    handlers = logging.getLogger("dmc").handlers
    with tempfile.TemporaryDirectory() as folder, harmless():
        write_places(Path(folder))
        os.chdir(folder)
        try:
            for i in range(count):
                if i % 4 == 3:
                    owner, given = settings(draw)
                    tried: object = (owner.__name__, given)
                    fault = fault_in(owner, given)
                else:
                    shutil.rmtree("out", ignore_errors=True)
                    tried = typed = command_line(draw)
                    fault = fault_of(typed)
                if fault:
                    yield tried, fault
        finally:
            os.chdir(home)
            logging.getLogger("dmc").handlers = handlers


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    kinds: Counter[str] = Counter()
    for tried, fault in faults(asked.count, asked.seed):
        kinds[fault.strip().splitlines()[-1][:200]] += 1
        if kinds[fault.strip().splitlines()[-1][:200]] == 1:
            print(f"{tried!r:.600}\n{fault}", flush=True)
    print(f"{asked.count} tried, {kinds.total()} ended as they should not: {dict(kinds)}")
