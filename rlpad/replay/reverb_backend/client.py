"""A node's access to a dm-reverb server."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlpad.launch.errors import PeerGone
from rlpad.replay import interface
from rlpad.replay.interface import TableInfo
from rlpad.replay.reverb_backend.sampler import ReverbSampler
from rlpad.replay.reverb_backend.server import check_alive, import_reverb, max_priority_table
from rlpad.replay.reverb_backend.writer import ReverbWriter
from rlpad.replay.tables import Prioritized, Table

#: Seconds for which a client goes on with the highest priority that it knows.
MAX_PRIORITY_SECONDS = 0.5
#: Seconds after which a server that doesn't say how it is counts as gone.
INFO_TIMEOUT_SECONDS = 30


class ReverbClient(interface.ReplayClient):
    """Access to a dm-reverb server whose tables `reverb_tables` made.

    Draws can't be seeded. The highest priority so far, which items without one get, comes from all clients
    within `MAX_PRIORITY_SECONDS`; tables that are drawn uniformly give such items a priority of 1.
    """

    def __init__(self, service: Any, tables: dict[str, Table]):
        """Describes the access; nothing is connected yet.

        Args:
          service: a `reverb.Client`.
          tables: the same tables as the server's.

        Raises:
          UserError: dm-reverb isn't installed.
        """
        super().__init__(tables)
        import_reverb()
        self._client = service
        self._max_priorities = dict.fromkeys(tables, 1.0)
        self._read_at = dict.fromkeys(tables, -float("inf"))

    def writer(self, num_keep_alive: int) -> ReverbWriter:
        """Returns a writer; see `interface.ReplayClient`."""
        if num_keep_alive < 1:
            raise ValueError(f"num_keep_alive must be at least 1, got {num_keep_alive}")
        return ReverbWriter(self, self._client.trajectory_writer(num_keep_alive, validate_items=False))

    def sampler(self, table: str, batch_size: int) -> ReverbSampler:
        """Returns a sampler with a thread that keeps the next batches ready; see `interface.ReplayClient`."""
        known = self.table(table)
        interface.check_batch_size(known, batch_size)
        return ReverbSampler(self._client.server_address, known, batch_size)

    def update_priorities(self, table: str, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Sets priorities of items; see `interface.ReplayClient`."""
        known = self.table(table)
        values = interface.check_priorities(priorities)
        if not len(values):
            return
        with self._peer():
            self._client.mutate_priorities(table, dict(zip(keys.tolist(), values.tolist(), strict=True)))
            highest = float(values.max())
            if isinstance(known.sampler, Prioritized) and highest > self._max_priorities[table]:
                self._max_priorities[table] = highest
                self._client.insert(np.zeros((), np.int8), {max_priority_table(table): highest})

    def max_priority(self, table: str) -> float:
        """Returns the highest priority that a table has seen, as far as this client knows."""
        if isinstance(self.table(table).sampler, Prioritized):
            now = time.monotonic()
            if now - self._read_at[table] > MAX_PRIORITY_SECONDS:
                self._read_at[table] = now
                self._max_priorities[table] = max(self._max_priorities[table], self._published(table))
        return self._max_priorities[table]

    def raise_max_priority(self, table: str, priority: float) -> bool:
        """Takes note of a priority; returns whether it must be published to the other clients."""
        if priority <= self._max_priorities[table] or not isinstance(self.table(table).sampler, Prioritized):
            return False
        self._max_priorities[table] = priority
        return True

    def _published(self, table: str) -> float:
        side = max_priority_table(table)
        with self._peer():
            if not self._client.server_info(INFO_TIMEOUT_SECONDS)[side].current_size:
                return 1.0
            sample = next(iter(self._client.sample(side, emit_timesteps=False)))
        return float(sample.info.priority)

    def info(self) -> dict[str, TableInfo]:
        """Returns the state of every table.

        Raises:
          PeerGone: the server doesn't answer.
        """
        with self._peer():
            tables = self._client.server_info(INFO_TIMEOUT_SECONDS)
        return {
            name: TableInfo(
                size=info.current_size,
                inserts=info.rate_limiter_info.insert_stats.completed,
                samples=info.rate_limiter_info.sample_stats.completed,
                max_size=info.max_size,
            )
            for name, info in tables.items()
            if name in self.tables
        }

    def check_alive(self) -> None:
        """Raises `PeerGone` if nobody listens at the server's address."""
        check_alive(self._client.server_address)

    @contextlib.contextmanager
    def _peer(self) -> Iterator[None]:
        reverb = import_reverb()
        self.check_alive()
        try:
            yield
        except (RuntimeError, reverb.errors.ReverbError) as error:
            # Reverb's bindings turn every failed call into a RuntimeError.
            raise PeerGone(f"the reverb server at {self._client.server_address} failed: {error}") from error

    def close(self) -> None:
        """Nothing to let go of: writers and samplers are closed by themselves."""
