"""Does decoding keep up, and does memory stay bounded? Prints ratios measured in one run.

    python benchmarks/streams.py                 # about ten minutes
    python benchmarks/streams.py --part rate     # or memory, or decoder

It makes its own images: JPEG of 32 x 32 pixels in tar shards. rate: ResNet-8 on a stream against the same on held
images, in turns, in the first pass, which decodes, and in a later one. memory: the most that was resident, in processes
of their own, over a whole pass. decoder: a consumer that only counts, as a fast GPU would; also for photographs.
"""

from __future__ import annotations

import argparse
import io
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image

from dmc.data.batch import Batch
from dmc.data.decode import CenterCrop
from dmc.data.loader import StreamLoader, held_loader
from dmc.data.open import open_images
from dmc.data.preprocess import Preprocessing
from dmc.models.specialist import Specialist
from dmc.schedule import Schedule
from dmc.training.classification import Supervised
from dmc.training.optimizer import optimizer_for

SIZE, BATCH, PER_SHARD = 32, 128, 5000


def write_shards(folder: Path, count: int, width: int = SIZE, height: int = SIZE) -> Path:
    """Smooth noise, about a kilobyte each at 32 x 32."""
    draw = np.random.default_rng(0)
    folder.mkdir()
    for first in range(0, count, PER_SHARD):
        with tarfile.open(folder / f"{first:07}.tar", "w") as tar:
            for i in range(first, min(first + PER_SHARD, count)):
                coarse = Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8))
                content = io.BytesIO()
                coarse.resize((width, height), Image.Resampling.BICUBIC).save(content, "JPEG")
                info = tarfile.TarInfo(f"{i:07}.jpg")
                info.size = content.tell()
                content.seek(0)
                tar.addfile(info, content)
    return folder


def trainer() -> Callable[[Batch], None]:
    """A step of ResNet-8, as the training loop makes it."""
    names = [str(i) for i in range(10)]
    model = Specialist.untrained("cifar_resnet8", names, Preprocessing(size=SIZE), seed=0)
    network = model.module.to(memory_format=torch.channels_last).train()
    schedule = Schedule()
    optimizer, objective = optimizer_for(schedule, network), Supervised(model, names)

    def step(batch: Batch) -> None:
        batch = Batch(batch.images_N3HW, torch.zeros(len(batch), dtype=torch.long)).augmented(None, flip=True)
        loss = objective.losses(network, batch)["loss"]
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def timed(step: Callable[[Batch], None], batches: Iterator[Batch], count: int) -> float:
    """Seconds for each image of some steps."""
    started, images = time.perf_counter(), 0
    for batch in islice(batches, count):
        step(batch)
        images += len(batch)
    return (time.perf_counter() - started) / images


def rates(folder: Path, rounds: int) -> None:
    source = open_images(folder)
    held, streamed = held_loader(source, CenterCrop(SIZE)), StreamLoader(source, CenterCrop(SIZE))
    step, feeds = trainer(), {"held": held.batches(0, BATCH), "streamed": streamed.batches(0, BATCH)}
    in_turn = streamed.steps(BATCH) // (rounds + 1)
    print(f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}\n")
    print("| pass | held, images/s | streamed, images/s | streamed / held, median | least | most |")
    print("|---|---|---|---|---|---|")
    for number in ("first", "later"):
        for feed in feeds.values():
            timed(step, feed, in_turn)  # warms up
        found = [{name: timed(step, feed, in_turn) for name, feed in feeds.items()} for _ in range(rounds)]
        ratios = [one["held"] / one["streamed"] for one in found]
        speeds = " | ".join(f"{1 / median(one[name] for one in found):.0f}" for name in feeds)
        print(f"| {number} | {speeds} | {median(ratios):.3f} | {min(ratios):.3f} | {max(ratios):.3f} |", flush=True)
        for _ in islice(feeds["streamed"], streamed.steps(BATCH) - (rounds + 1) * in_turn):  # the rest of the pass
            pass


def resident(folder: Path) -> None:
    """Print the most megabytes resident over twenty steps and a whole pass."""
    loader, step = StreamLoader(open_images(folder), CenterCrop(SIZE)), trainer()
    batches = loader.batches(0, BATCH)
    for i in range(loader.steps(BATCH)):
        batch = next(batches)
        if i < 20:
            step(batch)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def memory(few: Path, many: Path) -> None:
    found = []
    for folder in (few, many):
        asked = [sys.executable, __file__, "--part", "resident", "--folder", str(folder)]
        found.append(float(subprocess.run(asked, check=True, capture_output=True, text=True).stdout))
    print("\n| resident, 10,000 images, MB | 100,000 images, MB | ratio |\n|---|---|---|")
    print(f"| {found[0]:.0f} | {found[1]:.0f} | {found[1] / found[0]:.3f} |", flush=True)


def decoder(small: Path, photographs: Path) -> None:
    print("\n| decoder alone, images/s | 1 worker | 2 workers | 2 / 1 |\n|---|---|---|---|")
    for name, folder in ((f"{SIZE} pixels", small), ("photographs of 500x375", photographs)):
        streams = [StreamLoader(open_images(folder), CenterCrop(SIZE), workers) for workers in (1, 2)]
        feeds = [stream.batches(0, BATCH) for stream in streams]
        for number in ("first", "later"):
            one, two = (1 / timed(lambda batch: None, feed, streams[0].steps(BATCH)) for feed in feeds)
            print(f"| {name}, {number} pass | {one:.0f} | {two:.0f} | {two / one:.2f} |", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--part", choices=("rate", "memory", "decoder", "resident"))
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--rounds", type=int, default=10)
    given = options.parse_args()
    if given.part == "resident":
        resident(given.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        few = write_shards(Path(folder) / "few", 10_000)
        if given.part in (None, "rate"):
            rates(few, given.rounds)
        if given.part in (None, "decoder"):
            decoder(few, write_shards(Path(folder) / "photographs", 1000, 500, 375))
        if given.part in (None, "memory"):
            memory(few, write_shards(Path(folder) / "many", 100_000))


if __name__ == "__main__":
    main()
