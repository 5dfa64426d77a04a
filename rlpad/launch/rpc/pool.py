"""The streams of a client: how they are opened, kept for the next call, and ended."""

from __future__ import annotations

import ssl
import threading
import time
import weakref
from collections.abc import Callable

from rlpad.launch.rpc import address as addresses
from rlpad.launch.rpc import stream as streams
from rlpad.launch.rpc.security import Credentials
from rlpad.launch.rpc.stream import Stream

_ATTEMPT_SECONDS = 5.0


class StreamPool:
    """A client's streams in one process."""

    def __init__(self) -> None:
        # Idle streams, the one used last at the end; a list's append and pop need no lock.
        self.idle: list[Stream] = []
        self.closed = False
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._lock = threading.RLock()

    def take(self) -> Stream | None:
        """Returns an idle stream; none if there is none that works."""
        while True:
            try:
                stream = self.idle.pop()
            except IndexError:
                return None
            if not stream.is_stale():
                return stream
            stream.close()

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


def open_stream(address: str | Callable[[], str], credentials: Credentials | None, deadline: float) -> Stream:
    """Connects once, and agrees with the peer on the protocol; raises what goes wrong."""
    if not isinstance(address, str):
        address = address()
    remaining = max(0.001, min(_ATTEMPT_SECONDS, deadline - time.monotonic()))
    stream = streams.wrap(addresses.connect(address, credentials, remaining))
    try:
        stream.send(streams.HELLO, 0, streams.hello(""), deadline=deadline)
        streams.check_hello(stream.receive_hello(deadline))
    except BaseException:
        stream.close()
        raise
    return stream


def is_final(error: BaseException) -> bool:
    """Says whether connecting again can't help: the other side is somebody else."""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return False
    return isinstance(error, ssl.SSLError | PermissionError | streams.ProtocolError)
