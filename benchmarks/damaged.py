"""Damage every file that dmc reads, one at a time, and see what the command line makes of it.

    python -m benchmarks.damaged                  # 500 damages, about ten minutes on one core
    python -m benchmarks.damaged --count 60 --show

A command should end with status 0 (the file was not needed, or skipped and counted) or with status 2 and one line.
Wrong are any other status, a traceback, "unexpected" (the escape path for bugs), several lines, more than 10 s, more
than 2 GB, a connection, a program that is started, a file that nobody named, a resumed run that has other weights.
Damages: bits that are flipped, files cut off, random bytes, values of other types, deep nesting, pipes and devices in
place of files, links out of the folder, names of files elsewhere.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.behaviour import DETECTORS, write_data
from benchmarks.damages import ANY, SECRET, SPECIAL, write_table, write_tar
from benchmarks.forked import Command, preload
from PIL import Image
from safetensors.torch import load_file

SECONDS, MEGABYTES, PATIENCE = 10.0, 2048.0, 12.0
SMALL = ("--arch", "cifar_resnet8", "--size", "16", "--batch-size", "8", "--epochs", "2")
TINY = ("--arch", DETECTORS["retinanet"], "--weights", "random", "--size", "64", "--batch-size", "4", "--epochs", "1")
CHECK = ("check", "a", "b", "--aux")
BENCH = ("bench", "digits", "--profile", "smoke", "--methods", "finetuning", "--orders", "1", "-o", "bench")
STATE = "a/model.safetensors,arch=cifar_resnet8,size=16,classes=names.txt"
PICKLED = "state.pt,arch=cifar_resnet8,size=16,classes=names.txt"
MERGE = ("consolidate", "a", "b", "--aux", "aux", "--batch-size", "8", "--epochs", "2", "--cache", "answers")
SELECT = ("--select", "16")
LOOK = (("show", "merged"), ("report", "merged"))
GROUP = "bench/order-0/finetuning"
# A folder that is finished or made again, and one with the weights that it then has.
SAME = {"half": "a", "again": "merged", "halfway": "selected"}


@dataclass(frozen=True)
class Kind:
    """A kind of file: one of them, and the commands that read it."""

    file: str  # or a pattern, of which the first match is taken
    commands: tuple[tuple[str, ...], ...]
    form: str = "bytes"  # what is known of its content, for damages that need it


KINDS: dict[str, Kind] = {
    "model, config.json": Kind("a/config.json", ((*CHECK, "aux"), ("evaluate", "a", "ab")), "json"),
    "model, model.safetensors": Kind("a/model.safetensors", ((*CHECK, "aux"), ("evaluate", "a", "ab")), "safetensors"),
    "detector, config.json": Kind("x/config.json", (("predict", "x", "aux/000.png"),), "json"),
    "run, run.json": Kind("half/run.json", (("train", "ab", "-o", "half", *SMALL, "--resume"),), "json"),
    "run, metrics.jsonl": Kind("half/metrics.jsonl", (("train", "ab", "-o", "half", *SMALL, "--resume"),), "json"),
    "run, checkpoint.pt": Kind("half/checkpoint.pt", (("train", "ab", "-o", "half", *SMALL, "--resume"),), "torch"),
    "finished run, config.json": Kind("a/config.json", (("train", "ab", "-o", "a", *SMALL, "--resume"),), "json"),
    "bench.json": Kind("bench/bench.json", (BENCH,), "json"),
    "bench, groups.json": Kind("bench/order-0/groups.json", (BENCH,), "json"),
    "bench, confusion.npy": Kind(f"{GROUP}/group-1/confusion.npy", (BENCH,), "npy"),
    "bench, made.json": Kind(f"{GROUP}/group-1/made.json", (BENCH,), "json"),
    "bench, learned.json": Kind(f"{GROUP}/group-1/learned/learned.json", (BENCH,), "json"),
    "bench, notes.safetensors": Kind(f"{GROUP}/group-1/learned/notes.safetensors", (BENCH,), "safetensors"),
    "bench, model's config.json": Kind(f"{GROUP}/group-1/learned/model-0/config.json", (BENCH,), "json"),
    "image.png": Kind("aux/003.png", ((*CHECK, "aux"), ("predict", "a", "aux/003.png"))),
    "image.jpg": Kind("aux/some.jpg", ((*CHECK, "aux"), ("predict", "a", "aux/some.jpg"))),
    "image.webp": Kind("aux/some.webp", ((*CHECK, "aux"), ("predict", "x", "aux/some.webp"))),
    "labeled image": Kind("ab/a/003.png", (("evaluate", "a", "ab"), ("train", "ab", "-o", "new", *SMALL))),
    "parquet": Kind("t.parquet", ((*CHECK, "t.parquet"), ("evaluate", "a", "t.parquet")), "parquet"),
    "npz": Kind("t.npz", ((*CHECK, "t.npz"), ("evaluate", "a", "t.npz")), "npz"),
    "tar": Kind("t.tar", ((*CHECK, "t.tar"), (*CHECK, "t.tar", "--memory", "0")), "tar"),
    "tar.gz": Kind("t.tar.gz", ((*CHECK, "t.tar.gz"),), "tar"),
    "VOC annotation": Kind("voc/Annotations/3.xml", (("evaluate", "x", "voc", "--known"),), "xml"),
    "VOC list of images": Kind(
        "voc/ImageSets/Main/train.txt", (("evaluate", "x", "voc,split=train", "--known"),), "text"
    ),
    "VOC image": Kind("voc/JPEGImages/3.png", (("evaluate", "x", "voc", "--known"),)),
    "COCO file": Kind("coco.json", (("evaluate", "x", "coco.json,images=voc/JPEGImages", "--known"),), "json"),
    "selected images": Kind("halfway/selected.json", ((*MERGE, *SELECT, "-o", "halfway", "--resume"),), "json"),
    "report.json": Kind("merged/report.json", LOOK, "json"),
    "reported run.json": Kind("merged/run.json", LOOK, "json"),
    "reported metrics.jsonl": Kind("merged/metrics.jsonl", LOOK, "json"),
    "reported config.json": Kind("merged/config.json", LOOK, "json"),
    "kept answers": Kind("answers/*/answers.bin", ((*MERGE, "-o", "again"),)),
    "kept answers, images": Kind("answers/images.bin", ((*MERGE, "-o", "again"),)),
    "kept answers, marker": Kind("answers/*/dmc-answers.json", ((*MERGE, "-o", "again"),), "json"),
    "ONNX classifier": Kind("a.onnx", (("predict", "a.onnx", "aux/000.png"), ("check", "a.onnx", "b", "--aux", "aux"))),
    "ONNX detector": Kind("x.onnx", (("predict", "x.onnx", "aux/000.png"),)),
    "transformers, config.json": Kind("vit/config.json", (("predict", "vit", "aux/000.png"),), "json"),
    "transformers, processor": Kind("vit/preprocessor_config.json", (("predict", "vit", "aux/000.png"),), "json"),
    "transformers, weights": Kind("vit/model.safetensors", (("predict", "vit", "aux/000.png"),), "safetensors"),
    "state dict": Kind("state.pt", (("evaluate", PICKLED, "ab"),), "torch"),
    "list of classes": Kind("names.txt", (("evaluate", STATE, "ab"),), "text"),
    "list of classes to keep": Kind("names.txt", (("evaluate", "a", "ab", "--keep", "@names.txt"),), "text"),
}


def prepare(folder: Path) -> None:
    """Make one whole file of every kind."""
    write_data(folder)
    picture = Image.open(folder / "aux" / "000.png")
    for suffix in ("jpg", "webp"):
        picture.save(folder / "aux" / f"some.{suffix}")
    (folder / "names.txt").write_text("a\nb\n")
    shutil.copy(folder / "aux" / "000.png", folder.parent / f"{SECRET}.png")
    pictures = [file.read_bytes() for name in "ab" for file in sorted((folder / "ab" / name).iterdir())]
    write_table(folder / "t.parquet", [{"bytes": content, "path": None} for content in pictures])
    pixels = np.random.default_rng(0).integers(0, 256, (32, 16, 16, 3), dtype=np.uint8)
    np.savez(folder / "t.npz", images=pixels, labels=np.arange(32) % 2, classes=np.array(["a", "b"]))
    for name in ("t.tar", "t.tar.gz"):
        write_tar(folder / name, 40)
    write_coco(folder)
    write_transformer(folder / "vit")
    for command in (
        ("train", "ab", "-o", "a", *SMALL),
        ("train", "cd", "-o", "b", *SMALL),
        ("train", "voc", "-o", "x", "--keep", "x", *TINY),
        (*MERGE, "-o", "merged"),
        (*MERGE, *SELECT, "-o", "selected"),
        ("export", "a", "-o", "a.onnx"),
        ("export", "x", "-o", "x.onnx"),
        BENCH,
    ):
        ended = Command(command, folder, folder / "log").poll(wait=True)
        if ended is None or ended.status:
            raise SystemExit(f"{' '.join(command)}: {(folder / 'log').read_text()}")
    torch.save(load_file(folder / "a" / "model.safetensors"), folder / "state.pt")
    for whole, half in (("a", "half"), ("selected", "halfway")):
        shutil.copytree(folder / whole, folder / half)
        for name in ("config.json", "model.safetensors", "README.md"):  # as if it had been killed before its end
            (folder / half / name).unlink()
    last = max((folder / GROUP).glob("group-*"), key=lambda group: group.name)
    (last / "confusion.npy").unlink()  # as if the cell had been killed in its last group


def write_transformer(folder: Path) -> None:
    """Save a small vision transformer as transformers does."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    names = {"id2label": {0: "c", 1: "d"}, "label2id": {"c": 0, "d": 1}}
    ViTForImageClassification(ViTConfig(image_size=16, patch_size=8, **shape, **names)).save_pretrained(folder)
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)


def write_coco(folder: Path) -> None:
    names = [f"{i}.png" for i in range(8)]
    content = {
        "images": [{"id": i, "file_name": name, "width": 64, "height": 64} for i, name in enumerate(names)],
        "annotations": [
            {"id": i, "image_id": i, "category_id": i % 2, "bbox": [10, 10, 30, 30], "area": 900, "iscrowd": 0}
            for i in range(8)
        ],
        "categories": [{"id": 0, "name": "x"}, {"id": 1, "name": "y"}],
    }
    (folder / "coco.json").write_text(json.dumps(content))


def watched() -> None:
    """Note in what the command prints if it connects, starts a program, or opens a file that nobody named."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        said = ""
        if event in ("socket.connect", "socket.getaddrinfo"):
            said = f"connects to {arguments[-1] if event == 'socket.connect' else arguments[0]}"
        elif event == "subprocess.Popen" and "git" not in str(arguments[0]):
            said = f"starts {arguments[0]}"
        elif event == "open" and SECRET in str(arguments[0]):
            said = f"opens {arguments[0]}"
        if said:
            os.write(2, f"\nWATCHED: {said}\n".encode())

    sys.addaudithook(hook)


def wrongs(said: str, status: int, seconds: float, megabytes: float) -> list[str]:
    """Name what a command did that it should not have done."""
    lines = [line.rpartition("\r")[2].strip() for line in said.splitlines()]
    progress = re.compile(r"\d+%\||\bit/s|\bs/it|images/s|^\d+image")
    errors = [line for line in lines if line and not progress.search(line)]
    found = [line.removeprefix("WATCHED: ") for line in dict.fromkeys(errors) if line.startswith("WATCHED")]
    if status not in (0, 2):
        found.append(f"status {status}")
    if "Traceback" in said:
        found.append("traceback")
    if "unexpected" in said:
        found.append("unexpected")
    if status == 2 and (not errors or not errors[-1].startswith("dmc: ")):
        found.append("not one line")
    if seconds > SECONDS:
        found.append("hangs" if seconds > PATIENCE else "slow")
    return [*found, f"{megabytes / 1024:.1f} GB"] if megabytes > MEGABYTES else found


def weights_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@dataclass(frozen=True)
class Outcome:
    kind: str
    damage: str
    number: int
    command: str
    status: int
    wrong: list[str]
    last: str


def copied(template: Path, folder: Path, file: str, arguments: tuple[str, ...]) -> None:
    """Copy what a command names, and the file that will be damaged."""
    folder.mkdir()
    for name in set(re.findall(r"[\w.]+", " ".join((file, *arguments)))):
        if (template / name).is_dir():
            shutil.copytree(template / name, folder / name)
        elif (template / name).exists():
            shutil.copy(template / name, folder / name)


def require_sound(kinds: list[str], template: Path, folder: Path) -> None:
    """Stop if a command fails without any damage: then it would show nothing."""
    for file, arguments in {(KINDS[kind].file, command) for kind in kinds for command in KINDS[kind].commands}:
        copied(template, folder, file, arguments)
        log = folder.parent / "said"
        ended = Command(arguments, folder, log).poll(wait=True)
        if ended is None or ended.status:
            raise SystemExit(f"{' '.join(arguments)}: {log.read_text()}")
        shutil.rmtree(folder)


def tried(kind: str, number: int, template: Path, folder: Path, usual: float) -> Outcome:
    """Damage a file of this kind, run a command that reads it, and judge what happened."""
    draw, chosen = random.Random(f"{kind} {number}"), KINDS[kind]
    arguments = draw.choice(chosen.commands)
    damage = draw.choice((*ANY, *SPECIAL[chosen.form], *SPECIAL[chosen.form]))
    copied(template, folder, chosen.file, arguments)
    damage(min(folder.glob(chosen.file)), draw)
    log = folder.parent / "said"
    log.unlink(missing_ok=True)
    command, most = Command(arguments, folder, log, watched), 0.0
    while (ended := command.poll()) is None:
        most = max(most, command.megabytes)
        if command.seconds > PATIENCE or most > usual + 2 * MEGABYTES:
            ended = command.kill()
            break
        time.sleep(0.005)
    said = log.read_text(errors="replace") if log.exists() else ""
    found = wrongs(said, ended.status, ended.seconds, max(most, ended.megabytes) - usual)
    for made in SAME.keys() & set(arguments) if ended.status == 0 else ():
        if weights_of(folder / made) != weights_of(template / SAME[made]):
            found.append("other weights")
    lines = [line for line in said.replace("\r", "\n").splitlines() if line.strip()]
    return Outcome(
        kind, damage.__name__, number, " ".join(arguments), ended.status, found, lines[-1][:300] if lines else ""
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="damages in all")
    parser.add_argument("--show", action="store_true", help="show every case in which something is wrong")
    parser.add_argument("--only", help="kinds of files whose name contains this")
    parser.add_argument("--first", type=int, default=0, help="number of the first damage of each kind")
    asked = parser.parse_args()
    preload()
    kinds = [kind for kind in KINDS if not asked.only or asked.only in kind]
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as temporary:
        template = Path(temporary) / "whole"
        template.mkdir()
        prepare(template)
        usual, folder = resident_before(), Path(temporary) / "damaged"
        require_sound(kinds, template, folder)
        for i in range(asked.count):
            kind = kinds[i % len(kinds)]
            outcomes.append(tried(kind, asked.first + i // len(kinds), template, folder, usual))
            if outcomes[-1].wrong and asked.show:
                print("\n  ".join([f"{key}: {value}" for key, value in vars(outcomes[-1]).items()]), flush=True)
            shutil.rmtree(folder)
    print("\n| file | damages | status 0 | status 2, one line | wrong | what |\n" + "|---" * 6 + "|")
    for kind in (*kinds, "all"):
        own = [outcome for outcome in outcomes if kind in (outcome.kind, "all")]
        wrong = [outcome for outcome in own if outcome.wrong]
        fine = Counter(outcome.status for outcome in own if not outcome.wrong)
        what = Counter(word for outcome in wrong for word in outcome.wrong)
        told = ", ".join(f"{word} {count}" for word, count in what.most_common())
        print(f"| {kind} | {len(own)} | {fine[0]} | {fine[2]} | {len(wrong)} | {told} |")


def resident_before() -> float:
    """Tell what a forked process has resident before it does anything."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()
