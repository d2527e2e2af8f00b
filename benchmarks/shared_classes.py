"""Compare targets for classes that two teachers share: the mean of both, or each as much as it is certain.

    python -m benchmarks.shared_classes DATA -o FOLDER --order 0     # about fifteen minutes on one core

DATA is laid out as DMC_DATA is. Two ResNet-14 know fifteen classes of CIFAR-100 each, of which they share ten. The
target is tried as it is, teachers side by side; with `--short` the second teacher was trained for a quarter as long.
Accuracy is on 2,000 training images that no teacher has seen. What is finished in the folder is read back.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from benchmarks.cifar import ARCH, SHORT
from benchmarks.unlike_teachers import answers
from torch import Tensor

from dmc.bench.streams import open_stream
from dmc.choices import NetworkChoice
from dmc.classes import ClassUnion
from dmc.config import RESUMED
from dmc.data.subsets import split_off
from dmc.distill.targets import build_targets, centred
from dmc.recipes.profile import load_profile
from dmc.tasks.classification import Classification

HELD_OUT, ALONE = 2000, 5


def weighted(logits: list[Tensor], union: ClassUnion, certainty: list[Tensor]) -> Tensor:
    """Build the target with each teacher counting, image by image, as much as it is certain of its own answer."""
    count_NT = logits[0].new_zeros((len(logits[0]), len(union.names)))
    sum_NT = count_NT.clone()
    for logits_NK, columns, certain_N in zip(logits, union.columns, certainty, strict=True):
        sum_NT[:, list(columns)] += centred(logits_NK) * certain_N[:, None]
        count_NT[:, list(columns)] += certain_N[:, None]
    return sum_NT / count_NT


def entropy(logits_NK: Tensor) -> Tensor:
    """Give the entropy of each answer, from 0 to 1."""
    odds_NK = logits_NK.log_softmax(dim=1)
    return -(odds_NK.exp() * odds_NK).sum(dim=1) / torch.tensor(logits_NK.shape[1]).log()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", "-o", type=Path, required=True)
    parser.add_argument("--order", type=int, default=0)
    parser.add_argument("--short", action="store_true")
    asked = parser.parse_args()
    profile = load_profile("lite", "icifar100", {"classes": 20})
    stream = open_stream("icifar100", 20, asked.order, profile, asked.data, False)
    names = list(stream.groups[0])
    unseen, seen = split_off(stream.train.keep(names), HELD_OUT, asked.order)
    network, quarter = NetworkChoice(ARCH, None, None, "small"), SHORT.changed({"epochs": SHORT.epochs // 4})
    parts = {"first": (names[:-ALONE], SHORT), "second": (names[ALONE:], SHORT)}
    if asked.short:
        parts = {"first": parts["first"], "second-short": (names[ALONE:], quarter)}
    teachers = [
        Classification().trained(seen.keep(own), network, schedule, seed=asked.order, out=asked.out / name, how=RESUMED)
        for name, (own, schedule) in parts.items()
    ]
    union = ClassUnion.of([teacher.names for teacher in teachers])
    logits, labels = zip(*(answers(teacher, unseen) for teacher in teachers), strict=True)
    named_N = [unseen.classes[label] for label in labels[0].tolist()]
    column_N = torch.tensor([union.names.index(name) for name in named_N])
    sure = [one.softmax(dim=1).amax(dim=1) for one in logits]
    rows = {
        "mean (the paper's)": build_targets(logits, union),
        "by the highest probability": weighted(list(logits), union, sure),
        "by its square": weighted(list(logits), union, [one**2 for one in sure]),
        "by 1 - entropy": weighted(list(logits), union, [1 - entropy(one) for one in logits]),
    }
    groups = {"first": names[:ALONE], "shared": names[ALONE:-ALONE], "second": names[-ALONE:]}
    print("| target | all | " + " | ".join(groups) + " |")
    for row, target_NT in rows.items():
        right_N = target_NT.argmax(dim=1) == column_N
        of_each = [
            float(right_N[torch.tensor([name in group for name in named_N])].double().mean())
            for group in groups.values()
        ]
        print("| " + " | ".join([row, *(f"{100 * a:.1f}" for a in (float(right_N.double().mean()), *of_each))]) + " |")


if __name__ == "__main__":
    main()
