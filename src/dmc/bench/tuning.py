"""Choose the strength of a method's regulariser on held-out training images of a class order's first two groups."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import ConfigDict, Field, RootModel

from dmc.documents import read_result
from dmc.errors import DmcError
from dmc.files import write_text
from dmc.locks import locked, sweep
from dmc.methods import Method

if TYPE_CHECKING:
    from dmc.bench.runner import Bench

FACTORS = (0.01, 0.1, 1, 10, 100)  # times the usual strength: what is tried


class SavedAccuracies(RootModel[dict[Annotated[float, Field(strict=False)], float]]):
    """accuracies.json: what each strength of a method led to."""

    model_config = ConfigDict(strict=True)


def tuned(bench: Bench, method: Method, usual: float, order: int) -> float:
    """Find the strength with the best accuracy after the order's first two groups, on held-out training images."""
    folder = bench.folder / "tuning" / f"order-{order}" / method.name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "accuracies.json"
    with locked(folder / ".tuning-lock"):
        sweep(folder)
        if not path.exists():
            tried = {factor * usual: _trial(bench, method, factor * usual, order, folder) for factor in FACTORS}
            found = {strength: accuracy for strength, accuracy in tried.items() if accuracy is not None}
            if not found:
                raise DmcError(f"no strength of {method.name} could be tried; see failed.txt below {folder}")
            write_text(path, json.dumps(found, indent=2) + "\n")
    accuracies = read_result(path, SavedAccuracies).root
    if not accuracies:
        raise DmcError(f"{path} is damaged, so remove it and run again: it is empty")
    return max(accuracies, key=lambda strength: accuracies[strength])


def _trial(bench: Bench, method: Method, strength: float, order: int, folder: Path) -> float | None:
    """Give the accuracy on validation data at this strength; None if the training failed."""
    trial = replace(
        bench,
        folder=folder / f"{strength:g}",
        common=bench.folder / "tuning",
        tune=False,
        strengths={method.name: strength},
        validating=True,
    )
    trial.run_cell(method, order)
    found = trial.finished(method.name, order)
    return found.final if found else None  # None: it diverged
