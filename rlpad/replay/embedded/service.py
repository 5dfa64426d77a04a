"""The replay node of the embedded backend."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rlpad.replay.embedded.columns import Column
from rlpad.replay.embedded.item_table import ItemTable
from rlpad.replay.interface import ReplaySample, TableInfo
from rlpad.replay.tables import Table, by_name


class Items(NamedTuple):
    """Items for one table, as a writer sends them.

    Attributes:
      columns: column of each leaf of the table's signature.
      sequences: int64 [items, leaves], the sequence number of each leaf's cell in its column.
      priorities: float64 [items]; NaN for the highest so far.
    """

    columns: tuple[str, ...]
    sequences: np.ndarray
    priorities: np.ndarray


class WriteBatch(NamedTuple):
    """What a writer sends at once.

    Attributes:
      steps: by column, the sequence number of the first new cell and the values [k, ...].
      items: by table.
      keep_from: by column, the oldest sequence number that later items may still refer to.
    """

    steps: dict[str, tuple[int, np.ndarray]]
    items: dict[str, Items]
    keep_from: dict[str, int]


class _Window:
    """Slots of one writer's cells of one column that items may still refer to."""

    def __init__(self) -> None:
        self.first = 0
        self.slots = np.empty(0, np.int64)


def _find(windows: list[_Window], sequences: np.ndarray) -> np.ndarray:
    """Returns the slots of cells, int64 [items, leaves] like their sequence numbers; a window for each leaf."""
    places = sequences - np.array([window.first for window in windows])
    lost = (places < 0) | (places >= [len(window.slots) for window in windows])
    if lost.any():
        leaf = int(lost.any(axis=0).argmax())
        window = windows[leaf]
        raise ValueError(
            f"items refer to cells {sequences[:, leaf].min()} to {sequences[:, leaf].max()}, "
            f"only {window.first} to {window.first + len(window.slots) - 1} are kept"
        )
    return np.stack([window.slots[places[:, leaf]] for leaf, window in enumerate(windows)], axis=1)


class ReplayService:
    """Tables and the columns that they share, for any number of writers and samplers; thread-safe.

    Nothing blocks but `sample`, and that for a bounded time: whoever is held by a rate limiter is told so.
    """

    def __init__(self, tables: Callable[[], list[Table]], seed: int = 0):
        """Builds the tables.

        Args:
          tables: makes the tables; called once, here.
          seed: every table draws from a stream of its own, from this seed.
        """
        self._tables = {
            name: ItemTable(table, np.random.default_rng([seed, index]))
            for index, (name, table) in enumerate(by_name(tables()).items())
        }
        self._slots_hint = max(table.table.max_size for table in self._tables.values())
        self._columns: dict[str, Column] = {}
        self._windows: dict[str, dict[str, _Window]] = {}
        self._changed = threading.Condition(threading.RLock())

    def write(self, writer: str, batch: WriteBatch) -> bool:
        """Stores steps and items, all or nothing.

        Returns:
          False, having changed nothing, if a rate limiter doesn't let all the items in now.

        Raises:
          ValueError: the batch doesn't fit what was written before.
        """
        with self._changed:
            if not all(self._tables[name].can_insert(len(items.sequences)) for name, items in batch.items.items()):
                return False
            windows = self._windows.setdefault(writer, {})
            for name, (first, values) in batch.steps.items():
                self._store(windows.setdefault(name, _Window()), name, first, values)
            for table, items in batch.items.items():
                slots = _find([windows[name] for name in items.columns], items.sequences)
                columns = [self._columns[name] for name in items.columns]
                self._tables[table].insert(items.columns, columns, slots, items.priorities)
            for name, first in batch.keep_from.items():
                self._trim(windows[name], name, first)
            self._changed.notify_all()
            return True

    def _store(self, window: _Window, name: str, first: int, values: np.ndarray) -> None:
        if name not in self._columns:
            slots = self._slots_hint + self._slots_hint // 4 + 64
            self._columns[name] = Column(values.shape[1:], values.dtype, slots)
        column = self._columns[name]
        if (values.shape[1:], values.dtype) != (column.values.shape[1:], column.values.dtype):
            raise ValueError(
                f"column {name!r} holds {column.values.dtype}{list(column.values.shape[1:])}, "
                f"a step has {values.dtype}{list(values.shape[1:])}"
            )
        if not len(window.slots):
            window.first = first
        window.slots = np.concatenate([window.slots, column.put(values)])

    def _trim(self, window: _Window, name: str, first: int) -> None:
        drop = min(max(0, first - window.first), len(window.slots))
        if drop:
            self._columns[name].release(window.slots[:drop])
            window.slots = window.slots[drop:]
            window.first += drop

    def close_writer(self, writer: str) -> None:
        """Releases the steps that a writer kept for items to come."""
        with self._changed:
            for name, window in self._windows.pop(writer, {}).items():
                self._columns[name].release(window.slots)

    def sample(self, table: str, batch_size: int, wait_s: float = 0.0) -> ReplaySample | None:
        """Draws a batch.

        Returns:
          The batch, or None if the rate limiter still holds the learner after `wait_s` seconds.
        """
        with self._changed:
            found = self._tables[table]
            if not self._changed.wait_for(lambda: found.can_sample(batch_size), wait_s):
                return None
            sample = found.sample(batch_size)
            self._changed.notify_all()
            return sample

    def can_sample(self, table: str, count: int) -> bool:
        """Whether the rate limiter lets `count` items be sampled now."""
        with self._changed:
            return self._tables[table].can_sample(count)

    def update_priorities(self, table: str, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Sets priorities of items; those that are gone are skipped."""
        with self._changed:
            self._tables[table].update_priorities(keys, priorities)

    def info(self) -> dict[str, TableInfo]:
        """Returns the state of every table."""
        with self._changed:
            return {name: table.info() for name, table in self._tables.items()}

    def memory(self) -> dict[str, int]:
        """Returns the slots in use, by column."""
        with self._changed:
            return {name: column.used for name, column in self._columns.items()}
