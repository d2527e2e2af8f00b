"""Compare what `dmc check` says of auxiliary images with how good a student becomes that learns from them.

    python -m benchmarks.pools DATA A B -o FOLDER     # about fifteen minutes on one core

DATA holds CIFAR-100 and the folders below `aux`, as DMC_DATA does. A and B are classifiers of some of CIFAR-100's
classes. From each pool the same number of images is taken, and a student sees them equally often. Truth is its accuracy
on CIFAR-100's test images of the teachers' classes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

import dmc
from dmc.data.auxiliary import Images
from dmc.models.specialist import Specialist

IMAGES, EPOCHS = 1200, 10
TABLES = ("mnist", "svhn", "dtd10", "scenes", "other_birds", "tiny_imagenet")


def pools(data: Path) -> dict[str, list[tuple[Images, int]]]:
    """Name the places of each pool, and how many images to take from each."""
    noise = np.random.default_rng(0).integers(0, 256, (IMAGES, 32, 32, 3), dtype=np.uint8)
    place = {name: str(data / "aux" / name / "train.parquet") for name in TABLES}
    whole: dict[str, list[tuple[Images, int]]] = {name: [(where, IMAGES)] for name, where in place.items()}
    half = IMAGES // 2
    return {
        "noise": [(noise, IMAGES)],
        **whole,
        "coco": [([str(file) for file in sorted((data / "aux" / "coco").glob("*.tar"))], IMAGES)],
        "svhn and scenes": [(place["svhn"], half), (place["scenes"], half)],
        "tiny_imagenet and mnist": [(place["tiny_imagenet"], half), (place["mnist"], half)],
    }


def pixels(parts: list[tuple[Images, int]]) -> np.ndarray:
    """Read so many images of each part at 32 pixels."""
    from dmc.data.decode import CenterCrop
    from dmc.data.loader import held_loader
    from dmc.data.open import open_images, sample_of

    found = []
    for images, count in parts:
        loader = held_loader(sample_of(open_images(images), count, seed=0), CenterCrop(32))
        found += [batch.images_N3HW.permute(0, 2, 3, 1).numpy() for batch in loader.in_order(256)]
    return np.concatenate(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("teachers", nargs=2)
    parser.add_argument("--out", "-o", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    asked = parser.parse_args()
    teachers = [dmc.load(teacher, kind=Specialist) for teacher in asked.teachers]
    names = [name for teacher in teachers for name in teacher.names]
    rows = []
    for name, parts in pools(asked.data).items():
        images = pixels(parts)
        told = dmc.check(teachers, images)["side_by_side"]["pool"]
        student = dmc.consolidate(
            teachers,
            images,
            asked.out / name.replace(" ", "-"),
            profile="paper",
            epochs=asked.epochs,
            shape="one-cycle",
            batch_size=32,
            resume=True,
            report=False,
        )
        found = dmc.evaluate(student, str(asked.data / "cifar100" / "test.parquet"), keep=names)
        rows.append((name, told["score"], len(told["rare"]), 100 * found.accuracy, told["verdict"]))
        print(f"{name}: score {told['score']}, accuracy {rows[-1][3]:.1f}", flush=True)
        (asked.out / "pools.json").write_text(json.dumps(rows))
    print("\n| pool | score | classes hardly suggested | verdict | accuracy, % |\n|---|---|---|---|---|")
    for name, score, rare, accuracy, words in sorted(rows, key=lambda row: -row[3]):
        print(f"| {name} | {score:.2f} | {rare} of {len(names)} | {words} | {accuracy:.1f} |")
    print(f"\nSpearman's rank correlation: {spearmanr([r[1] for r in rows], [r[3] for r in rows])[0]:.2f}")


if __name__ == "__main__":
    main()
