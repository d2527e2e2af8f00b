"""How should OpenMP's threads wait for each other? Prints training steps' images per second, and ratios to the default.

    python benchmarks/waiting_threads.py --busy 1

Each setting is measured in a process of its own, in turns; `--busy` is the number of other processes, each of which
keeps a core busy meanwhile. For the network of each depth, one step is forward, backward and SGD on 32 random images.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from statistics import median

SETTINGS = {
    "default": {},
    "spin 100,000": {"GOMP_SPINCOUNT": "100000"},
    "spin 10,000": {"GOMP_SPINCOUNT": "10000"},
    "spin 1,000": {"GOMP_SPINCOUNT": "1000"},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
}
BATCH = 32


def measure(depth: int, seconds: float) -> None:
    """Train for some seconds and print the images per second."""
    import torch
    import torch.nn.functional as F

    from dmc.models.cifar_resnet import CifarResNet

    torch.manual_seed(0)
    network = CifarResNet(depth, 10).to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    images_N3HW, labels_N = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(network(images_N3HW), labels_N).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    for _ in range(5):
        step()
    started, steps = time.perf_counter(), 0
    while (passed := time.perf_counter() - started) < seconds:
        step()
        steps += 1
    print(steps * BATCH / passed)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--depths", type=int, nargs="+", default=[14, 32])
    options.add_argument("--busy", type=int, default=0)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--seconds", type=float, default=5.0)
    options.add_argument("--measure", type=int, help=argparse.SUPPRESS)  # the depth, in a process of its own
    given = options.parse_args()
    if given.measure:
        measure(given.measure, given.seconds)
        return
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(given.busy)]
    try:
        for depth in given.depths:
            compare(depth, given.repeats, given.seconds)
    finally:
        for other in others:
            other.kill()


def compare(depth: int, repeats: int, seconds: float) -> None:
    """Measure each setting in turns and print a row for each."""
    command = [sys.executable, __file__, "--measure", str(depth), "--seconds", str(seconds)]
    found: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for _ in range(repeats):
        for name, setting in SETTINGS.items():
            answer = subprocess.run(command, env=os.environ | setting, capture_output=True, text=True, check=True)
            found[name].append(float(answer.stdout))
    for name, rates in found.items():
        ratios = [rate / usual for rate, usual in zip(rates, found["default"], strict=True)]
        each = " ".join(f"{rate:.0f}" for rate in rates)
        print(
            f"cifar_resnet{depth} {name:13} {median(rates):6.0f} images/s ({each}), x{median(ratios):.2f}", flush=True
        )


if __name__ == "__main__":
    main()
