"""Compare students of auxiliary images that were selected with students of images at random.

    python -m benchmarks.selection DATA -o FOLDER --order 0     # about half an hour on one core

DATA is laid out as DMC_DATA is. Two ResNet-14 know ten classes of CIFAR-100 each; all students see as many images.
Accuracy is on the test images of the twenty classes. What is finished in the folder is read back.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.cifar import accuracies, specialists, student

SEEN = 96_000  # images by each student
POOLS = ("tiny_imagenet", "tiny_imagenet_more")
ROWS = {
    "8,000 at random": {"aux_limit": 8000},
    "8,000 selected": {"select": 8000},
    "16,000 at random": {"aux_limit": 16000},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", "-o", type=Path, required=True)
    parser.add_argument("--order", type=int, default=0)
    asked = parser.parse_args()
    teachers = list(specialists(asked.data, asked.order, 10, 2, asked.out))
    groups = [teacher.names for teacher in teachers]
    pool = [str(asked.data / "aux" / name / "train.parquet") for name in POOLS]
    found = {}
    for row, choice in ROWS.items():
        epochs = SEEN // next(iter(choice.values()))
        model = student(teachers, pool, asked.out / row.replace(" ", "-"), epochs, seed=asked.order, **choice)
        found[row] = accuracies(model, asked.data, groups)
        print(f"{row}: {found[row]}", flush=True)
    (asked.out / "selection.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
