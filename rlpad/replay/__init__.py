"""Replay: tables of items, written by actors and sampled by the learner, over one of two backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlpad.replay.interface import (
    Cell,
    ReplayClient,
    ReplaySample,
    ReplayStalled,
    SampleInfo,
    Sampler,
    TableInfo,
    Writer,
)
from rlpad.replay.tables import Fifo, Prioritized, RateLimiter, Table, Uniform, by_name

__all__ = [
    "Cell",
    "Fifo",
    "Prioritized",
    "RateLimiter",
    "ReplayClient",
    "ReplaySample",
    "ReplayStalled",
    "SampleInfo",
    "Sampler",
    "Table",
    "TableInfo",
    "Uniform",
    "Writer",
    "make_client",
    "make_node",
]


def make_node(backend: str, tables: Callable[[], list[Table]], *, seed: int, num_clients: int) -> Any:
    """Returns the launch node that holds the tables.

    Args:
      backend: `embedded` or `reverb`.
      tables: makes the tables, in the node.
      seed: seed of the embedded backend's draws; reverb's can't be seeded.
      num_clients: nodes that will call it.

    Raises:
      ValueError: the backend is unknown.
    """
    from rlpad import launch as lp

    if backend == "embedded":
        from rlpad.replay.embedded.service import ReplayService

        # Each client may hold a thread with a sample that waits, and needs another to get on.
        return lp.CourierNode(ReplayService, tables, seed, courier_kwargs={"thread_pool_size": 2 * num_clients + 4})
    if backend == "reverb":
        from rlpad.replay.reverb_backend import reverb_tables

        return lp.ReverbNode(reverb_tables(tables))
    raise ValueError(f"unknown replay backend {backend!r}; expected embedded or reverb")


def make_client(backend: str, service: Any, tables: list[Table]) -> ReplayClient:
    """Returns a node's access to replay.

    Args:
      backend: `embedded` or `reverb`.
      service: what the handle of `make_node`'s node was dereferenced to.
      tables: the same tables as in the node.

    Raises:
      ValueError: the backend is unknown.
    """
    if backend == "embedded":
        from rlpad.replay.embedded.client import EmbeddedClient

        return EmbeddedClient(service, by_name(tables))
    if backend == "reverb":
        from rlpad.replay.reverb_backend import ReverbClient

        return ReverbClient(service, by_name(tables))
    raise ValueError(f"unknown replay backend {backend!r}; expected embedded or reverb")
