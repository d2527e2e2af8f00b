"""Kill commands with SIGKILL at random moments, resume them, and compare their weights with those of undisturbed runs.

    python -m benchmarks.kills                         # 300 kills, about half an hour on one core
    python -m benchmarks.kills --soak 60 --every 60    # an hour with a kill every minute

Every verb that trains, on tiny images: training, merging from memory, from a stream and with kept answers, learning,
detectors, a cell of the benchmark. Half of the kills wait for a file that is being written (`*.part`). Lost: the
command did not finish when it was resumed. Different: other bits than without a kill. Left behind: files at the end
that are not there without a kill, such as locks and parts of files.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import random
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.behaviour import DETECTORS, write_data
from benchmarks.forked import Command, Ended, preload

PATIENCE = 120.0  # seconds after which a command hangs
LOOK_EVERY = 0.0005  # seconds between looks for a file that is being written
RESULTS = ("model.safetensors", "confusion.npy", "precisions.json")
ALWAYS = ("--checkpoint-every", "0", "--resume")  # a checkpoint after each step: more moments to be killed in
SMALL = ("--arch", "cifar_resnet8", "--size", "16", "--batch-size", "8")
TINY = ("--arch", DETECTORS["retinanet"], "--weights", "random", "--size", "64", "--batch-size", "4")
MERGE = ("consolidate", "a", "b", "--aux")
JOBS: dict[str, tuple[str, ...]] = {
    "train": ("train", "ab", "-o", "{}/out", *SMALL, "--epochs", "20", *ALWAYS),
    "train a detector": ("train", "voc", "-o", "{}/out", *TINY, "--epochs", "10", *ALWAYS),
    "consolidate": (*MERGE, "aux", "-o", "{}/out", "--epochs", "20", "--batch-size", "8", *ALWAYS),
    "consolidate, streamed": (
        *(*MERGE, "aux.tar", "-o", "{}/out", "--epochs", "20", "--batch-size", "8", "--memory", "0", *ALWAYS),
    ),
    "consolidate, answers kept": (
        *(*MERGE, "aux", "-o", "{}/out", "--epochs", "20", "--batch-size", "8", "--cache", "{}/answers", *ALWAYS),
    ),
    "consolidate, selected": (
        *(*MERGE, "aux", "-o", "{}/out", "--epochs", "20", "--batch-size", "8", "--select", "16", *ALWAYS),
    ),
    "consolidate detectors": (
        *("consolidate", "x", "y", "--aux", "voc/JPEGImages", "-o", "{}/out", "--weights", "random", "--epochs", "8"),
        *("--batch-size", "4", *ALWAYS),
    ),
    "learn": (
        *("learn", "a", "cd", "--aux", "aux", "-o", "{}/out", "--specialist-epochs", "8", "--epochs", "8"),
        *("--batch-size", "8", *ALWAYS),
    ),
    "bench": ("bench", "digits", "--profile", "smoke", "--methods", "dmc", "--orders", "1", "-o", "{}/out"),
}


class Moment(NamedTuple):
    """When to kill: after some seconds, or at the first write after them."""

    seconds: float
    in_write: bool


class Peace(NamedTuple):
    """What a command leaves that nobody kills."""

    results: dict[str, str]  # hashes of weights and scores
    files: set[str]
    seconds: float


@dataclass
class Tally:
    """What happened to the runs of one kind."""

    runs: int = 0
    kills: int = 0
    in_write: int = 0
    lost: int = 0
    different: int = 0
    left: int = 0


def prepare(folder: Path) -> None:
    """Write the images, and train the models that others build on."""
    write_data(folder)
    with tarfile.open(folder / "aux.tar", "w") as tar:
        for file in sorted((folder / "aux").iterdir()):
            tar.add(file, file.name)
    short = ("--epochs", "2")
    for command in (
        ("train", "ab", "-o", "a", *SMALL, *short),
        ("train", "cd", "-o", "b", *SMALL, *short),
        ("train", "voc", "-o", "x", "--keep", "x", *TINY, *short),
        ("train", "voc", "-o", "y", "--keep", "y", *TINY, *short),
    ):
        ended = Command(command, folder, folder / "log").poll(wait=True)
        assert ended is not None
        if ended.status:
            raise SystemExit(f"{' '.join(command)}: {(folder / 'log').read_text()}")


def parts_in(folder: Path) -> set[Path]:
    """List the files that are being written, or were when their process died."""
    return {Path(place, name) for place, _, names in os.walk(folder) for name in names if name.endswith(".part")}


def files_in(folder: Path) -> set[str]:
    """Name the files and folders below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def results(folder: Path) -> dict[str, str]:
    """Hash the weights and scores below a folder."""
    files = (file for name in RESULTS for file in sorted(folder.rglob(name)))
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def run(arguments: Sequence[str], folder: Path, place: Path, moment: Moment | None) -> Ended:
    """Run a command until it ends, or until the moment to kill it."""
    stale = parts_in(place)  # of the last kill
    command = Command([part.format(place.name) for part in arguments], folder, place / "log")
    while (ended := command.poll()) is None:
        due = moment is not None and command.seconds >= moment.seconds
        if command.seconds > PATIENCE or (moment and due and (not moment.in_write or parts_in(place) - stale)):
            return command.kill()
        time.sleep(LOOK_EVERY if due else 0.002)
    return ended


def trial(arguments: Sequence[str], folder: Path, place: Path, moments: Iterator[Moment], expected: Peace) -> Tally:
    """Run a command, killed and resumed at each of the moments, until it ends by itself; judge what it left."""
    place.mkdir()
    tally = Tally(runs=1)
    for moment in itertools.chain(moments, itertools.repeat(None)):
        before = parts_in(place)
        ended = run(arguments, folder, place, moment)
        if ended.status != -9 or ended.seconds > PATIENCE:
            break
        tally.kills += 1
        tally.in_write += bool(parts_in(place) - before)
    left = files_in(place) - expected.files
    tally.lost = int(ended.status != 0)
    tally.different = int(not tally.lost and results(place) != expected.results)
    tally.left = len(left)
    if left:
        print(f"{place.name}: {' '.join(arguments)}: left behind: {', '.join(sorted(left))}", flush=True)
    if tally.lost or tally.different:
        said = (place / "log").read_text(errors="replace").strip().splitlines()
        print(
            f"{place.name}: {' '.join(arguments)}: status {ended.status}, {said[-1] if said else 'silent'}", flush=True
        )
    shutil.rmtree(place)
    return tally


def add(total: Tally, one: Tally) -> None:
    for name, value in vars(one).items():
        setattr(total, name, getattr(total, name) + value)


def undisturbed(folder: Path) -> dict[str, Peace]:
    """Run every command once in peace."""
    found: dict[str, Peace] = {}
    for name, arguments in JOBS.items():
        place = folder / f"peace-{len(found)}"
        place.mkdir()
        ended = run(arguments, folder, place, None)
        if ended.status:
            raise SystemExit(f"{name}: {(place / 'log').read_text()}")
        found[name] = Peace(results(place), files_in(place), ended.seconds)
        print(f"{name}: {ended.seconds:.1f} s", flush=True)
    return found


def at_random(draw: random.Random, length: float) -> Iterator[Moment]:
    """Give one to six moments within the length of a run."""
    for _ in range(draw.randint(1, 6)):
        yield Moment(draw.uniform(0.05, length), draw.random() < 0.5)


def every(seconds: float, draw: random.Random, until: float, due: list[float]) -> Iterator[Moment]:
    """Give the next multiples of some seconds; `due` holds the next one from run to run."""
    while due[0] < until:
        yield Moment(max(0.05, due[0] - time.monotonic()), draw.random() < 0.5)
        while due[0] <= time.monotonic():
            due[0] += seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--soak", type=float, help="minutes of runs, one after the other")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between the kills of a soak")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    preload()
    draw, tallies = random.Random(asked.seed), {name: Tally() for name in JOBS}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(folder)
        peace = undisturbed(folder)
        until = time.monotonic() + 60 * (asked.soak or 0)
        due = [time.monotonic() + asked.every]
        for number, name in enumerate(itertools.cycle(JOBS)):
            if time.monotonic() > until if asked.soak else sum(t.kills for t in tallies.values()) >= asked.kills:
                break
            expected = peace[name]
            moments = every(asked.every, draw, until, due) if asked.soak else at_random(draw, expected.seconds)
            add(tallies[name], trial(JOBS[name], folder, folder / f"trial-{number}", moments, expected))
    print("\n| command | runs | kills | of them in a write | lost | different | left behind |\n" + "|---" * 7 + "|")
    total = Tally()
    for tally in tallies.values():
        add(total, tally)
    for name, tally in {**tallies, "all": total}.items():
        print(f"| {name} | {' | '.join(str(value) for value in vars(tally).values())} |")


if __name__ == "__main__":
    main()
