"""Two teachers that are unlike: what each way of balancing them does, on ten and ten classes of CIFAR-100.

    python benchmarks/unlike_teachers.py DATA -o FOLDER --seed 0

The first teacher is a ResNet-20 trained for 30 epochs, the second a ResNet-14 trained for 12; with `--faint 0.3` the
second one's logits are made that much smaller. Their student sees 4,000 images of Tiny-ImageNet for 8 epochs; 1,000
others are for balancing. What is finished in the folder is read back.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from dmc.bench.streams import open_stream
from dmc.choices import NetworkChoice
from dmc.config import RESUMED, ClassifierConsolidateConfig, Scale
from dmc.data.loader import open_loader
from dmc.data.open import open_images
from dmc.data.sources import Source, permuted
from dmc.data.subsets import JoinedImages, Unlabeled, listed_subset
from dmc.distill.balance import balancing_factors, output_layer, peaks, scale_rows, sharpness
from dmc.distill.teachers import Teachers
from dmc.models.specialist import Specialist
from dmc.recipes.profile import load_profile
from dmc.schedule import Schedule
from dmc.tasks.classification import Classification

SCALES: tuple[Scale, ...] = ("none", "pool-std", "balanced")


def answers(model: Specialist | Teachers, source: Source) -> tuple[Tensor, Tensor]:
    """Logits and labels of all images."""
    with torch.no_grad():
        parts = [(model.logits(b.images_N3HW), b.labels_N) for b in open_loader(source, model.transform).in_order(256)]
    logits, labels = zip(*parts, strict=True)
    return torch.cat(logits), torch.cat(labels)


def accuracies(logits_NT: Tensor, labels_N: Tensor, blocks: Sequence[Sequence[int]]) -> dict[str, float]:
    """In %: of each teacher's classes, all twenty competing, their mean, and each among its own ten."""
    found = {}
    for name, block in zip(("first", "second"), blocks, strict=True):
        mine = (labels_N >= block[0]) & (labels_N <= block[-1])
        own = logits_NT[mine][:, list(block)].argmax(dim=1) + block[0]
        found[name] = 100 * float((logits_NT[mine].argmax(dim=1) == labels_N[mine]).double().mean())
        found[f"{name} alone"] = 100 * float((own == labels_N[mine]).double().mean())
    return {"mean": (found["first"] + found["second"]) / 2, **found}


def balanced(logits_NT: Tensor, pool_NT: Tensor, blocks: Sequence[Sequence[int]]) -> Tensor:
    """The same logits, each block multiplied so that it wins its share of the pool."""
    factors = balancing_factors(peaks(pool_NT, blocks), [len(b) / pool_NT.shape[1] for b in blocks])
    scaled_NT = logits_NT.clone()
    for block, factor in zip(blocks, factors, strict=True):
        scaled_NT[:, list(block)] *= factor
    return scaled_NT


def best_ratio(logits_NT: Tensor, labels_N: Tensor, blocks: Sequence[Sequence[int]]) -> float:
    """The best mean that any ratio of the blocks has on the test images themselves: not to be had, a bound."""
    found = []
    for step in range(-16, 17):
        scaled_NT = logits_NT.clone()
        scaled_NT[:, list(blocks[1])] *= 2 ** (step / 4)
        found.append(accuracies(scaled_NT, labels_N, blocks)["mean"])
    return max(found)


def run(data: Path, out: Path, seed: int, faint: float) -> dict[str, dict[str, float]]:
    stream = open_stream("icifar100", 10, seed, load_profile("lite", "icifar100", {"classes": 20}), data, False)
    halves = [stream.train.keep(group) for group in stream.groups[:2]]
    long, short = Schedule(epochs=30, batch_size=64), Schedule(epochs=12, batch_size=64)
    task = Classification()
    networks = [NetworkChoice(f"cifar_resnet{depth}", None, None, "one deeper than the other") for depth in (20, 14)]
    first = task.trained(halves[0], networks[0], long, seed=seed, out=out / "A", how=RESUMED)
    second = task.trained(halves[1], networks[1], short, seed=seed, out=out / "B", how=RESUMED)
    layer = output_layer(second.module, 10, second.blank())
    assert layer is not None
    scale_rows(layer, torch.full((10,), faint))
    teachers = Teachers([first, second])
    blocks = teachers.union.blocks
    pool = open_images(data / "aux" / "tiny_imagenet" / "train.parquet")
    order = permuted(range(len(pool)), seed)
    aux, unseen = (listed_subset(pool, frozenset(part)) for part in (order[:4000], order[4000:5000]))
    leaning = JoinedImages(unseen, Unlabeled(listed_subset(halves[0], frozenset(range(0, 5000, 5)))))
    test = stream.test.keep(teachers.union.names)
    place = torch.tensor([teachers.union.names.index(name) for name in test.classes])

    found: dict[str, dict[str, float]] = {}
    sample = [batch.images_N3HW for batch in open_loader(unseen, teachers.transform).in_order(128)]
    own = [torch.cat(parts) for parts in zip(*(teachers.each(images) for images in sample), strict=True)]
    for scale in SCALES:
        if scale != "none":
            teachers.measure_scales(scale, sample)
        logits_NT, labels_N = answers(teachers, test)
        labels_N = place[labels_N]
        found[f"teachers side by side, scale {scale}"] = accuracies(logits_NT, labels_N, blocks)
        config = ClassifierConsolidateConfig(scale=scale, balance=False, held_out=0, seed=seed)
        merge = task.consolidation([first, second], aux, config, Schedule(epochs=8))
        student = merge.run(out / f"S-{scale}-{faint:g}", RESUMED)
        logits_NT, _ = answers(student, test)
        pool_NT, _ = answers(student, unseen)
        mended_NT = balanced(logits_NT, pool_NT, blocks)
        factor = sharpness(balanced(pool_NT, pool_NT, blocks), own, teachers.union)
        found[f"student, scale {scale}"] = accuracies(logits_NT, labels_N, blocks) | {
            "best ratio on the test images": best_ratio(logits_NT, labels_N, blocks),
            "highest probability": 100 * float(logits_NT.softmax(dim=1).amax(dim=1).mean()),
        }
        found[f"student, scale {scale}, balanced"] = accuracies(mended_NT, labels_N, blocks) | {
            "highest probability": 100 * float((factor * mended_NT).softmax(dim=1).amax(dim=1).mean())
        }
        leant_NT = balanced(logits_NT, answers(student, leaning)[0], blocks)
        found[f"student, scale {scale}, balanced on a leaning pool"] = accuracies(leant_NT, labels_N, blocks)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faint", type=float, default=1.0)
    asked = parser.parse_args()
    folder = asked.out / f"seed-{asked.seed}"
    found = run(asked.data, folder, asked.seed, asked.faint)
    (folder / f"found-{asked.faint:g}.json").write_text(json.dumps(found, indent=2) + "\n")
    for row, values in found.items():
        print(f"{row}: " + ", ".join(f"{name} {value:.1f}" for name, value in values.items()))


if __name__ == "__main__":
    main()
