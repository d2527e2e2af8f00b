"""The benchmark's table and figure, from whatever cells are finished."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dmc.bench.metrics import StreamScores
from dmc.bench.runner import Bench
from dmc.methods import METHODS

COLUMNS = ("final", "average incremental", "forgetting", "intransigence", "old - new")


def collected(bench: Bench, methods: Sequence[str], orders: int) -> dict[str, dict[int, StreamScores]]:
    """Finished cells by method and order."""
    found = {method: {order: bench.finished(method, order) for order in range(orders)} for method in methods}
    done = {method: {o: s for o, s in cells.items() if s is not None} for method, cells in found.items()}
    return {method: cells for method, cells in done.items() if cells}


def summary(found: dict[str, dict[int, StreamScores]]) -> dict[str, Any]:
    """Mean and standard deviation over orders, as fractions; intransigence needs the Oracle's cells."""
    joint = found.get("oracle", {})
    result = {}
    for method, cells in found.items():
        columns: dict[str, list[float]] = {
            "final": [s.final for s in cells.values()],
            "average incremental": [s.average_incremental for s in cells.values()],
            "forgetting": [s.forgetting for s in cells.values()],
            "intransigence": [s.intransigence(joint[o]) for o, s in cells.items() if o in joint],
            "old - new": [s.old_new_gap for s in cells.values()],
        }
        result[method] = {
            "orders": len(cells),
            "accuracy": np.mean([s.accuracy for s in cells.values()], axis=0).tolist(),
            **{name: _mean_std(values) for name, values in columns.items()},
        }
    return result


def _mean_std(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0}


def as_table(summed: dict[str, Any], title: str) -> str:
    """Markdown, in %."""
    lines = [f"# {title}", "", "| method | orders | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 2) + "|"]
    for method, row in summed.items():
        cells = [_cell(row[column], row["orders"]) for column in COLUMNS]
        lines.append(f"| {METHODS[method].title} | {row['orders']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(value: dict[str, float] | None, orders: int) -> str:
    if value is None:
        return "-"
    spread = f" ± {100 * value['std']:.1f}" if orders > 1 else ""
    return f"{100 * value['mean']:.1f}{spread}"


def draw_curves(summed: dict[str, Any], group_sizes: Sequence[int], title: str, path: Path) -> None:
    """Accuracy over all classes so far, against their number."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    classes = np.cumsum(group_sizes)
    figure, axes = plt.subplots(figsize=(7, 4.6), layout="constrained", dpi=130)
    colours = plt.get_cmap("tab20")
    for i, (method, row) in enumerate(summed.items()):
        dashed = "--" if method in ("oracle", "inference-twice") else "-"
        axes.plot(
            classes,
            [100 * a for a in row["accuracy"]],
            dashed,
            marker="o",
            markersize=4,
            color=colours(2 * i % 20 + (i >= 10)),
            label=METHODS[method].title,
            linewidth=2.6 if method == "dmc" else 1.4,
        )
    axes.set_xticks(classes)
    axes.set_ylim(0, 100)
    axes.set_xlabel("classes so far")
    axes.set_ylabel("accuracy, %")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    figure.savefig(path)
    plt.close(figure)
