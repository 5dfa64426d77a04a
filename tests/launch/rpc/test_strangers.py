"""Calls between processes: who may connect."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import ssl
import stat
import struct
import time
from typing import Any

import numpy as np
import pytest

from rlpad.launch.errors import CallTimeout, PeerGone
from rlpad.launch.rpc import Client, Server, list_methods, security
from rlpad.launch.rpc import stream as streams

from .serving import WAIT, Target, serving


def test_the_socket_is_the_users_own(folder: str) -> None:
    with serving(folder):
        assert stat.S_IMODE(os.stat(f"{folder}/s").st_mode) == 0o600


def test_addresses_that_cannot_be_used(folder: str) -> None:
    with pytest.raises(ValueError, match="at most 107"):
        Server(Target(), f"unix:{folder}/{'x' * 120}")
    with pytest.raises(ValueError, match="malformed"):
        Server(Target(), "http://localhost")
    with pytest.raises(ValueError, match="without mutual TLS is refused"):
        Server(Target(), "tcp://127.0.0.1:0")
    refused = pytest.raises(ValueError, match="without mutual TLS is refused")
    with Client("tcp://127.0.0.1:1", connect_timeout=0.2) as client, refused:
        client.f()
    with serving(folder), pytest.raises(OSError, match="in use"):
        Server(Target(), f"unix:{folder}/s")


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["RPC_TEST_BOMB"],)


@pytest.mark.parametrize("first", ["nothing", "garbage", "call", "hello of another version", "huge"])
def test_garbage_is_not_unpickled_and_harms_nobody(folder: str, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RPC_TEST_BOMB", f"{folder}/bomb")
    bomb = pickle.dumps(("same", (Bomb(),), {}))
    call = streams.pack(streams.CALL, 1, bomb)
    data = {
        "nothing": b"",
        "garbage": os.urandom(1000) + bomb,
        "call": call,
        "hello of another version": streams.pack(streams.HELLO, 0, b"999 x") + call,
        "huge": struct.pack("<2sHIQQ", b"rP", streams.HELLO, 1 << 19, 0, 1 << 39) + b"\xff" * 64,
    }[first]
    with serving(folder) as (_, client):
        assert client.same(1) == 1
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(f"{folder}/s")
            raw.settimeout(WAIT)
            with contextlib.suppress(ConnectionError):
                raw.sendall(data)
                raw.shutdown(socket.SHUT_WR)
                while raw.recv(1000):
                    pass
        assert client.same(2) == 2
        assert not os.path.exists(f"{folder}/bomb")


def test_another_version_of_the_protocol_is_refused(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(folder) as (_, client):
        monkeypatch.setattr(streams, "hello", lambda name: b"999 x")
        with pytest.raises(PeerGone, match="speaks version 999"):
            client.same(1)


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


def test_strangers_are_refused_over_tcp(
    credentials: security.Credentials, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RPC_TEST_BOMB", f"{folder}/bomb")
    with Server(Target(), "tcp://127.0.0.1:0", credentials=credentials) as server:
        host, port = server.address.removeprefix("tcp://").split(":")
        raw = socket.create_connection((host, int(port)), timeout=WAIT)
        with raw, contextlib.suppress(ConnectionError):
            raw.sendall(streams.pack(streams.HELLO, 0, streams.hello("")))
            raw.sendall(streams.pack(streams.CALL, 1, pickle.dumps(("same", (Bomb(),), {}))))
            while raw.recv(1000):
                pass
        with Client(server.address, credentials=security.make_credentials(), connect_timeout=2) as client:
            start = time.monotonic()
            with pytest.raises(PeerGone, match="connecting failed"):
                client.same(1)
            assert time.monotonic() - start < 1
        # One who trusts anybody, but shows another authority's certificate.
        context = security.make_credentials().client_context()
        context.verify_mode = ssl.CERT_NONE
        plain = socket.create_connection((host, int(port)), timeout=WAIT)
        refused = pytest.raises((ssl.SSLError, ConnectionError))
        with plain, refused, context.wrap_socket(plain) as secure:
            secure.sendall(streams.pack(streams.HELLO, 0, streams.hello("")))
            if not secure.recv(100):
                raise ConnectionError("closed")
        assert not os.path.exists(f"{folder}/bomb")
        with Client(server.address, credentials=credentials, connect_timeout=2) as client:
            assert client.same(1) == 1
