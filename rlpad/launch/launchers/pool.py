"""Calls in the background, in threads that never keep the process alive."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any

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
        self._pending: set[Future[Any]] = set()
        self._ended: Callable[[], BaseException] | None = None

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Has a function called; cancelled before its turn it isn't, later its result is dropped."""
        future: Future[Any] = Future()
        future.add_done_callback(_notify_cancelled)
        with self._lock:
            ended = self._ended
            if ended is None:
                self._pending.add(future)
                self._jobs.put((future, function, args))
                if not self._idle.acquire(blocking=False) and self._threads < self._size:
                    self._threads += 1
                    threading.Thread(target=self._work, name=self._name, daemon=True).start()
        if ended is not None:
            future.set_exception(ended())
        return future

    def end(self, error: Callable[[], BaseException]) -> None:
        """Fails what hasn't been answered, and all that comes later; what runs is left to itself."""
        with self._lock:
            self._ended = error
            pending, self._pending = self._pending, set()
            for _ in range(self._threads):
                self._jobs.put(None)
        for future in pending:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(error())

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function, args = job
            if not future.done():
                with contextlib.suppress(InvalidStateError):
                    try:
                        result = function(*args)
                    except BaseException as error:  # whatever it was, the caller must hear of it
                        future.set_exception(error)
                    else:
                        future.set_result(result)
                        del result
            with self._lock:
                self._pending.discard(future)
            del job, future, function, args
            self._idle.release()


def _notify_cancelled(future: Future[Any]) -> None:
    # Whoever waits for several futures at once hears of cancelled ones only by this.
    if future.cancelled():
        future.set_running_or_notify_cancel()
