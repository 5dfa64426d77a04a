"""What tests of calls between processes share."""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rlpad.launch.rpc import security

from .serving import until


@pytest.fixture
def folder() -> Iterator[str]:
    # pytest's own folders are too deep for a socket's path.
    with tempfile.TemporaryDirectory(prefix="rpc-") as path:
        yield path


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    def descriptors() -> set[str]:
        found = set()
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                link = os.readlink(f"/proc/self/fd/{name}")
                if link.startswith("socket:"):
                    found.add(link)
        return found

    threads, sockets = set(threading.enumerate()), descriptors()
    yield

    def left() -> list[Any]:
        gc.collect()
        rest: list[Any] = [t for t in threading.enumerate() if t not in threads and t.name != "rpc-timer"]
        return rest + sorted(descriptors() - sockets)

    until(lambda: not left(), left)


@pytest.fixture(scope="session")
def credentials() -> security.Credentials:
    """What the nodes of a launch show each other over TCP."""
    pytest.importorskip("cryptography")
    return security.make_credentials()
