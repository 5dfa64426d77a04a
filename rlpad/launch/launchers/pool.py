"""Calls in the background, in threads that never keep the process alive."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any

from rlpad.launch.errors import CallTimeout
from rlpad.launch.rpc import timer

_Job = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]


class CallPool:
    """Runs calls in up to `size` threads, made when they're needed.

    Not a `ThreadPoolExecutor`: the interpreter waits for the threads of one when it exits, so that a single
    call that never returns would keep the process for ever.
    """

    def __init__(self, name: str, size: int):
        """Starts nothing yet."""
        self._name = name
        self._size = size
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = threading.Semaphore(0)
        self._threads = 0
        # Until when each must be answered, and what to say of one that isn't.
        self._pending: dict[Future[Any], tuple[float, str]] = {}
        self._next_expiry = math.inf
        #: For the timer: a pool may always have something that is due.
        self.dead = False
        self._ended: Callable[[], BaseException] | None = None

    def submit(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout: float | None = None,
        late: str = "a call wasn't answered in time",
    ) -> Future[Any]:
        """Has a function called; cancelled before its turn it isn't, later its result is dropped.

        Args:
          function: what to call.
          *args: its arguments.
          timeout: seconds until the future fails with `CallTimeout`, as if it were cancelled then; None for never.
          late: message of that error.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        future: Future[Any] = Future()
        future.add_done_callback(_notify_cancelled)
        alone = False
        with self._lock:
            ended = self._ended
            expires_first = ended is None and deadline < self._next_expiry
            if expires_first:
                self._next_expiry = deadline
            if ended is None:
                self._pending[future] = deadline, late
                if not self._idle.acquire(blocking=False) and self._threads < self._size:
                    alone = not self._start_thread() and not self._threads
                if not alone:
                    self._jobs.put((future, function, args))
        if ended is not None:
            future.set_exception(ended())
        if alone:
            self._do(future, function, args)
        elif expires_first:
            timer.watch(deadline, self)
        return future

    def _start_thread(self) -> bool:
        try:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        except RuntimeError:  # no more can be had; some Pythons have none after the end of a script
            return False
        self._threads += 1
        return True

    def tick(self, now: float) -> None:
        """Fails the calls whose time is over."""
        with self._lock:
            late = [(future, message) for future, (deadline, message) in self._pending.items() if deadline <= now]
            for future, _ in late:
                del self._pending[future]
            following = self._next_expiry = min((deadline for deadline, _ in self._pending.values()), default=math.inf)
        timer.watch(following, self)
        if late:
            # The futures' callbacks may take long, and the timer has others to serve.
            threading.Thread(target=_fail, args=(late,), name=f"{self._name}-late", daemon=True).start()

    def end(self, error: Callable[[], BaseException]) -> None:
        """Fails what hasn't been answered, and all that comes later; what runs is left to itself."""
        with self._lock:
            self._ended = error
            pending, self._pending = self._pending, {}
            for _ in range(self._threads):
                self._jobs.put(None)
        for future in pending:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(error())

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(*job)
            del job
            self._idle.release()

    def _do(self, future: Future[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if not future.done():
            with contextlib.suppress(InvalidStateError):
                try:
                    result = function(*args)
                except BaseException as error:  # whatever it was, the caller must hear of it
                    future.set_exception(error)
                else:
                    future.set_result(result)
        with self._lock:
            self._pending.pop(future, None)


def _fail(late: list[tuple[Future[Any], str]]) -> None:
    for future, message in late:
        with contextlib.suppress(InvalidStateError):
            future.set_exception(CallTimeout(message))


def _notify_cancelled(future: Future[Any]) -> None:
    # Whoever waits for several futures at once hears of cancelled ones only by this.
    if future.cancelled():
        future.set_running_or_notify_cancel()
