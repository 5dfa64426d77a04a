"""Calls between machines: TCP, and who may connect there."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import ssl
import time
from typing import Any

import numpy as np
import pytest

from rlpad.launch.errors import CallTimeout, PeerGone
from rlpad.launch.rpc import Client, Server, list_methods, security
from rlpad.launch.rpc import stream as streams

from .serving import WAIT, Target, until


def test_round_trips_over_tcp_with_mutual_tls(credentials: security.Credentials) -> None:
    server = Server(Target(), "tcp://127.0.0.1:0", credentials=credentials)
    with server, Client(server.address, credentials=credentials, connect_timeout=2) as client:
        assert not server.address.endswith(":0")
        array = np.arange(1 << 20, dtype=np.float64)
        for _ in range(3):
            np.testing.assert_array_equal(client.same(array), array)
            assert client.increment()
        futures = [client.futures.same(array if i % 3 == 0 else i) for i in range(30)]
        for i, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(WAIT), array if i % 3 == 0 else i)
        assert len(client._state.idle) == 1  # it was used again, session tickets and all
        with pytest.raises(ValueError, match="too blue"):
            client.raise_value_error()
        with pytest.raises(CallTimeout):
            client.sleep(0.3, timeout=0.1)
        assert "increment" in list_methods(client)
        pending = client.futures.sleep(0.3)
        server.stop()
        with pytest.raises(PeerGone):
            pending.result(2)


def test_without_a_host_it_listens_on_this_machine_only(credentials: security.Credentials) -> None:
    with (
        Server(Target(), "tcp://:0", credentials=credentials) as server,
        Server(Target(), "tcp://0.0.0.0:0", credentials=credentials) as public,
    ):
        assert [s._listener.getsockname()[0] for s in (server, public)] == ["127.0.0.1", "0.0.0.0"]
        port = server.address.removeprefix("tcp://127.0.0.1:")
        for address in (server.address, f"tcp://:{port}"):
            with Client(address, credentials=credentials, connect_timeout=2) as client:
                assert client.same(1) == 1
        assert public.address.startswith("tcp://0.0.0.0:")


class Bomb:
    """Makes a folder when it's unpickled."""

    def __init__(self, path: str):
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._path,)


def messages(kind: str, path: str) -> bytes:
    """Returns what a stranger sends."""
    bomb = pickle.dumps(Bomb(path))
    hello = streams.pack(streams.HELLO, 0, streams.hello(""))
    call = pickle.dumps(("same", (Bomb(path),), {}))
    return {
        "first bytes": bomb,
        "hello": streams.pack(streams.HELLO, 0, bomb),
        "first message": streams.pack(streams.CALL, 1, call),
        "call": hello + streams.pack(streams.CALL, 1, call),
        "call alone": hello + streams.pack(streams.CALL_ALONE, 1, call),
    }[kind]


def send(server: Server, context: ssl.SSLContext | None, data: bytes) -> bytes:
    """Sends bytes to a server, over TLS if there's a context; returns what comes back."""
    host, port = server.address.removeprefix("tcp://").split(":")
    received = b""
    with (
        socket.create_connection((host, int(port)), timeout=WAIT) as plain,
        contextlib.suppress(ConnectionError, ssl.SSLError),
        contextlib.nullcontext(plain) if context is None else context.wrap_socket(plain) as connection,
    ):
        connection.sendall(data)
        if context is None:
            connection.shutdown(socket.SHUT_WR)
        while chunk := connection.recv(1000):
            received += chunk
    return received


def stranger(who: str) -> ssl.SSLContext | None:
    """Returns the TLS context of one who isn't of the launch."""
    if who == "without TLS":
        return None
    if who == "with another launch's certificate":
        context = security.make_credentials().client_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # trusting anybody
    return context


@pytest.mark.parametrize("who", ["without TLS", "without a certificate", "with another launch's certificate"])
def test_of_strangers_nothing_is_unpickled(credentials: security.Credentials, folder: str, who: str) -> None:
    with Server(Target(), "tcp://127.0.0.1:0", credentials=credentials) as server:
        context = stranger(who)
        for kind in ("first bytes", "hello", "first message", "call", "call alone"):
            assert b"same" not in send(server, context, messages(kind, f"{folder}/bomb"))
            assert not os.path.exists(f"{folder}/bomb"), kind
        with Client(server.address, credentials=credentials, connect_timeout=2) as client:
            assert client.same(1) == 1
        until(lambda: not server._connections)
        assert not os.path.exists(f"{folder}/bomb")


@pytest.mark.parametrize("kind", ["first bytes", "hello", "first message"])
def test_nothing_is_unpickled_before_the_protocol_is_agreed_on(
    credentials: security.Credentials, folder: str, kind: str
) -> None:
    with Server(Target(), "tcp://127.0.0.1:0", credentials=credentials) as server:
        send(server, credentials.client_context(), messages(kind, f"{folder}/bomb"))
        with Client(server.address, credentials=credentials, connect_timeout=2) as client:
            assert client.same(1) == 1
            assert not os.path.exists(f"{folder}/bomb")
            # The test itself: whom the server knows may send anything.
            client.same(Bomb(f"{folder}/bomb"))
            assert os.path.exists(f"{folder}/bomb")


def test_a_client_refuses_strangers_too(credentials: security.Credentials) -> None:
    with (
        Server(Target(), "tcp://127.0.0.1:0", credentials=security.make_credentials()) as server,
        Client(server.address, credentials=credentials, connect_timeout=2) as client,
    ):
        began = time.monotonic()
        with pytest.raises(PeerGone, match="connecting failed"):
            client.same(1)
        assert time.monotonic() - began < 1
