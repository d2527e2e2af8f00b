"""Pictures of what detectors find in a few auxiliary images, before they are merged: a wrong guess is seen at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from dmc.data.decode import DecodeError, opened, upright_rgb
from dmc.data.open import OneSet, open_images, require_outside
from dmc.errors import DmcError
from dmc.files import replacing
from dmc.models.model import Model
from dmc.report.drawing import boxed
from dmc.tasks import task_of

SHOWN = 8  # images


def draw_finds(teachers: Sequence[Model], aux: OneSet | Sequence[OneSet], folder: Path, seed: int = 0) -> list[Path]:
    """Draw what each teacher finds in some images, a picture for each, and give their paths."""
    task = task_of(teachers)
    if not task.finds_boxes:
        raise DmcError(f"{teachers[0].name} is a {task.singular}: it finds no boxes that could be drawn")
    if folder.is_file():
        raise DmcError(f"{folder} is a file; give a folder to draw to")
    require_outside(folder, aux)
    records = list(islice(open_images(aux).records(seed), SHOWN))
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for number, teacher in enumerate(teachers, start=1):
        answers = task.predict(teacher, records, task.predict_config())
        for i, (record, answer) in enumerate(zip(records, answers, strict=True), start=1):
            if isinstance(answer, DecodeError):
                continue
            with opened(record) as stored:
                image = upright_rgb(stored, at_least=max(stored.size))
            with replacing(folder / f"image-{i}-teacher-{number}.png") as path:
                boxed(image, answer, teacher.names, max(10, round(min(image.size) / 22))).save(path, format="png")
            drawn.append(folder / f"image-{i}-teacher-{number}.png")
    return drawn
