"""Many calls of a client over one stream, none of which waits for the answer to another."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from rlpad.launch.errors import CallTimeout, PeerGone
from rlpad.launch.rpc import codec, timer
from rlpad.launch.rpc import stream as streams
from rlpad.launch.rpc.pool import StreamPool
from rlpad.launch.rpc.stream import Stream

# Once part of a message is sent the rest must follow, whatever the call's deadline, or the stream is of no
# use.
_FINISH_SECONDS = 60.0
# While so many calls wait for their answer, small requests are held back for a moment and travel together.
_HOLD_FROM = 16
_HOLD_BYTES = 4 * 1024
_HOLD_SECONDS = 0.001

#: A call as it is sent: payload and buffers.
Request = tuple[bytes, list[memoryview]]


class Pending:
    """A pipelined call that waits for its answer."""

    __slots__ = ("again", "deadline", "future", "method", "retry")

    def __init__(
        self,
        future: concurrent.futures.Future[Any],
        method: str,
        deadline: float,
        retry: int,
        again: Callable[[Pending], None] | None,
    ):
        self.future = future
        self.method = method
        self.deadline = deadline
        self.retry = retry
        # Sends it again; none if it mustn't be.
        self.again = again

    def succeed(self, value: Any) -> None:
        """Sets the result, unless the future was cancelled."""
        self._settle(self.future.set_result, value)

    def fail(self, error: BaseException) -> None:
        """Sets the exception, unless the future was cancelled."""
        self._settle(self.future.set_exception, error)

    def _settle(self, settle: Callable[[Any], None], outcome: Any) -> None:
        try:
            settle(outcome)
        except concurrent.futures.InvalidStateError:
            if self.future.cancelled():
                # It may have been notified before.
                with contextlib.suppress(RuntimeError):
                    self.future.set_running_or_notify_cancel()


class Pipeline:
    """A stream that carries many calls at once; a thread of its own reads the answers."""

    def __init__(self, peer: str, pool: StreamPool, stream: Stream, max_in_flight: int):
        """Starts the reader.

        Args:
          peer: what the peer is called in messages.
          pool: the client's other streams.
          stream: a new stream of that pool.
          max_in_flight: so many calls may wait for their answer; then sending waits.
        """
        self._peer = peer
        self._pool = pool
        self._stream = stream
        self._max_in_flight = max_in_flight
        self._send_lock = threading.Lock()
        self._room = threading.Condition(threading.Lock())
        self._pending: dict[int, Pending] = {}
        self._numbers = itertools.count(1)
        self._next_expiry = math.inf
        self._waiting = 0
        # Small requests, with their numbers, that wait for others to travel with.
        self._held: list[tuple[int, bytes]] = []
        self._held_bytes = 0
        self._flush_due = False
        self.dead = False
        self._reader = threading.Thread(target=self._read, name=f"rpc-answers-{peer}", daemon=True)
        self._reader.start()

    def join(self) -> None:
        """Waits a moment for the reader to end."""
        if threading.current_thread() is not self._reader:
            self._reader.join(2.0)

    def send(self, call: Pending, request: Request) -> bool:
        """Sends a call; returns false if nothing was sent as the stream has ended before.

        Raises:
          CallTimeout: the peer didn't take it in time.
        """
        reads = threading.current_thread() is self._reader
        payload, buffers = request
        flush_at = math.inf
        with self._room:
            if len(self._pending) >= self._max_in_flight and not reads:
                self._wait_for_room(call)
            if self.dead:
                return False
            number = next(self._numbers)
            hold = len(self._pending) >= _HOLD_FROM and len(payload) < _HOLD_BYTES and not buffers
            self._pending[number] = call
            expires_first = call.deadline < self._next_expiry
            if expires_first:
                self._next_expiry = call.deadline
            if hold:
                self._held.append((number, streams.pack(streams.CALL, number, payload)))
                self._held_bytes += len(payload)
                hold = self._held_bytes < _HOLD_BYTES
                payload = b""
                if not self._flush_due:
                    self._flush_due = True
                    flush_at = time.monotonic() + _HOLD_SECONDS
        if expires_first:
            timer.watch(call.deadline, self)
        timer.watch(flush_at, self)
        if hold:
            return True
        if reads:
            # A callback of a future: nobody would take answers while this waits for the peer to take
            # requests.
            _start_thread(self._send, number, call.deadline, payload, buffers)
        else:
            self._send(number, call.deadline, payload, buffers)
        return True

    def _wait_for_room(self, call: Pending) -> None:
        # Counted before the look at what is pending: the reader takes calls out first and looks at the count
        # then.
        self._waiting += 1
        try:
            while len(self._pending) >= self._max_in_flight and not self.dead:
                remaining = call.deadline - time.monotonic()
                if remaining <= 0:
                    raise too_late(call.method, self._peer)
                self._room.wait(min(remaining, timer.MAX_WAIT))
        finally:
            self._waiting -= 1

    def _send(self, number: int, deadline: float, payload: bytes, buffers: list[memoryview]) -> None:
        """Sends what is held back and, unless the payload is empty, one more request."""
        if not self._send_lock.acquire(timeout=min(max(0.0, deadline - time.monotonic()), timer.MAX_WAIT)):
            self._expire_one(number)
            return
        try:
            try:
                self._stream.wait_writable(deadline)
            except TimeoutError:
                # The peer pushes back. Nothing was sent, so the other calls needn't suffer.
                self._expire_one(number)
                return
            data = self._take_held()
            late = deadline + _FINISH_SECONDS
            if payload and not buffers:
                data += streams.pack(streams.CALL, number, payload)
            if data:
                self._stream.send_bytes(data, late)
            if buffers:
                self._stream.send(streams.CALL, number, payload, buffers, late)
        except OSError:
            # Part of it may have been sent, so nothing can follow. The reader fails what is pending, this
            # call too.
            self._stream.shutdown()
        finally:
            self._send_lock.release()

    def _take_held(self) -> bytes:
        """Returns the requests held back; the caller holds the lock for sending, so they stay in order."""
        if not self._held:
            return b""
        with self._room:
            data = b"".join([message for _, message in self._held])
            self._held.clear()
            self._held_bytes = 0
            return data

    def _flush(self) -> None:
        """Sends what is held back, without waiting: for threads that must not."""
        if not self._held:
            return
        if not self._send_lock.acquire(blocking=False):
            return  # The timer will come again.
        lock_is_ours = True
        try:
            data = self._take_held()
            rest = data[self._stream.send_some(data) :] if data else b""
            if rest:
                _start_thread(self._finish, rest)  # and releases the lock
                lock_is_ours = False
        except OSError:
            self._stream.shutdown()
        finally:
            if lock_is_ours:
                self._send_lock.release()

    def _finish(self, rest: bytes) -> None:
        try:
            self._stream.send_bytes(rest, time.monotonic() + _FINISH_SECONDS)
        except OSError:
            self._stream.shutdown()
        finally:
            self._send_lock.release()

    def tick(self, now: float) -> None:
        """Sends what is held back, and fails the calls whose deadline has passed."""
        if self._flush_due:
            self._flush_due = False
            self._flush()
            with self._room:
                again = bool(self._held) and not self._flush_due
                self._flush_due |= again
            if again:
                timer.watch(now + 2 * _HOLD_SECONDS, self)
        if now >= self._next_expiry:
            self._expire(now)

    def _expire(self, now: float) -> None:
        with self._room:
            # Lists, made in one go: the reader takes calls out without the lock.
            late = [n for n, call in list(self._pending.items()) if call.deadline <= now]
            calls = self._give_up(late)
            following = min((call.deadline for call in list(self._pending.values())), default=math.inf)
            self._next_expiry = following
        timer.watch(following, self)
        if calls:
            # The futures' callbacks may take long, and the timer has others to serve.
            _start_thread(self._fail_late, calls)

    def _expire_one(self, number: int) -> None:
        with self._room:
            calls = self._give_up([number])
        self._fail_late(calls)

    def _give_up(self, numbers: list[int]) -> list[Pending]:
        """Returns those of the calls that still wait; what is held back of them isn't sent any more."""
        calls = [call for n in numbers if (call := self._pending.pop(n, None)) is not None]
        if calls:
            self._held = [(n, message) for n, message in self._held if n in self._pending]
            self._room.notify_all()
        return calls

    def _fail_late(self, calls: list[Pending]) -> None:
        for call in calls:
            call.fail(too_late(call.method, self._peer))

    def _read(self) -> None:
        try:
            while True:
                self._take_answer(*self._stream.receive(before_wait=self._flush))
        except (OSError, EOFError) as error:
            self._end(error)
        except BaseException as error:
            self._end(error)
            raise

    def _take_answer(self, kind: int, number: int, payload: bytes | memoryview, buffers: list[Any]) -> None:
        call = self._pending.pop(number, None)
        if self._waiting:
            with self._room:
                self._room.notify()
        if call is None:
            return  # it timed out
        try:
            if kind == streams.RESULT:
                call.succeed(codec.loads(payload, buffers))
            else:
                call.fail(codec.load_exception(payload))
        except Exception as error:  # the result's class can't be imported here, for instance
            call.fail(error)

    def _end(self, reason: BaseException) -> None:
        self._stream.shutdown()
        with self._room:
            self.dead = True
            calls = list(self._pending.values())
            self._pending.clear()
            self._room.notify_all()
        with self._send_lock:
            self._stream.close()
        self._pool.drop_idle()
        closed = self._pool.closed
        again = []
        for call in calls:
            if call.retry > 0 and not closed:
                again.append(call)
            else:
                call.fail(gone(call.method, self._peer, closed, reason))
        if again:
            _start_thread(_send_again, again)


def _start_thread(function: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=function, args=args, name="rpc-send", daemon=True).start()


def _send_again(calls: list[Pending]) -> None:
    for call in calls:
        assert call.again is not None
        call.retry -= 1
        call.again(call)


def gone(method: str, peer: str, closed: bool, error: BaseException | None = None) -> PeerGone:
    """Returns the error of a call whose peer, or whose client, has ended."""
    if closed:
        return PeerGone(f"{method!r} on {peer}: the client was closed")
    reason = "" if error is None or isinstance(error, EOFError) else f" ({error})"
    return PeerGone(f"{method!r} on {peer}: the peer is gone{reason}")


def too_late(method: str, peer: str) -> CallTimeout:
    """Returns the error of a call whose deadline has passed."""
    return CallTimeout(f"{method!r} on {peer} wasn't answered in time")
