"""Calls the methods of an object that another process serves."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import heapq
import itertools
import math
import os
import ssl
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from rlpad.launch.errors import CallTimeout, PeerGone
from rlpad.launch.rpc import address as addresses
from rlpad.launch.rpc import codec
from rlpad.launch.rpc import stream as streams
from rlpad.launch.rpc.security import Credentials
from rlpad.launch.rpc.server import LIST_METHODS
from rlpad.launch.rpc.stream import Stream, TlsStream

# So many pipelined calls may wait for their answer; then sending waits.
MAX_IN_FLIGHT = 10_000

_RETRY_SECONDS = (0.01, 0.05)
_ATTEMPT_SECONDS = 5.0
# Once part of a message is sent the rest must follow, whatever the call's deadline, or the stream is of no
# use.
_FINISH_SECONDS = 60.0
# While so many calls wait for their answer, small requests are held back for a moment and travel together.
_HOLD_FROM = 16
_HOLD_BYTES = 4 * 1024
_HOLD_SECONDS = 0.001
# Locks can't be waited for much longer.
_MAX_WAIT = 86_400.0

Request = tuple[bytes, list[memoryview]]


class Client:
    """Calls what a `Server` serves: `client.method(*args, **kwargs)`.

    Each method takes two further keyword arguments: `timeout`, in seconds, and `retry`, how many times to
    send the call again when the peer goes away meanwhile. The default is not to: a call runs at most once. A
    remote exception keeps its type, and its cause prints as the remote traceback.
    `client.futures.method(...)` returns a `concurrent.futures.Future` at once; its callbacks must not wait
    for other futures of the same client.

    A client connects when it is first used, may be used by many threads, and can be pickled; a forked child
    makes connections of its own.

    Calls raise:
      PeerGone: the peer ended, died, or never came up.
      CallTimeout: the answer didn't come in time.
      TypeError: the arguments can't be pickled.
    """

    #: Calls leave this process.
    in_process = False

    def __init__(
        self,
        address: str | Callable[[], str],
        *,
        credentials: Credentials | None = None,
        connect_timeout: float = 30.0,
        call_timeout: float = 600.0,
        name: str = "",
    ):
        """Makes a client; nothing is connected yet.

        Args:
          address: where the peer listens, or a function that says so each time a connection is made. It may
            raise `PeerGone` to say that the peer is gone for good, and `OSError` or `LookupError` that it
            isn't up yet.
          credentials: for TCP: what to show, and whom to trust.
          connect_timeout: for how many seconds to wait for the peer to come up.
          call_timeout: after how many seconds a call ends with `CallTimeout`, unless it says otherwise.
          name: what the peer is called in messages.
        """
        self._address = address
        self._credentials = credentials
        self._connect_timeout = connect_timeout
        self._call_timeout = call_timeout
        self._name = name
        self._closed = False
        # By process: a forked child can't use its parent's connections, nor its locks.
        self._states: dict[int, _State] = {}

    @property
    def futures(self) -> Futures:
        """The same methods, but they return a future at once."""
        return Futures(self)

    def close(self) -> None:
        """Closes all connections; calls that wait end with `PeerGone`, and so do later ones."""
        self._closed = True
        state = self._states.get(os.getpid())
        if state is not None:
            state.close()
            if state.pipeline is not None:
                state.pipeline.join()

    def __del__(self) -> None:
        # The reader of a pipeline holds no reference to its client, so a client that nobody uses comes here.
        with contextlib.suppress(Exception):
            self._closed = True
            state = self._states.get(os.getpid())
            if state is not None:
                state.close()

    def __getattr__(self, name: str) -> _Method:
        # Not bound to the server's list of methods: that would connect. Protocols like pickle's must not be
        # answered.
        if name.startswith("_"):
            raise AttributeError(name)
        return _Method(self, name)

    def __call__(self, *args: Any, timeout: float | None = None, retry: int = 0, **kwargs: Any) -> Any:
        """Calls the remote object itself."""
        return self._call("__call__", args, kwargs, timeout, retry)

    def __reduce__(self) -> tuple[Any, ...]:
        options = {
            "credentials": self._credentials,
            "connect_timeout": self._connect_timeout,
            "call_timeout": self._call_timeout,
            "name": self._name,
        }
        return _rebuild, (type(self), self._address, options)

    def __repr__(self) -> str:
        return f"<rlpad RPC client of {self._peer}>"

    def __enter__(self) -> Client:
        """Returns the client."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes the client."""
        self.close()

    @property
    def _peer(self) -> str:
        if self._name:
            return self._name
        return self._address if isinstance(self._address, str) else "the peer"

    @property
    def _state(self) -> _State:
        process = os.getpid()
        state = self._states.get(process)
        if state is None:
            # Two threads may come here at once; one state wins.
            state = self._states.setdefault(process, _State())
        return state

    def _call(self, method: str, args: Any, kwargs: Any, timeout: float | None, retry: int) -> Any:
        payload, buffers = _dump_request(method, args, kwargs)
        deadline = time.monotonic() + (self._call_timeout if timeout is None else timeout)
        state = self._state
        while True:
            stream = self._take_stream(state, method, deadline)
            try:
                stream.send(streams.CALL_ALONE, 0, payload, buffers, deadline)
                kind, _, answer, answer_buffers = stream.receive(deadline)
                break
            except TimeoutError:
                stream.close()
                raise self._too_late(method) from None
            except (OSError, EOFError) as error:
                stream.close()
                state.drop_idle()
                if retry <= 0 or self._closed:
                    raise self._gone(method, error) from None
                retry -= 1
            except BaseException:  # KeyboardInterrupt: an answer may still come, to be read by nobody else
                stream.close()
                raise
        if self._closed:
            stream.close()
        else:
            state.idle.append(stream)
            if self._closed:  # meanwhile
                state.drop_idle()
        del payload, buffers
        if kind == streams.RESULT:
            return codec.loads(answer, answer_buffers)
        raise codec.load_exception(answer)

    def _take_stream(self, state: _State, method: str, deadline: float) -> Stream:
        while True:
            try:
                stream = state.idle.pop()
            except IndexError:
                break
            if not stream.is_stale():
                return stream
            stream.close()
        return self._connect(state, method, deadline)

    def _connect(self, state: _State, method: str, deadline: float) -> Stream:
        """Connects, and waits for the peer to come up.

        Raises:
          PeerGone: it doesn't within the client's `connect_timeout`, or it refuses.
          CallTimeout: it doesn't by the deadline.
        """
        limit = time.monotonic() + self._connect_timeout
        pause = _RETRY_SECONDS[0]
        while True:
            if self._closed:
                raise PeerGone(f"{method!r} on {self._peer}: the client was closed")
            try:
                stream = self._connect_once(min(limit, deadline))
            except (OSError, EOFError, LookupError) as error:
                if isinstance(error, PeerGone):
                    raise
                if _is_final(error):
                    raise PeerGone(f"{method!r} on {self._peer}: connecting failed: {error}") from error
                now = time.monotonic()
                if now >= deadline:
                    raise self._too_late(method) from None
                if now >= limit:
                    waited = f"{self._connect_timeout:g} s"
                    reason = str(error) or type(error).__name__
                    raise PeerGone(
                        f"{method!r} on {self._peer}: it can't be reached for {waited}: {reason}"
                    ) from None
                time.sleep(max(0.0, min(pause, limit - now, deadline - now)))
                pause = min(2 * pause, _RETRY_SECONDS[1])
                continue
            state.add(stream)
            return stream

    def _connect_once(self, deadline: float) -> Stream:
        address = self._address if isinstance(self._address, str) else self._address()
        remaining = max(0.001, min(_ATTEMPT_SECONDS, deadline - time.monotonic()))
        connection = addresses.connect(address, self._credentials, remaining)
        try:
            stream = TlsStream(connection) if isinstance(connection, ssl.SSLSocket) else Stream(connection)
        except BaseException:
            connection.close()
            raise
        try:
            stream.send(streams.HELLO, 0, streams.hello(""), deadline=deadline)
            kind, _, payload, _ = stream.receive(deadline)
            if kind != streams.HELLO:
                raise streams.ProtocolError("the other side doesn't begin with HELLO")
            streams.check_hello(payload)
        except BaseException:
            stream.close()
            raise
        return stream

    def _submit(
        self, method: str, args: Any, kwargs: Any, timeout: float | None, retry: int
    ) -> concurrent.futures.Future[Any]:
        request = _dump_request(method, args, kwargs)
        deadline = time.monotonic() + (self._call_timeout if timeout is None else timeout)
        again = None
        if retry > 0:
            again = functools.partial(self._send_pipelined, request=request)
        call = _Pending(concurrent.futures.Future(), method, deadline, retry, again)
        self._send_pipelined(call, request=request)
        return call.future

    def _send_pipelined(self, call: _Pending, *, request: Request) -> None:
        """Sends a call; what goes wrong is the future's."""
        state = self._state
        try:
            while True:
                pipeline = state.pipeline
                if self._closed:
                    raise self._gone(call.method)
                if pipeline is None or pipeline.dead:
                    pipeline = self._open_pipeline(state, call)
                if pipeline.send(call, request):
                    return
        except (PeerGone, CallTimeout) as error:
            call.fail(error)

    def _open_pipeline(self, state: _State, call: _Pending) -> _Pipeline:
        with state.pipeline_lock:
            pipeline = state.pipeline
            if pipeline is None or pipeline.dead:
                stream = self._connect(state, call.method, call.deadline)
                pipeline = state.pipeline = _Pipeline(self._peer, state, stream)
            return pipeline

    def _gone(self, method: str, error: BaseException | None = None) -> PeerGone:
        return _gone(method, self._peer, self._closed, error)

    def _too_late(self, method: str) -> CallTimeout:
        return _too_late(method, self._peer)


def _gone(method: str, peer: str, closed: bool, error: BaseException | None) -> PeerGone:
    if closed:
        return PeerGone(f"{method!r} on {peer}: the client was closed")
    reason = "" if error is None or isinstance(error, EOFError) else f" ({error})"
    return PeerGone(f"{method!r} on {peer}: the peer is gone{reason}")


def _too_late(method: str, peer: str) -> CallTimeout:
    return CallTimeout(f"{method!r} on {peer} wasn't answered in time")


class Futures:
    """The methods of a client; each returns a future at once."""

    __slots__ = ("_client",)

    def __init__(self, client: Client):
        self._client = client

    def __getattr__(self, name: str) -> _FutureMethod:
        if name.startswith("_"):
            raise AttributeError(name)
        return _FutureMethod(self._client, name)

    def __call__(
        self, *args: Any, timeout: float | None = None, retry: int = 0, **kwargs: Any
    ) -> concurrent.futures.Future[Any]:
        """Calls the remote object itself."""
        return self._client._submit("__call__", args, kwargs, timeout, retry)


class _Method:
    """One remote method."""

    __slots__ = ("_client", "_name")

    def __init__(self, client: Client, name: str):
        self._client = client
        self._name = name

    def __call__(self, *args: Any, timeout: float | None = None, retry: int = 0, **kwargs: Any) -> Any:
        return self._client._call(self._name, args, kwargs, timeout, retry)

    def __repr__(self) -> str:
        return f"<{self._name!r} of {self._client!r}>"


class _FutureMethod(_Method):
    """One remote method that returns a future."""

    __slots__ = ()

    def __call__(self, *args: Any, timeout: float | None = None, retry: int = 0, **kwargs: Any) -> Any:
        return self._client._submit(self._name, args, kwargs, timeout, retry)


def list_methods(address: str, *, credentials: Credentials | None = None, timeout: float = 30.0) -> list[str]:
    """Returns the names of what a server serves.

    Raises:
      PeerGone: nobody listens at the address within `timeout` seconds.
    """
    with Client(address, credentials=credentials, connect_timeout=timeout, call_timeout=timeout) as client:
        return client._call(LIST_METHODS, (), {}, None, 0)


class _State:
    """A client's connections in one process."""

    def __init__(self) -> None:
        # Idle streams, the one used last at the end; a list's append and pop need no lock.
        self.idle: list[Stream] = []
        self.closed = False
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._lock = threading.RLock()
        self.pipeline: _Pipeline | None = None
        self.pipeline_lock = threading.Lock()

    def add(self, stream: Stream) -> None:
        """Remembers a stream that is in use, for `close`."""
        with self._lock:
            self._streams.add(stream)
        if self.closed:
            stream.shutdown()

    def drop_idle(self) -> None:
        """Closes idle streams: their peer is gone, most likely."""
        while True:
            try:
                self.idle.pop().close()
            except IndexError:
                return

    def close(self) -> None:
        """Ends all streams; those in use are closed by their users."""
        self.closed = True
        self.drop_idle()
        with self._lock:
            streams_in_use = list(self._streams)
        for stream in streams_in_use:
            stream.shutdown()


class _Pending:
    """A pipelined call that waits for its answer."""

    __slots__ = ("again", "deadline", "future", "method", "retry")

    def __init__(
        self,
        future: concurrent.futures.Future[Any],
        method: str,
        deadline: float,
        retry: int,
        again: Callable[[_Pending], None] | None,
    ):
        self.future = future
        self.method = method
        self.deadline = deadline
        self.retry = retry
        # Sends it again; none if it mustn't be.
        self.again = again

    def succeed(self, value: Any) -> None:
        """Sets the result, unless the future was cancelled."""
        try:
            self.future.set_result(value)
        except concurrent.futures.InvalidStateError:
            _notify_cancelled(self.future)

    def fail(self, error: BaseException) -> None:
        """Sets the exception, unless the future was cancelled."""
        try:
            self.future.set_exception(error)
        except concurrent.futures.InvalidStateError:
            _notify_cancelled(self.future)


def _notify_cancelled(future: concurrent.futures.Future[Any]) -> None:
    if future.cancelled():
        # It may have been notified before.
        with contextlib.suppress(concurrent.futures.InvalidStateError, RuntimeError):
            future.set_running_or_notify_cancel()


class _Pipeline:
    """A stream that carries many calls at once; a thread of its own reads the answers."""

    def __init__(self, peer: str, state: _State, stream: Stream):
        self._peer = peer
        self._state = state
        self._stream = stream
        self._send_lock = threading.Lock()
        self._room = threading.Condition(threading.Lock())
        self._pending: dict[int, _Pending] = {}
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

    def send(self, call: _Pending, request: Request) -> bool:
        """Sends a call; returns false if nothing was sent as the stream has ended before.

        Raises:
          CallTimeout: the peer didn't take it in time.
        """
        reads = threading.current_thread() is self._reader
        payload, buffers = request
        flush_at = math.inf
        with self._room:
            if len(self._pending) >= MAX_IN_FLIGHT and not reads:
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
            _timer().watch(call.deadline, self)
        if flush_at < math.inf:
            _timer().watch(flush_at, self)
        if hold:
            return True
        if reads:
            # A callback of a future: nobody would take answers while this waits for the peer to take
            # requests.
            self._start_thread(self._send, number, call.deadline, payload, buffers)
        else:
            self._send(number, call.deadline, payload, buffers)
        return True

    def _wait_for_room(self, call: _Pending) -> None:
        # Counted before the look at what is pending: the reader takes calls out first and looks at the count
        # then.
        self._waiting += 1
        try:
            while len(self._pending) >= MAX_IN_FLIGHT and not self.dead:
                remaining = call.deadline - time.monotonic()
                if remaining <= 0:
                    raise _too_late(call.method, self._peer)
                self._room.wait(min(remaining, _MAX_WAIT))
        finally:
            self._waiting -= 1

    def _send(self, number: int, deadline: float, payload: bytes, buffers: list[memoryview]) -> None:
        """Sends what is held back and, unless the payload is empty, one more request."""
        if not self._send_lock.acquire(timeout=min(max(0.0, deadline - time.monotonic()), _MAX_WAIT)):
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
        try:
            data = self._take_held()
            rest = data[self._stream.send_some(data) :] if data else b""
        except OSError:
            self._stream.shutdown()
            rest = b""
        except BaseException:
            self._send_lock.release()
            raise
        if rest:
            self._start_thread(self._finish, rest)  # and releases the lock
        else:
            self._send_lock.release()

    def _finish(self, rest: bytes) -> None:
        try:
            self._stream.send_bytes(rest, time.monotonic() + _FINISH_SECONDS)
        except OSError:
            self._stream.shutdown()
        finally:
            self._send_lock.release()

    @staticmethod
    def _start_thread(function: Callable[..., None], *args: Any) -> None:
        threading.Thread(target=function, args=args, name="rpc-send", daemon=True).start()

    def _expire_one(self, number: int) -> None:
        with self._room:
            call = self._pending.pop(number, None)
            self._held = [(n, message) for n, message in self._held if n in self._pending]
        if call is not None:
            call.fail(_too_late(call.method, self._peer))

    def tick(self, now: float) -> None:
        """Sends what is held back, and fails the calls whose deadline has passed."""
        if self._flush_due:
            self._flush_due = False
            self._flush()
            with self._room:
                again = bool(self._held) and not self._flush_due
                self._flush_due |= again
            if again:
                _timer().watch(now + 2 * _HOLD_SECONDS, self)
        if now >= self._next_expiry:
            self._expire(now)

    def _expire(self, now: float) -> None:
        with self._room:
            # Lists, made in one go: the reader takes calls out without the lock.
            late = [n for n, call in list(self._pending.items()) if call.deadline <= now]
            calls = [self._pending.pop(number, None) for number in late]
            following = min((call.deadline for call in list(self._pending.values())), default=math.inf)
            self._next_expiry = following
            if late:
                self._room.notify_all()
        _timer().watch(following, self)
        if late:
            # The futures' callbacks may take long, and the timer has others to serve.
            self._start_thread(self._fail_late, [call for call in calls if call is not None])

    def _fail_late(self, calls: list[_Pending]) -> None:
        for call in calls:
            call.fail(_too_late(call.method, self._peer))

    def _read(self) -> None:
        reason: BaseException | None = None
        try:
            while True:
                self._take_answer(*self._stream.receive(before_wait=self._flush))
        except (OSError, EOFError) as error:
            reason = error
        except BaseException as error:
            reason = error
            raise
        finally:
            self._end(reason)

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

    def _end(self, reason: BaseException | None) -> None:
        self._stream.shutdown()
        with self._room:
            self.dead = True
            calls = list(self._pending.values())
            self._pending.clear()
            self._room.notify_all()
        with self._send_lock:
            self._stream.close()
        self._state.drop_idle()
        closed = self._state.closed
        again = [call for call in calls if call.again is not None and call.retry > 0 and not closed]
        for call in calls:
            if call not in again:
                call.fail(_gone(call.method, self._peer, closed, reason))
        if again:
            threading.Thread(target=_send_again, args=(again,), name="rpc-retry", daemon=True).start()


def _send_again(calls: list[_Pending]) -> None:
    for call in calls:
        assert call.again is not None
        call.retry -= 1
        call.again(call)


class _Timer:
    """One thread that tells pipelines when calls are due."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, weakref.ref[_Pipeline]]] = []
        self._numbers = itertools.count()
        threading.Thread(target=self._run, name="rpc-timer", daemon=True).start()

    def watch(self, deadline: float, pipeline: _Pipeline) -> None:
        """Calls `tick` of a pipeline at a time of `time.monotonic`."""
        if deadline == math.inf:
            return
        with self._changed:
            heapq.heappush(self._due, (deadline, next(self._numbers), weakref.ref(pipeline)))
            if self._due[0][2]() is pipeline:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                if not self._due or self._due[0][0] > now:
                    self._changed.wait(min(self._due[0][0] - now, _MAX_WAIT) if self._due else None)
                    continue
                pipeline = heapq.heappop(self._due)[2]()
            if pipeline is not None and not pipeline.dead:
                pipeline.tick(now)
            del pipeline


_timers: dict[int, _Timer] = {}
_timers_lock = threading.Lock()


def _timer() -> _Timer:
    process = os.getpid()
    timer = _timers.get(process)
    if timer is None:
        with _timers_lock:
            timer = _timers.get(process)
            if timer is None:
                timer = _timers[process] = _Timer()
    return timer


def _renew_lock() -> None:
    global _timers_lock
    _timers_lock = threading.Lock()


# Another thread of the parent may have held it.
os.register_at_fork(after_in_child=_renew_lock)


def _rebuild(kind: type[Client], address: str | Callable[[], str], options: dict[str, Any]) -> Client:
    return kind(address, **options)


def _dump_request(method: str, args: Any, kwargs: Any) -> Request:
    try:
        return codec.dumps((method, args, kwargs))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise TypeError(f"the arguments of {method!r} can't be pickled: {reason}") from error


def _is_final(error: BaseException) -> bool:
    """Says whether connecting again can't help: the other side is somebody else."""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return False
    return isinstance(error, ssl.SSLError | PermissionError | streams.ProtocolError)
