"""Both replay backends behind one fixture, and a way to read a table back."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tree

from rlpad import replay

WAIT = 20.0

Connect = Callable[..., replay.ReplayClient]


class Service:
    """A replay service of one backend, with as many clients as a test likes."""

    def __init__(self, backend: str, make_tables: Callable[[], list[replay.Table]], seed: int):
        self.backend = backend
        self.tables = make_tables()
        self.closers: list[Callable[[], None]] = []
        if backend == "reverb":
            reverb = pytest.importorskip("reverb")
            from rlpad.replay.reverb_backend import reverb_tables

            server = reverb.Server(reverb_tables(make_tables)())
            self.closers.append(server.stop)
            self.connection: Callable[[], Any] = lambda: reverb.Client(f"localhost:{server.port}")
            return
        from rlpad.replay.embedded.service import ReplayService

        self.local = ReplayService(make_tables, seed)
        self.connection = lambda: self.local
        if backend == "served":
            from rlpad.launch.rpc import Client, Server

            folder = tempfile.TemporaryDirectory()
            rpc_server = Server(self.local, f"unix:{folder.name}/replay", thread_pool_size=8)
            rpc_server.start()
            self.closers += [rpc_server.stop, folder.cleanup]
            self.connection = lambda: self._rpc_client(Client(rpc_server.address))

    def _rpc_client(self, client: Any) -> Any:
        self.closers.insert(0, client.close)
        return client

    def client(self) -> replay.ReplayClient:
        backend = "reverb" if self.backend == "reverb" else "embedded"
        return replay.make_client(backend, self.connection(), self.tables)

    def close(self) -> None:
        for close in self.closers:
            close()


@pytest.fixture(params=["embedded", "served", "reverb"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def serve(backend: str) -> Iterator[Callable[..., Service]]:
    """Starts services: `serve(*tables, seed=0)`."""
    services: list[Service] = []

    def start(*tables: replay.Table, seed: int = 0) -> Service:
        services.append(Service(backend, lambda: list(tables), seed))
        return services[-1]

    yield start
    for service in services:
        service.close()


@pytest.fixture
def connect(serve: Callable[..., Service]) -> Connect:
    """Starts a service and connects to it: `connect(*tables, seed=0)`."""
    return lambda *tables, seed=0: serve(*tables, seed=seed).client()


@pytest.fixture
def flush() -> Callable[[Any], None]:
    """Flushes a writer or an adder, within a bounded time."""
    return flush_all


def flush_all(writer: Any) -> None:
    deadline = time.monotonic() + WAIT
    while not writer.flush():
        assert time.monotonic() < deadline, "items weren't taken"
        time.sleep(0.002)


@pytest.fixture
def draw() -> Callable[..., replay.ReplaySample]:
    """Draws one batch: `draw(client, table, batch_size)`."""
    return draw_batch


def draw_batch(client: replay.ReplayClient, table: str, batch_size: int) -> replay.ReplaySample:
    sampler = client.sampler(table, batch_size)
    try:
        assert sampler.wait_ready(WAIT), client.describe(table)
        return next(sampler)
    finally:
        sampler.close()


@pytest.fixture
def read_all() -> Callable[..., list[tuple[Any, float]]]:
    """Reads every item once, with its priority, from a table with `max_times_sampled=1`; in no order."""

    def read(client: replay.ReplayClient, table: str) -> list[tuple[Any, float]]:
        count = client.info()[table].size
        if not count:
            return []
        sample = draw_batch(client, table, count)
        assert len(np.unique(sample.info.keys)) == count
        return [
            (tree.map_structure(lambda leaf, i=i: leaf[i], sample.data), float(sample.info.priorities[i]))
            for i in range(count)
        ]

    return read


@pytest.fixture
def table_of() -> Callable[..., replay.Table]:
    """Makes tables whose rate limiter never gets in the way, unless it's given."""

    def make(signature: Any, **options: Any) -> replay.Table:
        settings: dict[str, Any] = {
            "name": "items",
            "signature": signature,
            "max_size": 1000,
            "sampler": replay.Uniform(),
            "rate_limiter": replay.RateLimiter(1.0, 1, 1e7),
        }
        return replay.Table(**{**settings, **options})

    return make
