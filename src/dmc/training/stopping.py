"""Stop on SIGINT or SIGTERM: a training between two steps, anything else at once, and both without a traceback."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self

from dmc.processes import launched

STOPPING = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """Work was asked to stop: a training did so after a whole step. The exception's notes say what was kept."""

    def __init__(self, by: signal.Signals, message: str) -> None:
        super().__init__(message)
        self.by = by


class StopSignals:
    """A context manager: within it, `asked` is the first SIGINT or SIGTERM that came, or None.

    A second signal is left to the handlers from before. A launcher repeats to its processes what they may have got
    already, and ends them itself if they take long: there, further signals are ignored.
    """

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self.before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other thread may set handlers
            for number in STOPPING:
                if signal.getsignal(number) != signal.SIG_IGN:  # a shell's background job must go on ignoring Ctrl-C
                    self.before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = signal.Signals(number)
        if launched():
            _leave_to(signal.SIG_IGN)
            self.before = {}
        self._restore()

    def _restore(self) -> None:
        while self.before:
            signal.signal(*self.before.popitem())


def raise_on_signals() -> None:
    """Let a SIGINT or SIGTERM that nobody notes raise `Stopped`, so that nothing is left half-written."""
    if threading.current_thread() is threading.main_thread():
        _leave_to(_raise)


def _raise(number: int, frame: FrameType | None) -> None:
    """Raise `Stopped`; what comes after it ends the process, without a word."""
    _leave_to(signal.SIG_IGN if launched() else signal.SIG_DFL)
    raise Stopped(signal.Signals(number), "stopped" if number == signal.SIGTERM else "interrupted")


def _leave_to(handler: Any) -> None:
    """Set a handler for the signals that are not ignored."""
    for number in STOPPING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)
