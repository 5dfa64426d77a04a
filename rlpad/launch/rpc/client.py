"""Calls the methods of an object that another process serves."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from rlpad.launch.errors import CallTimeout, PeerGone
from rlpad.launch.rpc import codec
from rlpad.launch.rpc import stream as streams
from rlpad.launch.rpc.methods import LIST_METHODS
from rlpad.launch.rpc.pipeline import Pending, Pipeline, Request, gone, too_late
from rlpad.launch.rpc.pool import StreamPool, is_final, open_stream
from rlpad.launch.rpc.security import Credentials
from rlpad.launch.rpc.stream import Stream
from rlpad.launch.rpc.timer import MAX_WAIT

#: Seconds after which a call ends with `CallTimeout`, unless it says otherwise.
CALL_TIMEOUT_SECONDS = 600.0
# So many pipelined calls may wait for their answer; then sending waits.
MAX_IN_FLIGHT = 10_000

_RETRY_SECONDS = (0.01, 0.05)


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
        call_timeout: float = CALL_TIMEOUT_SECONDS,
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
        state = self._shut()
        if state is not None and state.pipeline is not None:
            state.pipeline.join()

    def __del__(self) -> None:
        # The reader of a pipeline holds no reference to its client, so a client that nobody uses comes here.
        with contextlib.suppress(Exception):
            self._shut()

    def __getattr__(self, name: str) -> _Method:
        # Not bound to the server's list of methods: that would connect. Protocols like pickle's must not be
        # answered.
        if name.startswith("_"):
            raise AttributeError(name)
        return _Method(self, name)

    def __call__(self, *args: Any, timeout: float | None = None, retry: int = 0, **kwargs: Any) -> Any:
        """Calls the remote object itself."""
        return self._call("__call__", args, kwargs, timeout, retry)

    def __list_methods__(self) -> list[str]:
        """Returns the names of what can be called."""
        return self._call(LIST_METHODS, (), {}, None, 0)

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

    def _shut(self) -> _State | None:
        self._closed = True
        state = self._states.get(os.getpid())
        if state is not None:
            state.close()
        return state

    def _call(self, method: str, args: Any, kwargs: Any, timeout: float | None, retry: int) -> Any:
        payload, buffers = _dump_request(method, args, kwargs)
        deadline = time.monotonic() + (self._call_timeout if timeout is None else timeout)
        state = self._state
        while True:
            stream = state.take() or self._connect(state, method, deadline)
            try:
                stream.send(streams.CALL_ALONE, 0, payload, buffers, deadline)
                kind, _, answer, answer_buffers = stream.receive(deadline)
                break
            except TimeoutError:
                stream.close()
                raise too_late(method, self._peer) from None
            except (OSError, EOFError) as error:
                stream.close()
                state.drop_idle()
                if retry <= 0 or self._closed:
                    raise gone(method, self._peer, self._closed, error) from None
                retry -= 1
            except BaseException:  # KeyboardInterrupt: an answer may still come, to be read by nobody else
                stream.close()
                raise
        state.idle.append(stream)
        if self._closed:  # meanwhile
            state.drop_idle()
        del payload, buffers
        if kind == streams.RESULT:
            return codec.loads(answer, answer_buffers)
        raise codec.load_exception(answer)

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
                raise gone(method, self._peer, self._closed)
            try:
                stream = open_stream(self._address, self._credentials, min(limit, deadline))
                break
            except PeerGone:
                raise
            except (OSError, EOFError, LookupError) as error:
                if is_final(error):
                    raise PeerGone(f"{method!r} on {self._peer}: connecting failed: {error}") from error
                now = time.monotonic()
                if now >= deadline:
                    raise too_late(method, self._peer) from None
                if now >= limit:
                    waited = f"{self._connect_timeout:g} s"
                    reason = str(error) or type(error).__name__
                    raise PeerGone(f"{method!r} on {self._peer}: it can't be reached for {waited}: {reason}") from None
                time.sleep(max(0.0, min(pause, limit - now, deadline - now)))
                pause = min(2 * pause, _RETRY_SECONDS[1])
        state.add(stream)
        return stream

    def _submit(
        self, method: str, args: Any, kwargs: Any, timeout: float | None, retry: int
    ) -> concurrent.futures.Future[Any]:
        request = _dump_request(method, args, kwargs)
        deadline = time.monotonic() + (self._call_timeout if timeout is None else timeout)
        again = functools.partial(self._send_pipelined, request=request) if retry > 0 else None
        call = Pending(concurrent.futures.Future(), method, deadline, retry, again)
        self._send_pipelined(call, request=request)
        return call.future

    def _send_pipelined(self, call: Pending, *, request: Request) -> None:
        """Sends a call; what goes wrong is the future's."""
        state = self._state
        try:
            while True:
                pipeline = state.pipeline
                if self._closed:
                    raise gone(call.method, self._peer, self._closed)
                if pipeline is None or pipeline.dead:
                    pipeline = self._open_pipeline(state, call)
                if pipeline.send(call, request):
                    return
        except (PeerGone, CallTimeout) as error:
            call.fail(error)

    def _open_pipeline(self, state: _State, call: Pending) -> Pipeline:
        # Another thread may hold the lock while it connects, and have longer for that.
        if not state.pipeline_lock.acquire(timeout=min(max(0.0, call.deadline - time.monotonic()), MAX_WAIT)):
            raise too_late(call.method, self._peer)
        try:
            pipeline = state.pipeline
            if pipeline is None or pipeline.dead:
                stream = self._connect(state, call.method, call.deadline)
                pipeline = state.pipeline = Pipeline(self._peer, state, stream, MAX_IN_FLIGHT)
            return pipeline
        finally:
            state.pipeline_lock.release()


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


def list_methods(client: Any) -> list[str]:
    """Returns the names of what can be called on a client's peer, sorted.

    Args:
      client: what a handle became in a node, what `Run.client` returned, or a `Client`.

    Raises:
      PeerGone: the peer ended, died, or never came up.
      TypeError: `client` is no client.
    """
    if not hasattr(type(client), LIST_METHODS):
        raise TypeError(f"list_methods needs a client of a node, got {client!r}")
    return type(client).__list_methods__(client)


class _State(StreamPool):
    """A client's connections in one process."""

    def __init__(self) -> None:
        super().__init__()
        self.pipeline: Pipeline | None = None
        self.pipeline_lock = threading.Lock()


def _rebuild(kind: type[Client], address: str | Callable[[], str], options: dict[str, Any]) -> Client:
    return kind(address, **options)


def _dump_request(method: str, args: Any, kwargs: Any) -> Request:
    try:
        return codec.dumps((method, args, kwargs))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise TypeError(f"the arguments of {method!r} can't be pickled: {reason}") from error
