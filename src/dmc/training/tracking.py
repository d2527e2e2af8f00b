"""Tell a tracker, such as TensorBoard, all that metrics.jsonl is told. accelerate has a class for each tracker."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dmc.errors import DmcError, first_line

PROJECT = "dmc"  # what the run is filed under, where a tracker has projects
EVENTS = "events.out.tfevents.*"  # TensorBoard's files, which lie in the run's folder
log = logging.getLogger("dmc")


class Tracking:
    """A tracker that is told each line of metrics.jsonl. If it fails, it is given up, and the run goes on."""

    def __init__(self, name: str, folder: Path, told: Iterable[Mapping[str, Any]] = ()) -> None:
        """Begin with what the run has logged so far: no step is told twice, and none is missing after a stop."""
        self.name, self.tracker = name, None
        remove_events(folder)
        with self._given_up_if_it_fails():
            self.tracker = _started(name, folder)
        for line in told:
            self.log(line)

    def log(self, line: Mapping[str, Any]) -> None:
        """Pass a line of metrics.jsonl on."""
        with self._given_up_if_it_fails():
            if self.tracker is not None:
                self.tracker.log({key: value for key, value in line.items() if key != "step"}, step=line["step"])

    def finish(self) -> None:
        """Let the tracker write what it still holds."""
        with self._given_up_if_it_fails():
            if self.tracker is not None:
                self.tracker.finish()

    @contextmanager
    def _given_up_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # no network, no account, a full disk: whatever a foreign library raises
            log.warning(f"{self.name} is given up, the run goes on: {type(error).__name__}: {first_line(error)}")
            self.tracker = None


def _started(name: str, folder: Path) -> Any:
    """Start the tracker of this name."""
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    if name not in LOGGER_TYPE_TO_CLASS:
        raise DmcError("this version of accelerate does not know it")
    kind = LOGGER_TYPE_TO_CLASS[name]
    if name == "tensorboard":
        tracker = kind(".", folder)  # beside metrics.jsonl: TensorBoard then shows the run by its folder's name
    else:
        tracker = kind(PROJECT, folder) if kind.requires_logging_directory else kind(PROJECT)
    tracker.start()
    return tracker


def remove_events(folder: Path) -> None:
    """Remove the events of an earlier start, which would show steps twice."""
    for path in folder.glob(EVENTS):
        path.unlink(missing_ok=True)
