"""One thread of the process that says when calls are due."""

from __future__ import annotations

import heapq
import itertools
import math
import os
import threading
import time
import weakref
from typing import Protocol

#: Locks can't be waited for much longer.
MAX_WAIT = 86_400.0


class Watched(Protocol):
    """What the timer calls."""

    dead: bool

    def tick(self, now: float) -> None:
        """Does what is due; must not wait."""


def watch(deadline: float, watched: Watched) -> None:
    """Calls `tick` at a time of `time.monotonic`, unless the object is dead or gone by then."""
    global _timer
    if deadline == math.inf:
        return
    if _timer is None:
        with _lock:
            if _timer is None:
                _timer = _Timer()
    _timer.watch(deadline, watched)


class _Timer:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, weakref.ref[Watched]]] = []
        self._numbers = itertools.count()
        threading.Thread(target=self._run, name="rpc-timer", daemon=True).start()

    def watch(self, deadline: float, watched: Watched) -> None:
        with self._changed:
            heapq.heappush(self._due, (deadline, next(self._numbers), weakref.ref(watched)))
            if self._due[0][2]() is watched:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                if not self._due or self._due[0][0] > now:
                    self._changed.wait(min(self._due[0][0] - now, MAX_WAIT) if self._due else None)
                    continue
                watched = heapq.heappop(self._due)[2]()
            if watched is not None and not watched.dead:
                watched.tick(now)
            del watched


_timer: _Timer | None = None
_lock = threading.Lock()


def _start_afresh() -> None:
    # The thread is the parent's, and another thread of the parent may have held the lock.
    global _timer, _lock
    _timer = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_start_afresh)
