"""Messages over a connected socket: a fixed header, a payload, and any number of raw buffers.

Deadlines are times of `time.monotonic`; `math.inf` means none.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import select
import socket
import ssl
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

#: Kinds of message. The sender of CALL_ALONE sends nothing more before it has its answer; CALL may be
#: followed by others.
HELLO, CALL_ALONE, CALL, RESULT, ERROR = range(1, 6)
#: Sent with HELLO; sides of different versions don't talk.
PROTOCOL_VERSION = 1

#: kind, number of the call, payload, buffers.
Message = tuple[int, int, bytes | memoryview, list[Any]]

_MAGIC = b"rP"
# magic, kind, number of buffers, call, payload bytes; then 8 bytes per buffer with its length.
_HEADER = struct.Struct("<2sHIQQ")
_READ_AHEAD = 64 * 1024
_SOCKET_BUFFER = 1 << 20
# Linux takes at most 1024 parts in one sendmsg.
_MAX_PARTS = 512
_MAX_BUFFERS = 1 << 20
_MAX_BYTES = 1 << 40
_HUGE_PAGE = 2 << 20


class ProtocolError(ConnectionError):
    """The other side doesn't speak this protocol."""


def pack(kind: int, call: int, payload: bytes) -> bytes:
    """Returns a whole message without buffers."""
    return _HEADER.pack(_MAGIC, kind, 0, call, len(payload)) + payload


def hello(name: str) -> bytes:
    """Returns the payload of HELLO; not a pickle, as it is read before the versions are known to agree."""
    return f"{PROTOCOL_VERSION} {name}".encode()


def check_hello(payload: bytes | memoryview) -> str:
    """Returns the other side's name.

    Raises:
      ProtocolError: it speaks another version of the protocol.
    """
    version, _, name = bytes(payload[:1000]).decode(errors="replace").partition(" ")
    if version != str(PROTOCOL_VERSION):
        raise ProtocolError(f"the other side speaks version {version} of the protocol, not {PROTOCOL_VERSION}")
    return name


class Stream:
    """A connected Unix socket that carries messages; one thread may receive while another sends.

    Sends of whole messages are not serialised here: whoever shares a stream between senders holds a lock.
    """

    def __init__(self, connection: socket.socket):
        self._socket = connection
        connection.setblocking(True)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER)
        self._ahead = b""
        self._at = 0
        self._readable = _poll(connection, select.POLLIN)
        self._writable = _poll(connection, select.POLLOUT)
        # The garbage collector may call `shutdown` from within itself.
        self._close_lock = threading.RLock()
        self._shut = False
        self._closed = False
        _open.add(self)

    def send(
        self,
        kind: int,
        call: int,
        payload: bytes,
        buffers: Sequence[memoryview] = (),
        deadline: float = math.inf,
    ) -> None:
        """Sends one message.

        Raises:
          TimeoutError: the other side didn't take it all by the deadline; part of it may have been sent.
          OSError: the stream is broken; part of the message may have been sent.
        """
        if not buffers:
            self.send_bytes(_HEADER.pack(_MAGIC, kind, 0, call, len(payload)) + payload, deadline)
            return
        header = _HEADER.pack(_MAGIC, kind, len(buffers), call, len(payload))
        sizes = struct.pack(f"<{len(buffers)}Q", *(buffer.nbytes for buffer in buffers))
        self._send_parts([memoryview(header + sizes + payload), *buffers], deadline)

    def send_bytes(self, data: bytes, deadline: float = math.inf) -> None:
        """Sends packed messages; raises like `send`."""
        sent = self.send_some(data)
        if sent < len(data):
            self._send_parts([memoryview(data)[sent:]], deadline)

    def send_some(self, data: bytes | memoryview) -> int:
        """Sends what the socket takes without waiting; returns the number of bytes, maybe 0."""
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def _send_parts(self, parts: list[memoryview], deadline: float) -> None:
        parts = [part.cast("B") for part in parts if part.nbytes]
        first = 0
        while first < len(parts):
            sent = self._send_some_of(parts[first : first + _MAX_PARTS])
            if not sent:
                self.wait_writable(deadline)
            while first < len(parts) and sent >= parts[first].nbytes:
                sent -= parts[first].nbytes
                first += 1
            if sent:
                parts[first] = parts[first][sent:]

    def _send_some_of(self, parts: list[memoryview]) -> int:
        try:
            return self._socket.sendmsg(parts, (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def receive(self, deadline: float = math.inf, before_wait: Callable[[], object] | None = None) -> Message:
        """Receives the next message; its buffers are the caller's to keep and to write to.

        Args:
          deadline: until when to wait.
          before_wait: called each time before this waits for bytes to come.

        Raises:
          EOFError: the other side closed the stream.
          ProtocolError: what came is no message of this protocol.
          TimeoutError: the message isn't complete at the deadline; the stream can't be used any more.
          OSError: the stream is broken.
        """
        at = self._at
        if len(self._ahead) - at < _HEADER.size:
            self._read_ahead(_HEADER.size, deadline, before_wait)
            at = self._at
        magic, kind, number, call, size = _HEADER.unpack_from(self._ahead, at)
        if magic != _MAGIC or not HELLO <= kind <= ERROR or number > _MAX_BUFFERS or size > _MAX_BYTES:
            raise ProtocolError("the other side doesn't speak rlpad's protocol")
        self._at = at = at + _HEADER.size
        if not number:
            if len(self._ahead) - at >= size:
                self._at = at + size
                return kind, call, self._ahead[at : at + size], []
            return kind, call, self._read(size, deadline, before_wait), []
        sizes = struct.unpack(f"<{number}Q", self._read(8 * number, deadline, before_wait))
        if sum(sizes) > _MAX_BYTES:
            raise ProtocolError("the other side announces more bytes than can be meant")
        payload = self._read(size, deadline, before_wait)
        return kind, call, payload, [self._read_new(length, deadline, before_wait) for length in sizes]

    def receive_hello(self, deadline: float) -> bytes | memoryview:
        """Receives the other side's HELLO; returns its payload, for `check_hello`. Raises like `receive`."""
        kind, _, payload, _ = self.receive(deadline)
        if kind != HELLO:
            raise ProtocolError("the other side doesn't begin with HELLO")
        return payload

    def _read_ahead(self, size: int, deadline: float, before_wait: Callable[[], object] | None) -> None:
        """Makes at least `size` bytes lie in `_ahead` from `_at` on."""
        while len(self._ahead) - self._at < size:
            if before_wait is not None:
                before_wait()
            chunk = self._receive(_READ_AHEAD, deadline)
            if not chunk:
                raise EOFError("the stream was closed")
            self._ahead = self._ahead[self._at :] + chunk
            self._at = 0

    def _read(self, size: int, deadline: float, before_wait: Callable[[], object] | None) -> bytes | memoryview:
        if size > _READ_AHEAD:
            return memoryview(self._read_new(size, deadline, before_wait))
        self._read_ahead(size, deadline, before_wait)
        start = self._at
        self._at = start + size
        return self._ahead[start : start + size]

    def _read_new(self, size: int, deadline: float, before_wait: Callable[[], object] | None) -> Any:
        """Reads into new, writable memory, uncopied but for what was read ahead."""
        memory = _allocate(size)
        view = memoryview(memory)
        filled = min(size, len(self._ahead) - self._at)
        view[:filled] = self._ahead[self._at : self._at + filled]
        self._at += filled
        if filled < size and before_wait is not None:
            before_wait()
        while filled < size:
            received = self._receive_into(view[filled:], deadline)
            if not received:
                raise EOFError("the stream was closed")
            filled += received
        return memory

    def _receive(self, size: int, deadline: float) -> bytes:
        if deadline != math.inf:
            self._wait(self._readable, deadline)
        return self._socket.recv(size)

    def _receive_into(self, view: memoryview, deadline: float) -> int:
        if deadline != math.inf:
            self._wait(self._readable, deadline)
        return self._socket.recv_into(view)

    def wait_writable(self, deadline: float) -> None:
        """Waits until the socket takes bytes.

        Raises:
          TimeoutError: it doesn't by the deadline.
        """
        self._wait(self._writable, deadline)

    @staticmethod
    def _wait(poll: select.poll, deadline: float) -> None:
        if deadline == math.inf:
            poll.poll()
            return
        # Rounded up: a wait that ends just before the deadline would turn into a busy loop.
        milliseconds = max(0, math.ceil((deadline - time.monotonic()) * 1000))
        if not poll.poll(milliseconds):
            raise TimeoutError("the other side didn't get on with the message in time")

    def is_stale(self) -> bool:
        """Says whether an idle stream, on which nothing is to come, has ended."""
        return bool(self._readable.poll(0))

    def shutdown(self) -> None:
        """Ends the stream for both sides; a `receive` or `send` that waits in another thread ends."""
        with self._close_lock:
            if self._shut or self._closed:
                return
            self._shut = True
            # The other side may have been quicker.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the stream for both sides.

        Only for when no other thread is in `receive` or `send`: its descriptor's number is free for others
        then.
        """
        self.shutdown()
        with self._close_lock:
            self._closed = True
            self._socket.close()

    def abandon(self) -> None:
        """Closes a forked child's copy; the parent's stream lives on."""
        self._closed = True  # without the lock, which a thread of the parent may have held
        self._socket.close()


class TlsStream(Stream):
    """A stream over TLS.

    An OpenSSL session may be used by one thread at a time, so nothing blocks inside of it: reads and writes
    are tried under a lock and wait for the socket outside of it.
    """

    def __init__(self, connection: ssl.SSLSocket):
        self._session_lock = threading.Lock()
        super().__init__(connection)
        connection.setblocking(False)

    def send_some(self, data: bytes | memoryview) -> int:
        """Sends what the socket takes without waiting; returns the number of bytes, maybe 0."""
        try:
            # A write that was refused must be repeated with the same bytes, so all are cut at the same
            # length.
            with self._session_lock:
                return self._socket.send(data[:_READ_AHEAD])
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return 0

    def _send_some_of(self, parts: list[memoryview]) -> int:
        return self.send_some(parts[0])

    def is_stale(self) -> bool:
        """Says whether an idle stream, on which nothing is to come, has ended."""
        # Readable alone doesn't say so: TLS sends messages of its own, such as session tickets.
        if not self._readable.poll(0):
            return False
        try:
            with self._session_lock:
                self._socket.recv(1)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError:
            return True
        return True

    def _receive(self, size: int, deadline: float) -> bytes:
        return self._retry(lambda: self._socket.recv(size), deadline)

    def _receive_into(self, view: memoryview, deadline: float) -> int:
        return self._retry(lambda: self._socket.recv_into(view), deadline)

    def _retry(self, attempt: Callable[[], Any], deadline: float) -> Any:
        while True:
            poll = self._readable
            try:
                with self._session_lock:
                    return attempt()
            except ssl.SSLWantReadError:
                poll = self._readable
            except ssl.SSLWantWriteError:
                poll = _poll(self._socket, select.POLLOUT)
            self._wait(poll, deadline)


def wrap(connection: socket.socket) -> Stream:
    """Returns a stream over a connected socket, which is closed if that fails."""
    try:
        return TlsStream(connection) if isinstance(connection, ssl.SSLSocket) else Stream(connection)
    except BaseException:
        connection.close()
        raise


def _poll(connection: socket.socket, event: int) -> select.poll:
    poll = select.poll()
    poll.register(connection, event)
    return poll


# Streams of this process; a forked child closes its copies, or the other side wouldn't see when the parent
# dies.
_open: weakref.WeakSet[Stream] = weakref.WeakSet()


def _abandon_all() -> None:
    for stream in list(_open):
        stream.abandon()
    _open.clear()


os.register_at_fork(after_in_child=_abandon_all)


def _allocate(size: int) -> Any:
    """Returns writable memory that isn't touched until it is filled: a length may be announced and never
    come.

    NumPy's allocator is used where NumPy is loaded, as the C library then gives the same memory again (4.4
    GB/s through a socket, 3.4 with fresh huge pages, 1.0 with fresh small ones).
    """
    if size < _READ_AHEAD:
        return bytearray(size)
    numpy = sys.modules.get("numpy")
    try:
        if numpy is not None and hasattr(numpy, "empty"):
            return numpy.empty(size, numpy.uint8)
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (MemoryError, OSError) as error:
        raise ProtocolError(f"no memory for a message of {size} bytes") from error
    if size >= _HUGE_PAGE:
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
