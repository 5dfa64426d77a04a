"""Serves an object's public methods to other processes."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from rlpad.launch.rpc import address as addresses
from rlpad.launch.rpc import stream as streams
from rlpad.launch.rpc.methods import Methods
from rlpad.launch.rpc.security import Credentials
from rlpad.launch.rpc.stream import Stream

_log = logging.getLogger(__name__)

# A pipelined call that runs longer gets company: another thread reads on.
_SLOW_SECONDS = 0.001
# So many ticks without a call, and the monitor sleeps until there is one.
_IDLE_TICKS = 100
# Replies are held back up to so many bytes while more requests lie read ahead.
_HOLD_BYTES = 4 * 1024
_HELLO_SECONDS = 30.0
_STOP_SECONDS = 2.0
# Seconds between looks at whether the server was stopped while a call waits for its turn.
_PERMIT_SECONDS = 0.2


class Server:
    """Serves the public callables of an object, each connection by a thread of its own.

    A method may be called by several threads at once, at most `thread_pool_size` over all connections; while
    all are taken nothing more is read, so that callers wait.

    Attributes:
      address: where the server listens; a port 0 is resolved to the real one.
      name: what the server is called in messages.
    """

    def __init__(
        self,
        target: object,
        address: str,
        *,
        thread_pool_size: int = 16,
        credentials: Credentials | None = None,
        name: str = "",
    ):
        """Binds the methods and the address; nothing is served before `start`.

        Args:
          target: any object; its public callables are bound, and `__call__` if its class has it. Properties
            are not evaluated.
          address: `unix:/path`, or `tcp://host:port` together with credentials.
          thread_pool_size: how many calls run at once.
          credentials: for TCP: what to show, and whom to trust.
          name: what the server is called in messages.

        Raises:
          ValueError: the address can't be used, or `thread_pool_size` isn't positive.
          OSError: the address is taken.
        """
        if thread_pool_size < 1:
            raise ValueError(f"thread_pool_size is {thread_pool_size}, at least 1 is needed")
        self.name = name or type(target).__name__
        self._methods = Methods(target, self.name)
        self._credentials = credentials
        self._permits = threading.BoundedSemaphore(thread_pool_size)
        self._lock = threading.Lock()
        self._connections: set[_Connection] = set()
        self._threads: set[threading.Thread] = set()
        self._pipelined: tuple[_Connection, ...] = ()
        self._calls_run = threading.Event()
        self._stopped = threading.Event()
        self._started = False
        self._process = os.getpid()
        self._listener, self.address = addresses.listen(address, credentials)
        _servers.add(self)

    def start(self) -> None:
        """Starts serving, in threads of its own.

        Raises:
          RuntimeError: the server was started or stopped before.
        """
        with self._lock:
            if self._started or self._stopped.is_set():
                raise RuntimeError(f"server {self.name!r} was started or stopped before")
            self._started = True
        self._spawn(self._accept, name="accept")
        self._spawn(self._monitor, name="monitor")

    def stop(self) -> None:
        """Stops serving: callers see `PeerGone`, and the socket's file is removed.

        Calls that are running can't be interrupted; they are waited for a moment and then left to themselves.
        """
        if os.getpid() != self._process:
            return  # A forked child's copy: the server is the parent's.
        with self._lock:
            if self._stopped.is_set():
                return
            self._stopped.set()
            connections = list(self._connections)
        if self.address.startswith("unix:"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address.removeprefix("unix:"))
        # Closing alone doesn't wake a thread that waits in accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._calls_run.set()
        for connection in connections:
            connection.shutdown()
        deadline = time.monotonic() + _STOP_SECONDS
        with self._lock:
            threads = self._threads - {threading.current_thread()}
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def bind(self, name: str, function: Callable[..., Any]) -> None:
        """Serves a further function.

        Raises:
          TypeError: `function` can't be called.
        """
        self._methods.bind(name, function)

    def __enter__(self) -> Server:
        """Starts the server."""
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Stops the server."""
        self.stop()

    def _spawn(self, function: Callable[..., None], *args: Any, name: str) -> None:
        def run() -> None:
            try:
                function(*args)
            finally:
                with self._lock:
                    self._threads.discard(thread)

        thread = threading.Thread(target=run, name=f"rpc-{self.name}-{name}", daemon=True)
        # Under the lock, so that `stop` joins only threads that were started.
        with self._lock:
            thread.start()  # raises RuntimeError if no more threads can be had
            self._threads.add(thread)

    def _accept(self) -> None:
        short_of_threads = False
        while not self._stopped.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if self._stopped.is_set():
                    return
                # Out of file descriptors, for instance: that may pass.
                _log.warning("server %s can't accept a connection: %s", self.name, error)
                self._stopped.wait(0.1)
                continue
            try:
                self._spawn(self._greet, connection, name="connection")
            except RuntimeError as error:
                # At a limit, or after the end of a script with some Pythons: one at a time is better than none.
                if not short_of_threads:
                    _log.warning("server %s serves further connections in turn: %s", self.name, error)
                short_of_threads = True
                self._greet(connection)

    def _greet(self, raw: socket.socket) -> None:
        """Authenticates a new connection, agrees on the protocol, and serves it."""
        try:
            if raw.family != socket.AF_UNIX:
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secure = addresses.accept(raw, self._credentials)
        except (OSError, ValueError) as error:
            _log.warning("server %s refused a connection: %s", self.name, error)
            raw.close()
            return
        stream = streams.wrap(secure)
        connection = _Connection(self, stream)
        with self._lock:
            if self._stopped.is_set():
                stream.close()
                return
            self._connections.add(connection)
        try:
            payload = stream.receive_hello(time.monotonic() + _HELLO_SECONDS)
            stream.send(streams.HELLO, 0, streams.hello(self.name), deadline=time.monotonic() + _HELLO_SECONDS)
            streams.check_hello(payload)
        except (OSError, EOFError) as error:
            if not self._stopped.is_set() and not isinstance(error, EOFError):
                _log.warning("server %s refused a connection: %s", self.name, error)
            connection.shutdown()
            connection.leave()
            return
        connection.serve(0)

    def _monitor(self) -> None:
        """Lets other threads read on where a pipelined call takes long."""
        idle = 0
        while True:
            self._calls_run.wait()
            if self._stopped.is_set():
                return
            time.sleep(_SLOW_SECONDS)
            now = time.monotonic()
            busy = False
            for connection in self._pipelined:
                since = connection.running_since
                if since:
                    busy = True
                    if now - since > _SLOW_SECONDS:
                        connection.hand_over(since)
            idle = 0 if busy else idle + 1
            if idle >= _IDLE_TICKS:
                idle = 0
                self._calls_run.clear()
                # A call may have begun, and found the event set, just before that.
                if self._stopped.is_set() or any(c.running_since for c in self._pipelined):
                    self._calls_run.set()

    def _add_pipelined(self, connection: _Connection) -> None:
        with self._lock:
            self._pipelined += (connection,)

    def _remove(self, connection: _Connection) -> None:
        with self._lock:
            self._connections.discard(connection)
            self._pipelined = tuple(c for c in self._pipelined if c is not connection)

    def _take_permit(self) -> bool:
        """Waits for a permit to call; returns false if the server was stopped meanwhile."""
        while not self._permits.acquire(timeout=_PERMIT_SECONDS):
            if self._stopped.is_set():
                return False
        return True


class _Connection:
    """One client's stream, read by one thread at a time and written to by many."""

    def __init__(self, server: Server, stream: Stream):
        self._server = server
        self._stream = stream
        self._lock = threading.Lock()
        # Which thread reads: the one that was started with this number.
        self._epoch = 0
        self._users = 1
        self._pipelined = False
        # When the reader's pipelined call began, 0 if none runs.
        self.running_since = 0.0
        self._send_lock = threading.Lock()
        self._held: list[bytes] = []
        self._held_bytes = 0

    def shutdown(self) -> None:
        """Ends the stream for both sides; whoever waits in it is woken."""
        self._stream.shutdown()

    def leave(self) -> None:
        """Ends a thread's use of the stream; the last one closes it."""
        with self._lock:
            self._users -= 1
            last = not self._users
        if last:
            self._stream.close()
            self._server._remove(self)

    def hand_over(self, since: float) -> None:
        """Lets another thread read on if the call that began at `since` still runs."""
        with self._lock:
            if self.running_since != since:
                return
            self.running_since = 0.0
            self._epoch += 1
            self._users += 1
            epoch = self._epoch
        try:
            self._server._spawn(self.serve, epoch, name="connection")
        except RuntimeError:  # no more threads can be had: the one that runs the call has to read on
            with self._lock:
                self._epoch -= 1
                self._users -= 1

    def serve(self, epoch: int) -> None:
        """Reads, calls and replies until the stream ends or another thread reads."""
        try:
            self._flush()  # what the thread before held back when its call began
            while self._serve_one(epoch):
                pass
        except EOFError:
            self.shutdown()
        except OSError as error:
            self.shutdown()
            if isinstance(error, streams.ProtocolError):
                _log.warning("server %s closed a connection: %s", self._server.name, error)
        except BaseException:
            self.shutdown()
            raise
        finally:
            self.leave()

    def _serve_one(self, epoch: int) -> bool:
        server = self._server
        kind, call, payload, buffers = self._stream.receive(before_wait=self._flush)
        pipelined = kind == streams.CALL
        if not pipelined and kind != streams.CALL_ALONE:
            raise streams.ProtocolError(f"a client sent a message of kind {kind}")
        if not pipelined:
            self._flush()
        elif not self._pipelined:
            self._pipelined = True
            server._add_pipelined(self)
        if not server._permits.acquire(blocking=False):
            self._flush()
            if not server._take_permit():
                return False
        try:
            if pipelined:
                self.running_since = time.monotonic()
                if not server._calls_run.is_set():
                    server._calls_run.set()
            reply = server._methods.execute(payload, buffers)
        finally:
            server._permits.release()
        with self._lock:
            reads = self._epoch == epoch
            if reads:
                self.running_since = 0.0
        self._reply(call, *reply, hold=pipelined and reads)
        return reads

    def _reply(self, call: int, kind: int, payload: bytes, buffers: list[memoryview], *, hold: bool) -> None:
        with self._send_lock:
            if buffers:
                self._send_held()
                self._stream.send(kind, call, payload, buffers)
                return
            self._held.append(streams.pack(kind, call, payload))
            self._held_bytes += len(payload) + 32
            if not hold or self._held_bytes > _HOLD_BYTES:
                self._send_held()

    def _flush(self) -> None:
        if self._held:
            with self._send_lock:
                self._send_held()

    def _send_held(self) -> None:
        if self._held:
            data = self._held[0] if len(self._held) == 1 else b"".join(self._held)
            self._held.clear()
            self._held_bytes = 0
            self._stream.send_bytes(data)


_servers: weakref.WeakSet[Server] = weakref.WeakSet()


def _close_listeners() -> None:
    # A child that holds the listener would keep connections waiting that nobody serves.
    for server in list(_servers):
        server._listener.close()


os.register_at_fork(after_in_child=_close_listeners)
