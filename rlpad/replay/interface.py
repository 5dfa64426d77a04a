"""The interface that both replay backends fulfil."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tree

from rlpad.errors import nearest
from rlpad.replay.tables import RateLimiter, Table
from rlpad.types import NestedArray


class SampleInfo(NamedTuple):
    """What is known of sampled items; every field has the shape [batch].

    Attributes:
      keys: uint64, names of the items.
      probabilities: float64, chance with which each was drawn.
      table_size: int64, items in the table when it was drawn.
      priorities: float64, priority when it was drawn.
    """

    keys: np.ndarray
    probabilities: np.ndarray
    table_size: np.ndarray
    priorities: np.ndarray


class ReplaySample(NamedTuple):
    """A batch of items: `data` has the structure of the table's signature, with a leading axis [batch]."""

    info: SampleInfo
    data: NestedArray


class TableInfo(NamedTuple):
    """State of a table: items in it, and items inserted and sampled since its start."""

    size: int
    inserts: int
    samples: int
    max_size: int


# Not frozen: that would make it four times as slow to make, and every step makes several.
@dataclasses.dataclass(slots=True)
class Cell:
    """One leaf of an appended step, for items to refer to; made by `Writer.append`.

    Attributes:
      column: names the leaf.
      sequence: number of the cell in its column.
      handle: what a backend keeps beside it.
    """

    column: str
    sequence: int
    handle: Any = None


class Writer(abc.ABC):
    """Writes steps once, and any number of items that refer to them."""

    @abc.abstractmethod
    def append(self, step: dict[str, NestedArray]) -> dict[str, NestedArray]:
        """Stores a step, or some columns of one.

        Args:
          step: nests of arrays by column name. The leaves of one column have the same structure, shapes and
            dtypes in every step; columns may be appended apart from each other.

        Returns:
          The same structure with a `Cell` for each leaf. A cell can be used until the writer has appended
          `num_keep_alive` times more.
        """

    @abc.abstractmethod
    def create_item(self, table: str, trajectory: NestedArray, priority: float | None = None) -> None:
        """Makes an item of appended cells; it's written by a later `flush` at the latest.

        Args:
          table: table to insert into.
          trajectory: the structure of the table's signature with a `Cell` for each leaf.
          priority: priority of the item; None for the highest that the table has seen.

        Raises:
          KeyError: there is no such table.
          ValueError: the cells don't match the table's signature, or a priority is negative or not finite.
        """

    @abc.abstractmethod
    def ready(self, count: int = 1) -> bool:
        """Whether `count` more items can be created without running ahead of the rate limiter."""

    @abc.abstractmethod
    def flush(self) -> bool:
        """Writes pending items as far as the rate limiter lets it; returns whether all went. Never waits."""

    @abc.abstractmethod
    def close(self) -> None:
        """Lets go of the steps; pending items are dropped."""


class Sampler(Iterator[ReplaySample], abc.ABC):
    """An endless iterator of batches."""

    @abc.abstractmethod
    def ready(self) -> bool:
        """Whether the next batch is there; never waits."""

    @abc.abstractmethod
    def wait_ready(self, timeout: float) -> bool:
        """Waits up to `timeout` seconds until the next batch is there; returns whether it is."""

    @abc.abstractmethod
    def drained(self) -> bool:
        """Whether no batch is there and none will come unless more is inserted."""

    @abc.abstractmethod
    def __next__(self) -> ReplaySample:
        """Returns the next batch, waiting for it.

        Raises:
          ReplayStalled: in one process, where waiting can't help: the rate limiter holds the learner.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Stops sampling."""


class ReplayStalled(RuntimeError):
    """A batch was asked for that the rate limiter doesn't allow, and nobody else could make it come."""


class ReplayClient(abc.ABC):
    """A node's access to replay."""

    def __init__(self, tables: dict[str, Table]):
        self.tables = tables

    @abc.abstractmethod
    def writer(self, num_keep_alive: int) -> Writer:
        """Returns a writer whose cells stay usable for `num_keep_alive` more appends."""

    @abc.abstractmethod
    def sampler(self, table: str, batch_size: int) -> Sampler:
        """Returns a sampler of batches of `batch_size` items, all drawn independently.

        Raises:
          KeyError: there is no such table.
          ValueError: the batch is larger than the rate limiter can ever allow.
        """

    @abc.abstractmethod
    def update_priorities(self, table: str, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Sets priorities of items; items that were removed in the meantime are skipped.

        Raises:
          ValueError: a priority is negative or not finite.
        """

    @abc.abstractmethod
    def info(self) -> dict[str, TableInfo]:
        """Returns the state of every table."""

    def can_insert(self, table: str, count: int = 1) -> bool:
        """Whether the rate limiter would let `count` items in now."""
        return self._limiter(table).can_insert(count, **self._progress(table))

    def can_sample(self, table: str, count: int = 1) -> bool:
        """Whether the rate limiter would let `count` items be sampled now."""
        return self._limiter(table).can_sample(count, **self._progress(table))

    def describe(self, table: str) -> str:
        """Says in one line where a table and its rate limiter stand."""
        info, limiter = self.info()[table], self._limiter(table)
        return (
            f"table {table!r} holds {info.size} of {info.max_size} items after {info.inserts} inserts and "
            f"{info.samples} samples; samples_per_insert {limiter.samples_per_insert:g}, min_size "
            f"{limiter.min_size}, tolerance {limiter.tolerance:g}"
        )

    def _limiter(self, table: str) -> RateLimiter:
        return self.table(table).rate_limiter

    def _progress(self, table: str) -> dict[str, int]:
        info = self.info()[table]
        return {"inserts": info.inserts, "samples": info.samples}

    def table(self, name: str) -> Table:
        """Returns the table called `name`.

        Raises:
          KeyError: there is none; the message lists those that are.
        """
        if name not in self.tables:
            raise KeyError(f"no replay table {name!r}; there are: {', '.join(self.tables)}{nearest(name, self.tables)}")
        return self.tables[name]

    @abc.abstractmethod
    def close(self) -> None:
        """Lets go of connections."""


def check_priorities(priorities: Sequence[float] | np.ndarray) -> np.ndarray:
    """Returns priorities as float64.

    Raises:
      ValueError: one is negative or not finite.
    """
    values = np.asarray(priorities, np.float64)
    if not (np.isfinite(values) & (values >= 0)).all():
        bad = values[~(np.isfinite(values) & (values >= 0))][0]
        raise ValueError(f"priorities must be finite and at least 0, got {bad}")
    return values


def check_batch_size(table: Table, batch_size: int) -> None:
    """Raises `ValueError` for a batch that the table's rate limiter can never allow."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if batch_size > table.rate_limiter.tolerance:
        raise ValueError(
            f"table {table.name!r}: a batch of {batch_size} exceeds the rate limiter's tolerance "
            f"{table.rate_limiter.tolerance:g}, so learner and actors would wait for each other for ever; "
            f"expected a tolerance of at least {batch_size}"
        )


_LEAVES = (np.ndarray, np.generic, float)


def is_leaf(value: NestedArray) -> bool:
    """Whether a nest is a single array or number."""
    # Most are arrays, and asking tree takes longer than all else that is done with them.
    return isinstance(value, _LEAVES) or not tree.is_nested(value)


def check_column(name: str, array: np.ndarray | np.generic, example: np.ndarray) -> None:
    """Raises `ValueError` unless a column's new cell has the shape and dtype of its earlier ones."""
    if array.shape != example.shape or array.dtype != example.dtype:
        raise ValueError(
            f"column {name!r} was {example.dtype}{list(example.shape)} so far, "
            f"this step has {array.dtype}{list(array.shape)}"
        )


class ItemChecks:
    """Checks a writer's items against their tables' signatures, whenever a table gets other columns than before."""

    def __init__(self, client: ReplayClient):
        self._client = client
        self._checked: dict[str, list[str]] = {}

    def __call__(self, table: str, trajectory: NestedArray, examples: Mapping[str, np.ndarray]) -> list[Cell]:
        """Returns an item's cells in the order of the signature's leaves.

        Args:
          table: table that the item is for.
          trajectory: the item, a nest of cells.
          examples: for each column, an array of its shape and dtype.

        Raises:
          KeyError: there is no such table.
          ValueError: structure, shapes or dtypes don't match the signature.
        """
        cells = tree.flatten(trajectory)
        columns = [cell.column for cell in cells]
        if self._checked.get(table) != columns:
            known = self._client.table(table)
            _check_structure(known, trajectory)
            _check_leaves(known, [examples[name] for name in columns])
            self._checked[table] = columns
        return cells


def _check_structure(table: Table, trajectory: NestedArray) -> None:
    try:
        tree.assert_same_structure(table.signature, trajectory)
    except (TypeError, ValueError) as error:
        raise ValueError(f"table {table.name!r}: an item has another structure than the signature: {error}") from error


def _check_leaves(table: Table, leaves: Sequence[np.ndarray]) -> None:
    for (path, spec), leaf in zip(tree.flatten_with_path(table.signature), leaves, strict=True):
        if leaf.shape != tuple(spec.shape) or leaf.dtype != spec.dtype:
            name = "/".join(str(part) for part in path) or "item"
            raise ValueError(
                f"table {table.name!r}: {name} is {leaf.dtype}{list(leaf.shape)}, "
                f"its signature says {np.dtype(spec.dtype)}{list(spec.shape)}"
            )
