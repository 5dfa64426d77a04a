"""A node's access to the embedded backend, in the same process or through RPC."""

from __future__ import annotations

import math
import time
import uuid
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from typing import Any

import numpy as np
import tree

from rlpad.replay import interface
from rlpad.replay.embedded.service import Items, WriteBatch
from rlpad.replay.interface import Cell, ReplaySample, ReplayStalled, TableInfo
from rlpad.replay.tables import Table
from rlpad.types import NestedArray

#: Items that a writer gathers before it sends them.
WRITE_BATCH = 64
#: Seconds that a served sampler lets the service wait for a batch, per call.
LONG_POLL_SECONDS = 0.25
#: Seconds after which `next` on a sampler gives up.
SAMPLE_TIMEOUT_SECONDS = 600.0

_ARRAYS = (np.ndarray, np.generic)


class EmbeddedClient(interface.ReplayClient):
    """Access to a `ReplayService`: the object itself, or a client of it."""

    def __init__(self, service: Any, tables: dict[str, Table]):
        super().__init__(tables)
        self._service = service

    def writer(self, num_keep_alive: int) -> EmbeddedWriter:
        """Returns a writer; see `interface.ReplayClient`."""
        return EmbeddedWriter(self._service, self, num_keep_alive)

    def sampler(self, table: str, batch_size: int) -> interface.Sampler:
        """Returns a sampler; one that is served through RPC keeps the next batch on its way."""
        interface.check_batch_size(self.table(table), batch_size)
        sampler = PrefetchingSampler if is_remote(self._service) else DirectSampler
        return sampler(self._service, table, batch_size)

    def update_priorities(self, table: str, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Sets priorities of items; see `interface.ReplayClient`."""
        self.table(table)
        self._service.update_priorities(table, keys, interface.check_priorities(priorities))

    def info(self) -> dict[str, TableInfo]:
        """Returns the state of every table."""
        return self._service.info()

    def close(self) -> None:
        """Nothing to let go of: the service's client belongs to the node."""


def is_remote(service: Any) -> bool:
    """Whether calls to the service leave this process."""
    return not getattr(service, "in_process", True)


class EmbeddedWriter(interface.Writer):
    """Gathers steps and items, and sends them together."""

    def __init__(self, service: Any, client: interface.ReplayClient, num_keep_alive: int):
        """Opens a writer of its own.

        Raises:
          ValueError: `num_keep_alive` is below 1.
        """
        if num_keep_alive < 1:
            raise ValueError(f"num_keep_alive must be at least 1, got {num_keep_alive}")
        self._service = service
        self._client = client
        self._id = uuid.uuid4().hex
        self._keep = num_keep_alive
        self._columns: dict[str, _PendingColumn] = {}
        self._items: dict[str, list[tuple[list[Cell], float]]] = {}
        self._examples: dict[str, np.ndarray] = {}
        self._checks = interface.ItemChecks(client)
        self._num_pending = 0

    def append(self, step: dict[str, NestedArray]) -> dict[str, NestedArray]:
        """Keeps copies of a step's arrays; see `interface.Writer`."""
        columns = self._columns
        cells: dict[str, NestedArray] = {}
        for name, value in step.items():
            if isinstance(value, _ARRAYS) and name in columns:  # at almost every step of almost every agent
                cells[name] = columns[name].append(value)
            elif interface.is_leaf(value):
                cells[name] = self._append(name, value)
            else:
                leaves = [self._append(f"{name}/{i}", leaf) for i, leaf in enumerate(tree.flatten(value))]
                cells[name] = tree.unflatten_as(value, leaves)
        return cells

    def _append(self, name: str, value: Any) -> Cell:
        array = np.asarray(value)
        if name not in self._columns:
            self._columns[name] = _PendingColumn(name, array)
            self._examples[name] = self._columns[name].example
        return self._columns[name].append(array)

    def create_item(self, table: str, trajectory: NestedArray, priority: float | None = None) -> None:
        """Keeps an item for the next write; see `interface.Writer`."""
        cells = self._checks(table, trajectory, self._examples)
        value = math.nan
        if priority is not None:
            value = float(interface.check_priorities([priority])[0])
        self._items.setdefault(table, []).append((cells, value))
        self._num_pending += 1
        if self._num_pending >= WRITE_BATCH:
            self.flush()

    def ready(self, count: int = 1) -> bool:
        """Whether `count` more items fit into what may wait here."""
        limit = max(WRITE_BATCH, count)
        if self._num_pending + count > limit:
            self.flush()
        return self._num_pending + count <= limit

    def flush(self) -> bool:
        """Sends as many pending items as are let in."""
        while self._num_pending:
            limits = {name: self._client.table(name).rate_limiter.max_batch for name in self._items}
            sent = {name: items[: limits[name]] for name, items in self._items.items() if items}
            rest = {name: items[limits[name] :] for name, items in self._items.items()}
            if not self._service.write(self._id, self._batch(sent, rest)):
                return False
            self._items = rest
            self._num_pending = sum(len(items) for items in rest.values())
            for column in self._columns.values():
                column.pending = 0
        return True

    def _batch(self, sent: dict[str, list], rest: dict[str, list]) -> WriteBatch:
        steps = {
            name: (column.next - column.pending, column.values[: column.pending])
            for name, column in self._columns.items()
            if column.pending
        }
        keep_from = {name: column.next - self._keep for name, column in self._columns.items()}
        for waiting in rest.values():
            for cells, _ in waiting:
                for cell in cells:
                    keep_from[cell.column] = min(keep_from[cell.column], cell.sequence)
        items = {
            name: Items(
                columns=tuple(cell.column for cell in pairs[0][0]),
                sequences=np.array([[cell.sequence for cell in cells] for cells, _ in pairs], np.int64),
                priorities=np.array([priority for _, priority in pairs], np.float64),
            )
            for name, pairs in sent.items()
        }
        return WriteBatch(steps, items, keep_from)

    def close(self) -> None:
        """Releases the steps that were kept for items to come."""
        self._service.close_writer(self._id)


class _PendingColumn:
    """The cells of one column that haven't been sent: the first `pending` rows of `values`."""

    def __init__(self, name: str, example: np.ndarray):
        self.name = name
        self.example = np.empty(example.shape, example.dtype)
        self.values = np.empty((WRITE_BATCH, *example.shape), example.dtype)
        self.pending = 0
        self.next = 0

    def append(self, value: np.ndarray | np.generic) -> Cell:
        """Copies a value, as environments may use one array for every observation."""
        interface.check_column(self.name, value, self.example)
        if self.pending == len(self.values):
            self.values = np.concatenate([self.values, np.empty_like(self.values)])
        self.values[self.pending] = value
        self.pending += 1
        self.next += 1
        return Cell(self.name, self.next - 1)


class DirectSampler(interface.Sampler):
    """Samples from a service in this process, at the moment a batch is asked for."""

    def __init__(self, service: Any, table: str, batch_size: int):
        self._service = service
        self._table = table
        self._batch_size = batch_size
        self._next: ReplaySample | None = None

    def ready(self) -> bool:
        """Draws the next batch if it may be drawn."""
        return self.wait_ready(0.0)

    def wait_ready(self, timeout: float) -> bool:
        """Waits until the next batch may be drawn."""
        if self._next is None:
            self._next = self._service.sample(self._table, self._batch_size, timeout)
        return self._next is not None

    def drained(self) -> bool:
        """Whether the rate limiter holds the learner."""
        return not self.ready()

    def __next__(self) -> ReplaySample:
        """Returns the next batch."""
        if not self.wait_ready(SAMPLE_TIMEOUT_SECONDS):
            raise ReplayStalled(f"no batch of {self._batch_size} from table {self._table!r} could be drawn")
        sample, self._next = self._next, None
        assert sample is not None
        return sample

    def close(self) -> None:
        """Forgets the batch that was drawn."""
        self._next = None


class PrefetchingSampler(interface.Sampler):
    """Samples through RPC; one batch is on its way while another one is being used."""

    def __init__(self, service: Any, table: str, batch_size: int):
        self._service = service
        self._table = table
        self._batch_size = batch_size
        self._next: ReplaySample | None = None
        self._request: Future[ReplaySample | None] | None = None
        self._draining = False
        self._empty_since_draining = False
        self._closed = False

    def ready(self) -> bool:
        """Whether the next batch has arrived."""
        return self.wait_ready(0.0)

    def wait_ready(self, timeout: float) -> bool:
        """Waits for the batch that is on its way."""
        deadline = time.monotonic() + timeout
        while self._next is None and not self._closed:
            request = self._request or self._ask()
            remaining = deadline - time.monotonic()
            if not request.done() and remaining > 0:
                wait_for_futures([request], remaining)
            if not request.done():
                break
            self._take(request)
            if self._next is None and remaining <= 0:
                break
        return self._next is not None

    def _ask(self) -> Future[ReplaySample | None]:
        wait_s = 0.0 if self._draining else LONG_POLL_SECONDS
        self._asked_while_draining = self._draining
        self._request = self._service.futures.sample(self._table, self._batch_size, wait_s)
        return self._request

    def _take(self, request: Future[ReplaySample | None]) -> None:
        self._request = None
        self._next = request.result()
        if self._next is not None:
            self._ask()
        self._empty_since_draining = self._next is None and self._asked_while_draining

    def drained(self) -> bool:
        """Whether the last answer, to a question asked after the first call of this, was: nothing."""
        self._draining = True
        return not self.ready() and self._empty_since_draining

    def __next__(self) -> ReplaySample:
        """Returns the next batch, and has the one after it drawn."""
        if not self.wait_ready(SAMPLE_TIMEOUT_SECONDS):
            raise ReplayStalled(f"no batch of {self._batch_size} from table {self._table!r} came")
        sample, self._next = self._next, None
        assert sample is not None
        return sample

    def close(self) -> None:
        """Drops what is on its way."""
        self._closed = True
        if self._request is not None:
            self._request.cancel()
        self._request = self._next = None
