"""Choose the strength of a method's regulariser by trying some."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, RootModel

from dmc.documents import read_result
from dmc.errors import DmcError
from dmc.files import write_text
from dmc.locks import locked, sweep

FACTORS = (0.01, 0.1, 1, 10, 100)  # times the usual strength: what is tried
# Gives the accuracy at a strength, tried in a folder; None if it diverged.
Trial = Callable[[float, Path], float | None]


class SavedAccuracies(RootModel[dict[Annotated[float, Field(strict=False)], float]]):
    """accuracies.json: what each strength of a method led to."""

    model_config = ConfigDict(strict=True)


def tuned(method: str, usual: float, folder: Path, trial: Trial) -> float:
    """Find the strength with the best accuracy, or read it back from the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "accuracies.json"
    with locked(folder / ".tuning-lock"):
        sweep(folder)
        if not path.exists():
            strengths = [factor * usual for factor in FACTORS]
            tried = {strength: trial(strength, folder / f"{strength:g}") for strength in strengths}
            found = {strength: accuracy for strength, accuracy in tried.items() if accuracy is not None}
            if not found:
                raise DmcError(f"{method} diverged with every strength that was tried; see failed.txt below {folder}")
            write_text(path, json.dumps(found, indent=2) + "\n")
    accuracies = read_result(path, SavedAccuracies).root
    if not accuracies:
        raise DmcError(f"{path} is damaged, so remove it and run again: it is empty")
    return max(accuracies, key=lambda strength: accuracies[strength])
