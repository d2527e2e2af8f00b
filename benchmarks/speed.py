"""Measure consolidation against the loop that one would write first, and its parts; print ratios of one run.

    python benchmarks/speed.py [--rows naive-2,naive-5,naive-10,warm,cost,student,processes,detector,boxes]

The naive loop is honest: teachers in eval mode under no_grad, a DataLoader with two workers and torchvision's
transforms on PIL images, SGD, the L2 loss on normalised logits; every batch asks every teacher, in torch's default
layout.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torchvision.transforms as T
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.flop_counter import FlopCounterMode

import dmc
from dmc.config import ClassifierConsolidateConfig
from dmc.data.batch import Batch
from dmc.distill.anchor_teachers import AnchorTeachers
from dmc.distill.box_teachers import BoxTeachers
from dmc.distill.cache import AnswerCache
from dmc.distill.detector_objective import DetectionDistillation
from dmc.estimate import cost_of, some_batches
from dmc.models.detector import Detector
from dmc.models.pyramids import IMAGENET
from dmc.models.specialist import Specialist
from dmc.precision import fast_precision
from dmc.schedule import CONSOLIDATION
from dmc.tasks.classifier_consolidation import ClassifierConsolidation

ARCH, SIDE, CLASSES, BATCH = "cifar_resnet32", 32, 10, 128
DETECTOR, SMALL = "retinanet:timm/tf_efficientnet_lite0,width=64,depth=2", "retinanet_resnet18_fpn"
CPU = torch.device("cpu")
# Untrained teachers answer anything, on which the paper's rate diverges; the rate changes no time.
SCHEDULE = CONSOLIDATION.changed({"batch_size": BATCH, "lr": 1e-4})


class Pictures(Dataset[Tensor]):
    """Images as PIL has them, transformed one by one."""

    def __init__(self, images: np.ndarray[Any, Any]) -> None:
        self.images = [Image.fromarray(image) for image in images]
        self.transform = T.Compose(
            [T.RandomCrop(SIDE, padding=4), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize([0.5] * 3, [0.25] * 3)]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> Tensor:
        shown: Tensor = self.transform(self.images[i])
        return shown


def naive(teachers: list[nn.Module], student: nn.Module, images: np.ndarray[Any, Any], epochs: int) -> float:
    """Consolidate in the way one would write it first; give the seconds of an epoch."""
    loader = DataLoader(Pictures(images), batch_size=BATCH, shuffle=True, num_workers=2)
    optimizer = torch.optim.SGD(student.parameters(), lr=1e-4, momentum=0.9, weight_decay=1e-4)
    for teacher in teachers:
        teacher.eval()
    student.train()
    seconds = []
    for _ in range(epochs):
        started = time.monotonic()
        for batch in loader:
            with torch.no_grad():
                answers = [teacher(batch) for teacher in teachers]
                target = torch.cat([logits - logits.mean(dim=1, keepdim=True) for logits in answers], dim=1)
            loss = (student(batch) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds.append(time.monotonic() - started)
    return median(seconds)


def noise(count: int, side: int = SIDE) -> np.ndarray[Any, Any]:
    """Make coloured noise: speed does not depend on what images show."""
    return np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def specialists(count: int) -> list[Specialist]:
    names = ([f"{i}-{k}" for k in range(CLASSES)] for i in range(count))
    return [Specialist.untrained(ARCH, own, None, "softmax", i, None) for i, own in enumerate(names)]


def ours(teachers: list[Any], images: np.ndarray[Any, Any], epochs: int, **settings: Any) -> tuple[float, list[float]]:
    """Consolidate with dmc; give the seconds of all of it, and those of each epoch."""
    with tempfile.TemporaryDirectory() as folder:
        schedule = settings.pop("schedule", SCHEDULE).changed({"epochs": epochs})
        started = time.monotonic()
        dmc.consolidate(teachers, images, Path(folder) / "run", schedule=schedule, held_out=0, **settings)
        whole = time.monotonic() - started
        lines = (Path(folder) / "run/metrics.jsonl").read_text().splitlines()
    ends = [json.loads(line)["seconds"] for line in lines]
    return whole, [after - before for before, after in zip([0.0, *ends], ends, strict=False)]


def against_naive(teachers: int, count: int, precision: str) -> list[str]:
    """Measure whole runs of 20 epochs, which fill the cache as they go, against 20 epochs of the naive loop.

    Every epoch of the naive loop is the same work, so three are measured.
    """
    images, models = noise(count), specialists(teachers)
    wide = Specialist.untrained(ARCH, [name for model in models for name in model.names], None, "softmax", 0, None)
    slow = 20 * naive([model.module for model in models], wide.module, images, epochs=3)
    said = []
    for views in (2, 4):
        with tempfile.TemporaryDirectory() as cache:
            fast, epochs = ours(
                specialists(teachers),
                images,
                20,
                schedule=SCHEDULE.changed({"precision": precision}),
                cache=cache,
                views=views,
                balance=False,
                scale="none",
            )
        parts = f"filling {epochs[0]:.1f} s, warm {median(epochs[views:]):.1f} s an epoch"
        said.append(
            f"| {teachers} teachers, {precision}, {views} views: naive / ours | {slow / fast:.2f} | "
            f"{slow:.0f} s / {fast:.0f} s; {parts} |"
        )
    return said


def warm_epochs(count: int) -> list[str]:
    """Compare an epoch with ten teachers to one with two, both with a warm cache."""
    seconds: dict[int, float] = {}
    images = noise(count)
    for teachers in (2, 10, 2, 10):
        with tempfile.TemporaryDirectory() as cache:
            settings = {"cache": cache, "views": 1, "balance": False, "scale": "none"}
            _, epochs = ours(specialists(teachers), images, 6, **settings)
        seconds[teachers] = min(seconds.get(teachers, 1e9), median(epochs[1:]))
    return [f"| epoch with 10 teachers / with 2, cache warm | {seconds[10] / seconds[2]:.2f} | |"]


def cost_model(count: int) -> list[str]:
    """Compare the seconds of short runs to those that the cost model works out from one step before them."""
    said = []
    for teachers, views in ((2, None), (2, 2), (5, None), (5, 2), (10, 2)):
        images, schedule = noise(count), SCHEDULE.changed({"epochs": 6})
        with tempfile.TemporaryDirectory() as cache:
            kept: dict[str, Any] = {} if views is None else {"cache": cache, "views": views}
            config = ClassifierConsolidateConfig(held_out=0, balance=False, scale="none", **kept)
            plan = ClassifierConsolidation(specialists(teachers), images, config, schedule)
            expected = cost_of(plan, some_batches(plan)[0][0]).seconds(count, schedule.epochs)
            _, epochs = ours(specialists(teachers), images, 6, balance=False, scale="none", **kept)
        words = f"{sum(epochs):.1f} s / {expected:.1f} s"
        what = f"{teachers} teachers, {'no cache' if views is None else f'{views} views'}"
        said.append(f"| measured / worked out: {what} | {sum(epochs) / expected:.2f} | {words} |")
    return said


def student_rate() -> list[str]:
    """Compare the student's step to a large matrix product, in operations per second."""
    (student,) = specialists(1)
    student.to(CPU).module.train()
    batch = torch.randn(BATCH, 3, SIDE, SIDE).contiguous(memory_format=torch.channels_last)

    def step() -> None:
        student.module(batch).square().mean().backward()

    with FlopCounterMode(display=False) as counter:
        step()
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    pairs = [(counter.get_total_flops() / seconds(step, 3), 2 * 2048**3 / seconds(lambda: a @ b, 3)) for _ in range(5)]
    ours_rate, matrix = (median(part) for part in zip(*pairs, strict=True))
    words = f"{ours_rate / 1e9:.0f} / {matrix / 1e9:.0f} GFLOP/s"
    return [f"| student's fp32 step / large matrix product | {ours_rate / matrix:.0%} | {words} |"]


def seconds(work: Callable[[], object], repeats: int) -> float:
    started = time.monotonic()
    for _ in range(repeats):
        work()
    return (time.monotonic() - started) / repeats


def processes(count: int) -> list[str]:
    """Compare one training in two processes of one thread each to the same in one."""
    found: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "images.npz", images=noise(count))
        for model in specialists(2):
            model.save(Path(folder) / model.names[0])
        for pair in range(4):
            for number in (1, 2):
                out = Path(folder) / f"run-{pair}-{number}"
                given = ["consolidate", "0-0", "1-0", "--aux", "images.npz", "-o", out.name, "--epochs", "5"]
                given += ["--batch-size", str(BATCH), "--no-balance", "--scale", "none", "--lr", "0.0001"]
                launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={number}"]
                environment = os.environ | {"OMP_NUM_THREADS": "1"}
                subprocess.run(
                    [sys.executable, *launcher, "-m", "dmc", *given],
                    cwd=folder,
                    env=environment,
                    check=True,
                    capture_output=True,
                )
                ends = [json.loads(line)["seconds"] for line in (out / "metrics.jsonl").read_text().splitlines()]
                found[number] += [end - begin for begin, end in pairwise(ends)]
    ratio = median(found[1]) / median(found[2])
    words = " / ".join(f"{median(found[n]):.1f} s (fastest {min(found[n]):.1f})" for n in (1, 2)) + " an epoch"
    return [f"| two processes of one thread / one, one training | {ratio:.2f} | {words} |"]


def detectors(arch: str, side: int) -> list[Detector]:
    """Make a student of ten classes, and two teachers with five of them each."""
    shown = replace(IMAGENET, size=side)
    return [
        Detector(Detector.architectures.create(arch, len(names)), names, shown, "sigmoid", arch, arch)
        for names in ("abcdefghij", "abcde", "fghij")
    ]


def box_teachers(repeats: int = 12) -> list[str]:
    """Compare asking two teachers through their boxes to asking them anchor by anchor, in turns."""
    said = []
    for arch, side in (("retinanet:timm/test_resnet,width=32,depth=2,scale=2", 96), (DETECTOR, 128), (SMALL, 128)):
        student, *teachers = detectors(arch, side)
        groups = {"anchors": AnchorTeachers(teachers), "boxes": BoxTeachers(teachers, student, anchors=64)}
        images = torch.from_numpy(noise(12, side)).permute(0, 3, 1, 2).contiguous()
        times: dict[str, list[float]] = {name: [] for name in groups}
        for group in groups.values():
            group.fold()
        for _ in range(repeats + 2):
            for name, group in groups.items():
                times[name].append(seconds(lambda g=group, i=images: g.select(i, 64), 1))  # type: ignore[misc]
        anchors, boxes = (median(times[name][2:]) for name in ("anchors", "boxes"))
        words = f"{boxes * 1000:.0f} / {anchors * 1000:.0f} ms"
        said.append(f"| teachers by boxes / by anchors, {arch} at {side} | {boxes / anchors:.2f} | {words} |")
    return said


def detector_step(repeats: int = 12) -> list[str]:
    """Compare a step of merging detectors with a warm cache to one that asks the teachers, in turns.

    All are frozen as with pretrained weights (batch norm, and the layers up to stride 4), which changes no time.
    """
    student, *teachers = detectors(DETECTOR, 640)
    asking, warm = AnchorTeachers(teachers), AnchorTeachers(teachers)
    batch = Batch(torch.from_numpy(noise(12, 128)).permute(0, 3, 1, 2).contiguous(), torch.zeros(12)).in_view(0)
    student.to(CPU).module.train()
    times: dict[str, list[float]] = {"asking": [], "warm": []}
    with tempfile.TemporaryDirectory() as folder, AnswerCache(Path(folder), 2**30, 2, 12, {}) as cache:
        for group in (asking, warm):
            group.fold()
        warm.remember(cache)
        for _ in range(repeats + 2):
            for name, group in (("asking", asking), ("warm", warm)):
                objective = DetectionDistillation(student, group, "l2", 1.0)
                times[name].append(seconds(lambda o=objective: o.losses(student.module, batch)["loss"].backward(), 1))  # type: ignore[misc]
    slow, fast = (median(times[name][2:]) for name in ("asking", "warm"))
    return [f"| detector's step, cache warm / asking | {fast / slow:.2f} | {fast * 1000:.0f} / {slow * 1000:.0f} ms |"]


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rows", default="naive-2,naive-5,naive-10,warm,cost,student,processes,detector,boxes")
    options.add_argument("--images", type=int, default=1024)
    given = options.parse_args()
    fast = fast_precision(CPU)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, precision auto: {fast}")
    if fast == "fp32":
        print("this CPU is not faster in bf16: rows with precision auto are those with fp32")
    rows: dict[str, Callable[[], list[str]]] = {
        "cost": lambda: cost_model(given.images // 2),
        "warm": lambda: warm_epochs(given.images),
        "student": student_rate,
        "processes": lambda: processes(given.images),
        "detector": detector_step,
        "boxes": box_teachers,
        **{f"naive-{n}": lambda n=n: against_naive(n, given.images, "fp32") for n in (2, 5, 10)},  # type: ignore[misc]
        **{f"naive-{n}-auto": lambda n=n: against_naive(n, given.images, fast) for n in (2, 10)},  # type: ignore[misc]
    }
    print("\n| what | ratio | |\n|---|---|---|")
    for name in given.rows.split(","):
        for line in rows[name]():
            print(line, flush=True)


if __name__ == "__main__":
    main()
