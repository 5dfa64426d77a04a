"""Anything that runs is a worker: it takes steps until it has finished or the program stops."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

from rlpad.launch.context import stop_event

#: What makes an object a worker; see `rlpad.core.Worker`. A service may well have a `step` of its own.
_PROTOCOL = ("step", "idle", "waiting_on", "finished", "close")
#: Seconds that a worker idles at a time.
IDLE_SECONDS = 0.05


def is_worker(value: Any) -> bool:
    """Whether an object fulfils the worker protocol; none of its properties is evaluated."""
    return all(inspect.getattr_static(value, name, None) is not None for name in _PROTOCOL)


def closer(value: Any) -> Callable[[], object]:
    """Returns the object's `close`, or something that does nothing."""
    close = getattr(type(value), "close", None)
    return value.close if callable(close) else lambda: None


def step_until_done(worker: Any) -> None:
    """Steps a worker until it has finished or the program stops; doesn't close it."""
    stop = stop_event()
    while not stop.is_set() and not worker.finished:
        if not worker.step() and not worker.finished:
            worker.idle(IDLE_SECONDS)


def run_worker(worker: Any) -> None:
    """Steps a worker until it has finished or the program stops, then closes it."""
    try:
        step_until_done(worker)
    finally:
        worker.close()


class CallOnce:
    """A function as a worker: its one step is the whole call."""

    def __init__(self, function: Callable[[], Any]):
        self._function = function
        self.finished = False

    def step(self) -> bool:
        """Calls the function."""
        self._function()
        self.finished = True
        return True

    def idle(self, timeout: float) -> None:
        """Is never needed, as its step always can be taken."""
        time.sleep(timeout)

    def waiting_on(self) -> str:
        """Says that it waits for nothing."""
        return "nothing"

    def close(self) -> None:
        """Holds nothing."""
