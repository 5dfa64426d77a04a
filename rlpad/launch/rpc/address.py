"""Addresses, and the sockets behind them.

`unix:/path` is for one machine: the socket lies in a private folder, and both sides check that the other runs
as the same user. `tcp://host:port` is for several: both sides must show a certificate of the launch (mutual
TLS). Without a host (`tcp://:port`) it's this machine only.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlpad.launch.rpc.security import Credentials

#: A Unix socket's path holds at most so many bytes.
MAX_UNIX_PATH = 107

_UCRED = struct.Struct("3i")


def listen(address: str, credentials: Credentials | None = None) -> tuple[socket.socket, str]:
    """Opens a listening socket.

    Returns:
      The socket, and the real address (a TCP port 0 is resolved).

    Raises:
      ValueError: the address is malformed, a path is too long, or TCP lacks credentials.
    """
    scheme, rest = _split(address)
    if scheme == "unix":
        if len(os.fsencode(rest)) > MAX_UNIX_PATH:
            raise ValueError(f"socket path {rest!r} is {len(os.fsencode(rest))} bytes, at most {MAX_UNIX_PATH} work")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Linux gives the path the socket's mode. A umask would be for what other threads make meanwhile, too.
            os.fchmod(listener.fileno(), 0o600)
            _bind_unix(listener, rest)
        except BaseException:
            listener.close()
            raise
        listener.listen(512)
        return listener, address
    if credentials is None:
        raise ValueError(f"{address!r} needs credentials: TCP without mutual TLS is refused")
    host, port = _host_port(rest)
    listener = socket.create_server((host, port), backlog=512)
    return listener, f"tcp://{host}:{listener.getsockname()[1]}"


def _bind_unix(listener: socket.socket, path: str) -> None:
    try:
        listener.bind(path)
        return
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not is_left_behind(path):
            raise OSError(error.errno, f"{error.strerror}: socket path {path!r}") from None
    os.unlink(path)
    listener.bind(path)


def is_left_behind(path: str) -> bool:
    """Says whether a path is the socket of a server that died."""
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def accept(connection: socket.socket, credentials: Credentials | None) -> socket.socket:
    """Authenticates a connection that was accepted; nothing is read from it before.

    Raises:
      PermissionError: the peer is another user.
      OSError: the TLS handshake failed.
    """
    if connection.family == socket.AF_UNIX:
        _check_user(connection)
        return connection
    assert credentials is not None
    connection.settimeout(10.0)
    secure = credentials.server_context().wrap_socket(connection, server_side=True)
    secure.settimeout(None)
    return secure


def connect(address: str, credentials: Credentials | None, timeout: float) -> socket.socket:
    """Connects and authenticates.

    Raises:
      OSError: nobody listens there, or authentication failed.
      ValueError: the address is malformed, or TCP lacks credentials.
    """
    scheme, rest = _split(address)
    if scheme == "unix":
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout)
        try:
            connection.connect(rest)
            _check_user(connection)
        except BaseException:
            connection.close()
            raise
        return connection
    if credentials is None:
        raise ValueError(f"{address!r} needs credentials: TCP without mutual TLS is refused")
    plain = socket.create_connection(_host_port(rest), timeout=timeout)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        return credentials.client_context().wrap_socket(plain)
    except BaseException:
        plain.close()
        raise


def _check_user(connection: socket.socket) -> None:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    _, user, _ = _UCRED.unpack(raw)
    if user != os.getuid():
        raise PermissionError(f"the peer runs as user {user}, expected {os.getuid()}")


def _split(address: str) -> tuple[str, str]:
    if address.startswith("unix:") and len(address) > 5:
        return "unix", address[5:]
    if address.startswith("tcp://") and address.count(":") >= 2:
        return "tcp", address[6:]
    raise ValueError(f"address {address!r} is malformed; expected unix:/path or tcp://host:port")


def _host_port(rest: str) -> tuple[str, int]:
    host, _, port = rest.rpartition(":")
    if not port.isdigit():
        raise ValueError(f"port {port!r} of address 'tcp://{rest}' is no number")
    return host or "127.0.0.1", int(port)
