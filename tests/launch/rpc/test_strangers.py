"""Calls between processes: who may connect."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import stat
import struct
from typing import Any

import pytest

from rlpad.launch.errors import PeerGone
from rlpad.launch.rpc import Client, Server
from rlpad.launch.rpc import stream as streams

from .serving import WAIT, Target, serving


def test_the_socket_is_the_users_own(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = os.umask(0)
    try:
        with monkeypatch.context() as patch:
            # It's the whole process's: what other threads make meanwhile would be of no use to anybody.
            patch.delattr(os, "umask")
            with serving(folder):
                assert stat.S_IMODE(os.stat(f"{folder}/s").st_mode) == 0o600
    finally:
        os.umask(mask)


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
