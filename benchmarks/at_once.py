"""Compare merging many specialists at once with merging them one after another.

    python -m benchmarks.at_once DATA -o FOLDER --order 0     # about an hour on one core

DATA is laid out as DMC_DATA is. Ten ResNet-14 know five classes of CIFAR-100 each. One after another, the student of
the first k teaches the next one together with specialist k + 1; at once, all k teach a new student, which sees as many
images as one of those mergers takes, or as many as all of them together. Accuracy is on the test images of all classes
so far. What is finished in the folder is read back.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.cifar import accuracies, specialists, student

from dmc.models.specialist import Specialist

IMAGES, EPOCHS = 8000, 6
COUNTS = (2, 5, 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", "-o", type=Path, required=True)
    parser.add_argument("--order", type=int, default=0)
    asked = parser.parse_args()
    arriving = specialists(asked.data, asked.order, 5, COUNTS[-1], asked.out)
    aux = [str(asked.data / "aux" / "tiny_imagenet" / "train.parquet")]
    found: dict[str, list[float]] = {}

    def note(row: str, model: Specialist | list[Specialist]) -> None:
        of_all, *of_each = accuracies(model, asked.data, [teacher.names for teacher in teachers])
        row = f"{len(teachers)} {row}"
        found[row] = [of_all, *of_each]
        print(f"{row}: {of_all} ({of_each})", flush=True)
        (asked.out / "at_once.json").write_text(json.dumps(found, indent=1))

    def merged(given: list[Specialist], name: str, times: int = 1) -> Specialist:
        return student(given, aux, asked.out / name, EPOCHS * times, aux_limit=IMAGES, seed=asked.order)

    teachers = [next(arriving)]
    one_by_one = teachers[0]
    for count, newest in enumerate(arriving, start=2):
        teachers.append(newest)
        one_by_one = merged([one_by_one, newest], f"one-by-one-{count}")
        if count in COUNTS:
            note("side by side", teachers)
            note("one after another", one_by_one)
        if count in COUNTS[1:]:  # of two, both are the same
            note("at once, as long as one merger", merged(teachers, f"at-once-{count}"))
            note("at once, as long as all mergers", merged(teachers, f"long-{count}", count - 1))


if __name__ == "__main__":
    main()
