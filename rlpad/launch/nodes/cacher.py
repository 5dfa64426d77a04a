"""The node that stands before another and answers reads from memory."""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from rlpad.launch.errors import LaunchError
from rlpad.launch.handles import Handle
from rlpad.launch.nodes.courier import CourierNode
from rlpad.launch.rpc import codec
from rlpad.launch.rpc.client import list_methods
from rlpad.launch.rpc.methods import Forwarder


class CacherNode(CourierNode):
    """Answers every method of another node, and remembers the answers: `CacherNode(target, 100, 1000)`.

    Many readers then cost the target one call per refresh interval for each method and arguments. Only for methods
    that read: a call that is answered from memory never reaches the target. Where readers share a process with the
    cacher (`threads`, `inline`) they get the same object, which they shouldn't change.

    An answer's age counts from when the target was asked for it:

    - younger than the refresh interval: it's given;
    - older, but not stale: it's given, and the target is asked for a new one meanwhile;
    - stale, or never asked for: the caller waits for a new one. Callers that want the same wait together.

    What the target raises is raised for those who wait, and never remembered.
    """

    def __init__(
        self,
        target_handle: Handle,
        refresh_interval_ms: float,
        stale_after_ms: float,
        *,
        max_entries: int = 16,
        courier_kwargs: Mapping[str, Any] | None = None,
    ):
        """Describes the cacher.

        Args:
          target_handle: the node to ask.
          refresh_interval_ms: milliseconds after which an answer is asked for anew when it's next wanted.
          stale_after_ms: milliseconds after which an answer isn't given any more.
          max_entries: answers to remember; those that weren't wanted for longest are forgotten.
          courier_kwargs: options of the service; see `CourierNode`.

        Raises:
          LaunchError: the target is no handle, or a number is out of range.
        """
        if not isinstance(target_handle, Handle) or not isinstance(target_handle.node, CourierNode):
            raise LaunchError(f"CacherNode needs the handle of a CourierNode or CacherNode, got {target_handle!r}")
        if not 0 <= refresh_interval_ms <= stale_after_ms:
            raise LaunchError(
                "CacherNode needs 0 <= refresh_interval_ms <= stale_after_ms, "
                f"got {refresh_interval_ms!r} and {stale_after_ms!r}"
            )
        if max_entries < 1:
            raise LaunchError(f"max_entries must be at least 1, got {max_entries!r}")
        super().__init__(
            Cacher,
            target_handle,
            refresh_s=refresh_interval_ms / 1000,
            stale_s=stale_after_ms / 1000,
            max_entries=max_entries,
            courier_kwargs=courier_kwargs,
        )


@dataclasses.dataclass
class _Entry:
    """What is known of one method and its arguments.

    Attributes:
      value: the newest answer.
      asked_at: when it was asked for.
      tried_at: when the target was last asked, whatever came of it.
      fetch: the call that is under way.
    """

    value: Any = None
    asked_at: float = -math.inf
    tried_at: float = -math.inf
    fetch: Future[Any] | None = None


class Cacher(Forwarder):
    """The service of a `CacherNode`. Its methods may be called from any thread."""

    def __init__(
        self,
        target: Any,
        refresh_s: float,
        stale_s: float,
        max_entries: int,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Starts without answers.

        Args:
          target: client of the node to ask.
          refresh_s: seconds after which an answer is asked for anew.
          stale_s: seconds after which it isn't given any more.
          max_entries: answers to remember.
          clock: monotonic seconds.
        """
        self._target = target
        self._refresh_s = refresh_s
        self._stale_s = stale_s
        self._max_entries = max_entries
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    def _forward(self, name: str) -> Callable[..., Any]:
        return functools.partial(self._read, name)

    def _list_methods(self) -> list[str]:
        return list_methods(self._target)

    def _read(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        began = self._clock()
        entry = self._entry(_key(method, args, kwargs))
        while True:
            with self._lock:
                now = self._clock()
                age = now - entry.asked_at
                # An answer asked for after the read began is as new as the target's own.
                usable = age < self._stale_s or entry.asked_at >= began
                fetch = entry.fetch
                leads = fetch is None and (now - entry.tried_at >= self._refresh_s or not usable)
                if leads:
                    fetch = entry.fetch = Future()
                    entry.tried_at = now
                value = entry.value
            if leads:
                assert fetch is not None
                self._fetch(entry, fetch, now, method, args, kwargs)
            if usable:
                return value
            assert fetch is not None
            fetch.result()

    def _entry(self, key: bytes) -> _Entry:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry()
                if len(self._entries) > self._max_entries:
                    self._entries.popitem(last=False)
            else:
                self._entries.move_to_end(key)
            return entry

    def _fetch(self, entry: _Entry, fetch: Future[Any], now: float, method: str, args: Any, kwargs: Any) -> None:
        """Asks the target, without waiting for its answer."""

        def done(answer: Future[Any]) -> None:
            error = answer.exception()
            with self._lock:
                entry.fetch = None
                if error is None:
                    entry.value, entry.asked_at = answer.result(), now
            if error is None:
                fetch.set_result(None)
            else:
                fetch.set_exception(error)

        try:
            futures = self._target.futures
            answer = (futures if method == "__call__" else getattr(futures, method))(*args, **kwargs)
        except BaseException as error:  # those who wait must hear of it
            answer = Future()
            answer.set_exception(error)
            answer.add_done_callback(done)
            raise
        answer.add_done_callback(done)


def _key(method: str, args: Any, kwargs: Mapping[str, Any]) -> bytes:
    payload, buffers = codec.dumps((method, args, sorted(kwargs.items())))
    return b"".join((payload, *buffers))
