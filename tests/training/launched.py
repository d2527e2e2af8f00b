"""What tests/training/test_processes.py starts under a launcher: `launched.py JOB OUT IMAGES`."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import dmc
from dmc.data.readers import ArrayImages
from dmc.errors import DmcError
from dmc.schedule import Schedule
from dmc.training.classification import Supervised
from dmc.training.labeled import fit_labeled
from dmc.training.run_folder import Position
from tests.conftest import tiny
from tests.detectors import untrained

PLAIN: dict[str, Any] = {"scale": "none", "balance": False, "held_out": 0}
SCHEDULE = Schedule(epochs=4, lr=0.001, batch_size=10)


def main(job: str, out: Path, images: Path) -> None:
    if job == "dies" and os.environ["RANK"] == "1":  # as if the machine of one process were taken away
        add = Position.add

        def dying(self: Position, *given: object) -> None:
            add(self, *given)  # type: ignore[arg-type]
            if self.step == 7:
                os.kill(os.getpid(), signal.SIGKILL)

        Position.add = dying  # type: ignore[method-assign, assignment]
    if job in ("all", "held"):
        both = [tiny("ab", 1), tiny("cd", 2)]
        dmc.consolidate(both, images, out / "held", schedule=SCHEDULE, cache=str(out / "cache"), views=2, **PLAIN)
    if job in ("all", "streamed", "dies"):
        both = [tiny("ab", 1), tiny("cd", 2)]
        dmc.consolidate(
            both, images, out / "streamed", schedule=SCHEDULE, memory=0, resume=True, checkpoint_every=0, **PLAIN
        )
    if job == "all":
        quick = Schedule(epochs=1, lr=1e-4, batch_size=10, algorithm="adam", clip=0.1)
        detectors = [untrained("ab", seed=1), untrained("c", seed=2)]
        settings: dict[str, Any] = {"schedule": quick, "size": 64, "weights": None, "held_out": 0}
        dmc.consolidate(detectors, images, out / "detector", **settings)
        spare = tiny("ab", 1)
        spare.module.add_module("spare", nn.Linear(2, 2))  # has no gradient, like auxiliary heads
        pixels = np.random.default_rng(0).integers(0, 256, (25, 16, 16, 3), dtype=np.uint8)
        source = ArrayImages(pixels, np.arange(25) % 2, "ab")
        bf16 = SCHEDULE.changed({"precision": "bf16"})
        with suppress(DmcError):  # a network with a part of its own cannot be saved by its architecture's name
            fit_labeled(spare, source, Supervised(spare, "ab"), bf16, out=out / "labels")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
