"""What dmc does, as hashes: run it before and after a change of shape, and compare the two files.

    python benchmarks/behaviour.py before.json        # about five minutes
    python benchmarks/behaviour.py after.json --against before.json

Small runs, each through the command line: every verb, every detector family, all methods of the benchmark, a run that
is killed and resumed; with DMC_DATA, a recipe for detectors. Of each: exit status, what it printed, the weights' hash,
`run.json` without versions and fingerprints, losses of each epoch. Bits are those of one machine and one
number of threads.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

QUICK = ("--epochs", "2", "--batch-size", "8")
SMALL = ("--arch", "cifar_resnet8", "--size", "16", *QUICK)
LONG = ("consolidate", "a", "b", "--aux", "aux", "-o", "k", "--epochs", "40", "--batch-size", "8")
DETECTORS = {
    "retinanet": "retinanet:timm/test_resnet,width=16,depth=1,scale=2",
    "fcos": "fcos:timm/test_resnet,width=64,depth=1",
    "ssd": "ssdlite320_mobilenet_v3_large",
}
VERBS = ("train", "consolidate", "learn", "check", "evaluate", "predict", "demo", "bench", "reproduce")


def write_data(folder: Path) -> None:
    """Noisy colours in folders of classes, unlabeled noise, and squares in VOC's layout."""
    draw = np.random.default_rng(0)
    for data, classes in (("ab", "ab"), ("cd", "cd"), ("aux", " ")):
        for colour, name in enumerate(classes):
            place = folder / data / name.strip()
            place.mkdir(parents=True)
            for i in range(24):
                pixels = draw.integers(0, 120, (20, 20, 3), dtype=np.uint8)
                pixels[:, :, colour] += 130 if data != "aux" else 0
                Image.fromarray(pixels).save(place / f"{i:03}.png")
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / "voc" / part).mkdir(parents=True)
    box = "<bndbox><xmin>11</xmin><ymin>11</ymin><xmax>40</xmax><ymax>40</ymax></bndbox>"
    for i in range(8):
        pixels = draw.integers(0, 90, (64, 64, 3), dtype=np.uint8)
        pixels[10:40, 10:40, i % 2] = 250
        Image.fromarray(pixels).save(folder / "voc" / "JPEGImages" / f"{i}.png")
        thing = f"<object><name>{'xy'[i % 2]}</name>{box}</object>"
        size = "<size><width>64</width><height>64</height></size>"
        text = f"<annotation><filename>{i}.png</filename>{size}{thing}</annotation>"
        (folder / "voc" / "Annotations" / f"{i}.xml").write_text(text)
    (folder / "voc" / "ImageSets" / "Main" / "train.txt").write_text("".join(f"{i}\n" for i in range(8)))


def commands() -> dict[str, list[str]]:
    """Named, in the order in which they build on each other; `kill` in front: after its first checkpoint."""
    found = {
        "train ab": ["train", "ab", "-o", "a", *SMALL],
        "train cd": ["train", "cd", "-o", "b", *SMALL],
        "train, paper": ["train", "ab", "-o", "p", "--profile", "paper", *SMALL],
        "check": ["check", "a", "b", "--aux", "aux", *QUICK],
        "consolidate": ["consolidate", "a", "b", "--aux", "aux", "-o", "m", *QUICK],
        "consolidate, paper": ["consolidate", "a", "b", "--aux", "aux", "-o", "mp", "--profile", "paper", *QUICK],
        "consolidate, streamed": ["consolidate", "a", "b", "--aux", "aux", "-o", "ms", "--memory", "0", *QUICK],
        "killed": ["kill", *LONG],
        "resumed": [*LONG, "--resume"],
        "learn": ["learn", "a", "cd", "--aux", "aux", "-o", "n", "--specialist-epochs", "1", *QUICK],
        "evaluate": ["evaluate", "m", "ab"],
        "predict": ["predict", "m", "aux/000.png", "--json"],
        "bench": ["bench", "digits", "--profile", "smoke", "--orders", "1", "-o", "bench"],
    }
    for family, arch in DETECTORS.items():
        small = ("--arch", arch, "--weights", "random", "--size", "64", "--epochs", "1", "--batch-size", "4")
        for name in "xy":
            found[f"train {family} {name}"] = ["train", "voc", "-o", family + name, "--keep", name, *small]
        merge = ["consolidate", f"{family}x", f"{family}y", "--aux", "voc/JPEGImages", "-o", family]
        found[f"consolidate {family}"] = [*merge, "--weights", "random", "--epochs", "1", "--batch-size", "4"]
    if "DMC_DATA" in os.environ:
        found["reproduce voc-10+10"] = ["reproduce", "voc-10+10", "--profile", "smoke", "-o", "reproduced"]
    return found | {f"{verb} --help": [verb, "--help"] for verb in VERBS}


def run(arguments: list[str], folder: Path) -> tuple[int, str]:
    """Exit status and output, of which what a clock says is left out."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    killed = arguments[0] == "kill"
    command = [sys.executable, "-m", "dmc", *(arguments[1:] if killed else arguments)]
    if killed:
        command += ["--checkpoint-every", "0"]
    job = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    while killed and job.poll() is None and not (folder / "k" / "checkpoint.pt").exists():
        pass
    if killed:
        job.kill()
    said = job.communicate()[0]
    return job.returncode, re.sub(r"about [\d hmins]+|[\d,]+ (images/s|per second)", "<time>", said)


def results(folder: Path) -> dict[str, Any]:
    """Of each model folder: its weights' hash, its settings, its losses."""
    found: dict[str, Any] = {}
    for weights in sorted(folder.rglob("model.safetensors")):
        place = weights.parent
        entry: dict[str, Any] = {"weights": hashlib.sha256(weights.read_bytes()).hexdigest()[:16]}
        if (place / "run.json").exists():
            entry["run"] = without_fingerprints(json.loads((place / "run.json").read_text()))
            lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
            entry["losses"] = [line["loss"] for line in lines]
        found[str(place.relative_to(folder))] = entry
    return found


def without_fingerprints(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_fingerprints(v) for k, v in value.items() if k not in ("versions", "fingerprint")}
    return [without_fingerprints(part) for part in value] if isinstance(value, list) else value


def differences(old: Any, new: Any, place: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        return [line for key in keys for line in differences(old.get(key), new.get(key), f"{place}/{key}")]
    return [] if old == new else [f"{place}: {str(old)[:200]!r} -> {str(new)[:200]!r}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--against", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_data(folder)
        said = {}
        for name, arguments in commands().items():
            status, text = run(arguments, folder)
            said[name] = {"status": status, "said": "" if name == "killed" else text.replace(str(folder), "")}
            print(f"{name}: {status}", flush=True)
        found = {"said": said, "results": results(folder)}
    asked.out.write_text(json.dumps(found, indent=1) + "\n")
    if asked.against:
        print("\n".join(differences(json.loads(asked.against.read_text()), found)) or "no difference")


if __name__ == "__main__":
    main()
