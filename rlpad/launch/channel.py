"""Messages between supervisor and nodes, over a stream socket."""

from __future__ import annotations

import pickle
import select
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("<Q")
_CHUNK = 64 * 1024


class Channel:
    """Pickled messages, each after its length; for sides that trust each other.

    One thread may receive while others send; those who send take turns by a lock of their own.
    """

    def __init__(self, connection: socket.socket):
        """Takes over a connected socket."""
        connection.setblocking(True)
        self._socket = connection
        self._received = bytearray()

    def fileno(self) -> int:
        """Returns the descriptor, to wait for."""
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        """Sends a message; raises `OSError` if the other side is gone."""
        payload = pickle.dumps(message)
        self._socket.sendall(_LENGTH.pack(len(payload)) + payload)

    def receive(self) -> Any:
        """Waits for the next message; raises `EOFError` or `OSError` at the other side's end."""
        while not (found := self._take(1)):
            self._read()
        return found[0]

    def receive_ready(self) -> list[Any]:
        """Returns the messages that have come whole, without waiting: a node may be stopped midway through one.

        Raises:
          EOFError: the other side has ended, and all that it sent was returned before.
          OSError: it was killed.
        """
        if self.ready():
            self._read()
        return self._take()

    def ready(self) -> bool:
        """Whether more has come, or the end."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def _read(self) -> None:
        chunk = self._socket.recv(_CHUNK)
        if not chunk:
            raise EOFError("the other side has ended")
        self._received += chunk

    def _take(self, most: int | None = None) -> list[Any]:
        found: list[Any] = []
        at = 0
        while (most is None or len(found) < most) and len(self._received) >= at + _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received, at)
            end = at + _LENGTH.size + length
            if len(self._received) < end:
                break
            found.append(pickle.loads(self._received[at + _LENGTH.size : end]))
            at = end
        del self._received[:at]
        return found

    def close(self) -> None:
        """Ends this side."""
        self._socket.close()
