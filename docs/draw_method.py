"""Draw the pictures of method.md from the answers of real models: method-target and method-balance, as SVG and PNG.

Run `.venv/bin/python docs/draw_method.py`; it trains three small models of digits, which takes about half a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dmc.bench.digits import digits, letters
from dmc.classes import ClassUnion
from dmc.demos.classification import LABELED, NETWORK, PREPROCESSING
from dmc.distill.balance import balancing_factors, fair_shares, peaks, win_shares
from dmc.distill.targets import build_targets, centred
from dmc.models.specialist import Specialist
from dmc.report.figures import BLUE, FONT, GREY, VERMILLION, new_figure, save
from dmc.tasks.classification import Classification

DOCS = Path(__file__).parent
SHOWN, MANY = 5, 1000  # the letter whose target is drawn, and how many letters show the balance
EPOCHS, FEW = 10, 1  # of a teacher, and of one that was trained for a tenth of the time
LOW, HIGH = "012345", "456789"  # two classes are known to both


def specialist(names: str, epochs: int) -> Specialist:
    """Train a small model on some of the digits."""
    data, schedule = digits(0, test=False).keep(names), LABELED.changed({"epochs": epochs})
    return Classification().trained(data, NETWORK, schedule, like=PREPROCESSING)


def logits_of(model: Specialist, pictures: Sequence[Any]) -> Tensor:
    """Ask a model about 8 x 8 pictures of letters."""
    with torch.no_grad():
        return model.logits(torch.from_numpy(np.stack(pictures))[:, None].expand(-1, 3, -1, -1))


def draw_target(low: Specialist, high: Specialist, letter: Any, path: Path) -> None:
    """Draw a letter, two teachers' logits, the same centred, and the target over the union (Eq. 4)."""
    answers = [logits_of(model, [letter]) for model in (low, high)]
    union = ClassUnion.of([low.names, high.names])
    target_T = build_targets(answers, union)[0]
    figure, plots = new_figure(1, 4, size=(2.5, 2.4), widths=(0.8, 1, 1, 1.3))
    plots[0].imshow(255 - letter, cmap="gray", vmin=0, vmax=255)
    plots[0].set_title("a letter")
    plots[0].axis("off")
    for plot, title, values in (
        (plots[1], "each teacher's logits", answers),
        (plots[2], "without their means", [centred(answer) for answer in answers]),
    ):
        for side, (names, value, colour) in enumerate(zip((LOW, HIGH), values, (BLUE, VERMILLION), strict=True)):
            places = [union.names.index(name) + (side - 0.5) * 0.4 for name in names]
            plot.bar(places, value[0].tolist(), 0.4, color=colour, label=f"knows {names[0]} to {names[-1]}")
            if plot is plots[1]:
                plot.hlines(float(value.mean()), min(places) - 0.2, max(places) + 0.2, color=colour, linestyle="--")
        plot.set_title(title)
    plots[1].legend(fontsize=FONT, frameon=False, loc="best")
    colours = [BLUE if name < HIGH[0] else VERMILLION if name > LOW[-1] else GREY for name in union.names]
    plots[3].bar(range(len(union.names)), target_T.tolist(), 0.7, color=colours)
    plots[3].set_title("the target (grey: mean of both)")
    for plot in plots[1:]:
        plot.set_xticks(range(len(union.names)), union.names)
        plot.axhline(0, color="black", linewidth=0.8)
        plot.set_xlabel("class")
    plots[1].set_ylabel("logit")
    save(figure, path)


def draw_balance(low: Specialist, high: Specialist, pictures: Sequence[Any], path: Path) -> None:
    """Draw how high each teacher's best class stands for each letter, before and after balancing."""
    union = ClassUnion.of([low.names, high.names])
    target_NT = build_targets([logits_of(model, pictures) for model in (low, high)], union)
    peaks_NB = peaks(target_NT, union.columns)
    factors = balancing_factors(peaks_NB, fair_shares(union.columns))
    figure, plots = new_figure(1, 2, size=(3.2, 3.2))
    for plot, title, shown_NB in (
        (plots[0], "as they are", peaks_NB),
        (plots[1], f"balanced: times {factors[0]:.2f} and {factors[1]:.2f}", peaks_NB * torch.tensor(factors)),
    ):
        first = shown_NB[:, 0] > shown_NB[:, 1]
        wins = win_shares(shown_NB)
        for won, colour, who in ((first, BLUE, "first"), (~first, VERMILLION, "second")):
            plot.scatter(*shown_NB[won].T.tolist(), s=5, color=colour, label=f"{who} wins {wins[who == 'second']:.0%}")
        most = float(shown_NB.max()) * 1.05
        plot.plot([0, most], [0, most], color="black", linewidth=0.8)
        plot.set(xlim=(0, most), ylim=(0, most), aspect="equal", title=title)
        plot.set_xlabel("highest logit, first teacher (0 to 4)")
        plot.legend(fontsize=FONT, frameon=False, loc="upper right", markerscale=2)
    plots[0].set_ylabel("highest logit, second teacher (5 to 9)")
    save(figure, path)


def main() -> None:
    pictures = [record.image for record in islice(letters(4000, seed=0).records(seed=1), MANY)]
    low, high = specialist(LOW, EPOCHS), specialist(HIGH, EPOCHS)
    draw_target(low, high, pictures[SHOWN], DOCS / "method-target.png")
    first, second = specialist(LOW[:5], EPOCHS), specialist(HIGH[1:], FEW)
    draw_balance(first, second, pictures, DOCS / "method-balance.png")


if __name__ == "__main__":
    main()
