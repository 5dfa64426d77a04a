"""What a signal does while no run is under way to be stopped: at the start of a command, and at its end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: Called with one line of reason before the process ends.
_last_acts: list[Callable[[str], object]] = []


@contextlib.contextmanager
def ends_at_once() -> Iterator[None]:
    """Has signals end the process with one line and the usual exit code, 128 and the signal's number.

    Not by an exception: JAX's hook into the garbage collector swallows a KeyboardInterrupt that comes in there. A run
    that is under way has handlers of its own on top of these. Does nothing outside of the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: dict[int, Any] = {number: signal.signal(number, _end) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def last_act(act: Callable[[str], object]) -> Iterator[None]:
    """Has `act(reason)` called if a signal ends the process inside."""
    _last_acts.append(act)
    try:
        yield
    finally:
        _last_acts.remove(act)


def _end(number: int, frame: FrameType | None) -> None:
    del frame
    reason = f"interrupted by {signal.Signals(number).name}"
    for act in reversed(_last_acts):
        act(reason)
    with contextlib.suppress(OSError):  # nobody may be there to read it
        print(f"rlpad: {reason}", file=sys.stderr, flush=True)
    os._exit(128 + number)
