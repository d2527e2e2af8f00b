"""What does a consolidation step cost beside its parts? Prints ratios measured in one run.

    python benchmarks/distillation_step.py

parts: the teachers' forward passes, the student's forward and backward pass through all of its outputs. The step adds
selecting 64 anchors, building the target and the loss on those anchors.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from statistics import median

import torch

from dmc.data.batch import Batch
from dmc.distill.anchor_teachers import AnchorTeachers
from dmc.distill.detector_objective import DetectionDistillation
from dmc.distill.detector_teachers import DetectorTeachers
from dmc.models.detector import Detector
from dmc.models.pyramids import IMAGENET
from dmc.precision import autocast


def seconds(work: Callable[[], object], repeats: int) -> list[float]:
    found = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--arch", default="retinanet:timm/tf_efficientnet_lite0,width=64,depth=2")
    options.add_argument("--size", type=int, default=160)
    options.add_argument("--batch-size", type=int, default=12)
    options.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    options.add_argument("--repeats", type=int, default=7)
    given = options.parse_args()

    student, *detectors = (  # frozen as with pretrained weights, which change no time
        Detector(
            Detector.architectures.create(given.arch, len(names)), names, IMAGENET, "sigmoid", given.arch, given.arch
        )
        for names in ("abcdefghij", "abcde", "fghij")
    )
    teachers = AnchorTeachers(detectors)
    plain = AnchorTeachers(detectors)
    teachers.fold()
    task = DetectionDistillation(student, teachers, "l2", 1.0)
    student.to(torch.device("cpu")).module.train()
    images_N3HW = torch.randint(0, 256, (given.batch_size, 3, given.size, given.size), dtype=torch.uint8)
    batch = Batch(images_N3HW, torch.zeros(given.batch_size))

    def arithmetic() -> AbstractContextManager[None]:
        return autocast(given.precision, images_N3HW.device)

    def teachers_alone(asked: DetectorTeachers) -> None:
        with arithmetic():
            asked.each(images_N3HW)

    def student_alone() -> None:
        with arithmetic():
            answers = student.answers(images_N3HW)
        (answers.logits_NAK.square().mean() + answers.boxes_NAB.square().mean()).backward()  # type: ignore[no-untyped-call]

    def whole_step() -> None:
        with arithmetic():
            loss = task.losses(student.module, batch)["loss"]
        loss.backward()  # type: ignore[no-untyped-call]

    parts: dict[str, Callable[[], object]] = {
        "teachers": lambda: teachers_alone(teachers),
        "teachers, not folded": lambda: teachers_alone(plain),
        "student": student_alone,
        "step": whole_step,
    }
    rounds: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(given.repeats + 1):  # interleaved, so that noise hits all alike; the first round warms up
        for name, work in parts.items():
            rounds[name] += seconds(work, 1)
    times = {name: median(found[1:]) for name, found in rounds.items()}
    for name, value in times.items():
        print(f"{name:22} {1000 * value:8.1f} ms")
    print(f"step / (teachers + student)   {times['step'] / (times['teachers'] + times['student']):.3f}")
    print(f"teachers, not folded / folded {times['teachers, not folded'] / times['teachers']:.3f}")


if __name__ == "__main__":
    main()
