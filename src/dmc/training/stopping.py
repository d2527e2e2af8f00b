"""Stop a training between two steps: a first signal is noted, a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class Stopped(KeyboardInterrupt):
    """A training was asked to stop, and did so after a whole step. The exception's notes say what was kept."""

    def __init__(self, by: signal.Signals, message: str) -> None:
        super().__init__(message)
        self.by = by


class StopSignals:
    """A context manager: within it, `asked` is the first SIGINT or SIGTERM that came, or None."""

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self.before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other thread may set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) != signal.SIG_IGN:  # a shell's background job must go on ignoring Ctrl-C
                    self.before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Note a signal, and leave the next one to the handlers from before."""
        self.asked = signal.Signals(number)
        self._restore()

    def _restore(self) -> None:
        while self.before:
            signal.signal(*self.before.popitem())
