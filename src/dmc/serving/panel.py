"""Models side by side: each is asked about the same image, and timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from time import perf_counter
from typing import Any

from dmc.config import PredictConfig
from dmc.data.decode import DecodeError
from dmc.data.sources import UNLABELED, Record
from dmc.errors import DmcError, first_line, is_out_of_memory
from dmc.models.model import Model
from dmc.tasks import VisionTask, task_of


@dataclass(frozen=True)
class Seat:
    """One model on the panel, with its kind and how it is asked."""

    model: Model
    task: VisionTask[Any]
    config: PredictConfig


@dataclass(frozen=True)
class Reply:
    """What one model says about an image, and how long it took, with decoding."""

    seat: Seat
    answer: Any
    milliseconds: float


class Panel:
    """Models that answer one image at a time; they may be of different kinds."""

    def __init__(self, models: Sequence[Model], settings: Mapping[str, Any]) -> None:
        tasks = [task_of([model]) for model in models]
        known = {name for task in tasks for name in task.predict_config.model_fields}
        tasks[0].predict_config.of({name: value for name, value in settings.items() if name not in known})  # refuses
        self.seats = [
            Seat(model, task, task.predict_config.taken_from(settings)[0])
            for model, task in zip(models, tasks, strict=True)
        ]
        self.turn = Lock()  # several at once would share the cores, and each take longer

    def ask(self, image: bytes) -> list[Reply]:
        """Ask every model about an encoded image; raise `DecodeError` if it cannot be read."""
        record = Record(image, UNLABELED, "the image")
        with self.turn:
            return [_reply(seat, record) for seat in self.seats]


def _reply(seat: Seat, record: Record) -> Reply:
    """Ask one model; an error that nobody foresaw is told in one line, too, so that the server goes on."""
    started = perf_counter()
    try:
        (answer,) = seat.task.predict(seat.model, [record], seat.config)
    except DmcError:
        raise
    except Exception as error:
        why = "out of memory" if is_out_of_memory(error) else f"{type(error).__name__}: {first_line(error)}"
        raise DmcError(f"{seat.model.name} cannot answer: {why}") from error
    if isinstance(answer, DecodeError):
        raise answer
    return Reply(seat, answer, 1000 * (perf_counter() - started))
