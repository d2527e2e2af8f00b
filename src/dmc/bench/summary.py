"""Sum up finished cells: means and standard deviations over class orders."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import isnan
from typing import Any

import numpy as np

from dmc.bench.comparison import ComparisonFolder
from dmc.metrics.incremental import StreamScores

Spread = dict[str, float | None]  # "mean" and "std"; None where there is none


def collected(bench: ComparisonFolder) -> dict[str, dict[int, StreamScores]]:
    """Give the scores of all finished cells of a comparison, by method and order."""
    found: dict[str, dict[int, StreamScores]] = {}
    for method in bench.known_methods():
        for order in bench.orders():
            scores = bench.finished(method, order)
            if scores is not None:
                found.setdefault(method, {})[order] = scores
    return found


def summary(found: dict[str, dict[int, StreamScores]]) -> dict[str, Any]:
    """Give mean and standard deviation over orders, as fractions; intransigence needs the Oracle in the same orders."""
    joint = found.get("oracle", {})
    result = {}
    for method, cells in found.items():
        against = joint if cells.keys() <= joint.keys() else {}
        columns: dict[str, list[float]] = {
            "final": [s.final for s in cells.values()],
            "average incremental": [s.average_incremental for s in cells.values()],
            "forgetting": [s.forgetting for s in cells.values()],
            "intransigence": [s.intransigence(against[o]) for o, s in cells.items() if against],
            "old - new": [s.old_new_gap for s in cells.values()],
            "old": [s.old for s in cells.values()],
            "new": [s.new for s in cells.values()],
            "first group": [s.per_group[-1][0] for s in cells.values()],
        }
        first = next(iter(cells.values()))
        result[method] = {
            "orders": len(cells),
            "classes": first.classes,
            "accuracy": _means([s.accuracy for s in cells.values()]),
            "spread": _spread([s.accuracy for s in cells.values()]),
            "first task": _means(first_task := [[g[0] for g in s.per_group] for s in cells.values()]),
            "first task spread": _spread(first_task),
            **{name: mean_std(values) if values else None for name, values in columns.items()},
            **{name: mean_std([s.details[name] for s in cells.values()]) for name in first.details},
            "per class": _per_class(cells.values()),
            "after each group": [_after(i, cells, against) for i in range(len(first.accuracy))],
        }
    return result


def _per_class(cells: Collection[StreamScores]) -> dict[str, Spread]:
    """Sum up the accuracy of each class over the orders that have it: a profile may take only an order's first ones."""
    names = dict.fromkeys(name for scores in cells for name in scores.per_class)
    return {name: mean_std([s.per_class[name] for s in cells if name in s.per_class]) for name in names}


def _after(i: int, cells: dict[int, StreamScores], joint: dict[int, StreamScores]) -> dict[str, Any]:
    """Sum up the scores after group i."""
    until = {order: scores.until(i) for order, scores in cells.items()}
    now = until.values()
    found: dict[str, Any] = {
        "classes": next(iter(now)).classes[-1],
        "accuracy": mean_std([scores.final for scores in now]),
        "of each group": _means([scores.per_group[-1] for scores in now]),
        "of each group, spread": _spread([scores.per_group[-1] for scores in now]),
    }
    if i == 0:  # nothing is old yet
        return found
    against = [scores.intransigence(joint[order].until(i)) for order, scores in until.items() if joint]
    return found | {
        "average incremental": mean_std([scores.average_incremental for scores in now]),
        "forgetting": mean_std([scores.forgetting for scores in now]),
        "intransigence": mean_std(against) if against else None,
        "old - new": mean_std([scores.old_new_gap for scores in now]),
    }


def mean_std(values: Sequence[float]) -> Spread:
    """Give mean and standard deviation, leaving out NaN; no values have no mean, and one has no standard deviation."""
    real = [value for value in values if not isnan(value)]
    return {
        "mean": float(np.mean(real)) if real else None,
        "std": float(np.std(real, ddof=1)) if len(real) > 1 else None,
    }


def _means(of_orders: Sequence[Sequence[float]]) -> list[float | None]:
    """Give the mean over orders after each group."""
    return _known(np.mean(of_orders, axis=0).tolist())


def _spread(of_orders: Sequence[Sequence[float]]) -> list[float | None]:
    """Give the standard deviation over orders after each group; an empty list for a single order."""
    return _known(np.std(of_orders, axis=0, ddof=1).tolist()) if len(of_orders) > 1 else []


def _known(values: Sequence[float]) -> list[float | None]:
    """Replace NaN, which JSON does not have, by None."""
    return [None if isnan(value) else value for value in values]
