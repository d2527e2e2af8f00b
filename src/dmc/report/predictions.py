"""A model's answers about single images, as data, as text, and drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dmc.config import PredictConfig
from dmc.data.decode import DecodeError
from dmc.data.pictures import pictures
from dmc.errors import DmcError
from dmc.files import replacing
from dmc.models.model import Model
from dmc.report.drawing import drawn
from dmc.tasks import VisionTask
from dmc.text import one_line


class Shown(NamedTuple):
    """Answers as data and as text. Images that cannot be read are only in the data: the log has named them."""

    data: list[dict[str, Any]]
    text: str

    @property
    def failed(self) -> bool:
        """Whether some image could not be read."""
        return any("error" in entry for entry in self.data)


def predictions(
    task: VisionTask[Any], model: Model, images: Sequence[str], config: PredictConfig, draw: Path | None
) -> Shown:
    """Ask a model about image files and folders; `draw` is a folder for pictures with boxes, None: draw none."""
    records = pictures(images)
    names = [record.name for record in records]
    if draw is not None and not task.finds_boxes:
        raise DmcError(f"{model.name} is a {task.singular}: it finds no boxes that could be drawn")
    drawings = {} if draw is None else dict(zip(names, _places(draw, names), strict=True))
    data: list[dict[str, Any]] = []
    lines = []
    for name, answer in zip(names, task.predict(model, records, config), strict=True):
        if isinstance(answer, DecodeError):
            data.append({"image": name, "error": answer.reason})
            continue
        data.append({"image": name, **task.answer_as_dict(answer)})
        lines.append(f"{one_line(name)}: {task.answer_as_text(answer)}")
        if name in drawings:
            drawings[name].parent.mkdir(parents=True, exist_ok=True)
            with replacing(drawings[name]) as path:
                drawn(name, answer, model.names).save(path, format="png")
    return Shown(data, "\n".join(lines))


def _places(draw: Path, images: Sequence[str]) -> list[Path]:
    """Give the path of each image's drawing; refuse one that would overwrite another drawing or a given picture."""
    if draw.is_file():
        raise DmcError(f"{draw} is a file; give a folder to draw to")
    places = [draw / f"{Path(image).stem}.png" for image in images]
    twice = [place for place, count in Counter(places).items() if count > 1]
    if twice:
        raise DmcError(f"two of the images are named {twice[0].stem}, and both would be drawn as {twice[0].name}")
    given = {Path(image).resolve() for image in images}
    lost = [place for place in places if place.resolve() in given]
    if lost:
        raise DmcError(f"{lost[0]} would be overwritten by a drawing; choose another folder to draw to")
    return places
