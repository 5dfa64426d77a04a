"""One table of items: rows of slot numbers, how they are drawn, and which of them go."""

from __future__ import annotations

import numpy as np
import tree

from rlpad.replay.embedded.columns import Column
from rlpad.replay.embedded.sum_tree import SumTree
from rlpad.replay.interface import ReplaySample, SampleInfo, TableInfo, check_priorities
from rlpad.replay.tables import Prioritized, Table


class ItemTable:
    """Items of one table. Not safe for several threads at once; the service holds a lock.

    An item is named by its key, which counts the inserts, and lies in row `key % max_size`: with first in,
    first out the newest key always takes the place of the oldest.
    """

    def __init__(self, table: Table, random: np.random.Generator):
        self.table = table
        self._random = random
        leaves = tree.flatten(table.signature)
        self._exponent = table.sampler.exponent if isinstance(table.sampler, Prioritized) else 0.0
        rows = table.max_size
        self._slots = np.zeros((rows, len(leaves)), np.int64)
        self._columns: list[Column] = []
        self._column_names: tuple[str, ...] = ()
        self._priorities = np.zeros(rows, np.float64)
        self._times_sampled = np.zeros(rows, np.int64)
        self._alive = np.zeros(rows, np.bool_)
        # Uniform draws from an unbroken ring need no tree; items that leave early make holes in the ring.
        needs_tree = isinstance(table.sampler, Prioritized) or table.max_times_sampled > 0
        self._tree = SumTree(rows) if needs_tree else None
        self._max_priority = 1.0
        self._size = 0
        # With max_times_sampled: how often the items together may still be drawn.
        self._draws_left = 0
        self.inserts = 0
        self.samples = 0

    def info(self) -> TableInfo:
        return TableInfo(self._size, self.inserts, self.samples, self.table.max_size)

    def can_insert(self, count: int) -> bool:
        return self.table.rate_limiter.can_insert(count, inserts=self.inserts, samples=self.samples)

    def can_sample(self, count: int) -> bool:
        if self.table.max_times_sampled and self._draws_left < count:
            return False
        return self._size > 0 and self.table.rate_limiter.can_sample(count, inserts=self.inserts, samples=self.samples)

    def insert(self, names: tuple[str, ...], columns: list[Column], slots: np.ndarray, priorities: np.ndarray) -> None:
        """Inserts items.

        Args:
          names: column of each leaf of the signature; the same in every call.
          columns: those columns.
          slots: int64 [items, leaves].
          priorities: float64 [items]; NaN stands for the highest priority so far.

        Raises:
          ValueError: the columns changed.
        """
        if not self._columns:
            self._columns, self._column_names = columns, names
        elif names != self._column_names:
            raise ValueError(
                f"table {self.table.name!r} refers to columns {self._column_names}, an item refers to {names}"
            )
        known = priorities[~np.isnan(priorities)]
        if len(known):
            self._max_priority = max(self._max_priority, float(check_priorities(known).max()))
        priorities = np.where(np.isnan(priorities), self._max_priority, priorities)
        # More items than rows: of one row only the last stays, so they go in one ring at a time.
        for start in range(0, len(slots), self.table.max_size):
            part = slice(start, start + self.table.max_size)
            self._insert_rows(slots[part], priorities[part])

    def _insert_rows(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        rows = np.arange(self.inserts, self.inserts + len(slots)) % self.table.max_size
        self._remove(rows[self._alive[rows]])
        for leaf, column in enumerate(self._columns):
            column.retain(slots[:, leaf])
        self._slots[rows] = slots
        self._priorities[rows] = priorities
        self._times_sampled[rows] = 0
        self._alive[rows] = True
        self._size += len(rows)
        self._draws_left += self.table.max_times_sampled * len(rows)
        self.inserts += len(rows)
        if self._tree is not None:
            self._tree.set(rows, self._weights(priorities))

    def _remove(self, rows: np.ndarray) -> None:
        if not len(rows):
            return
        for leaf, column in enumerate(self._columns):
            column.release(self._slots[rows, leaf])
        self._alive[rows] = False
        self._size -= len(rows)
        if self.table.max_times_sampled:
            self._draws_left -= int((self.table.max_times_sampled - self._times_sampled[rows]).sum())
        if self._tree is not None:
            self._tree.set(rows, np.zeros(len(rows)))

    def _weights(self, priorities: np.ndarray) -> np.ndarray:
        # 0 ** 0 is 1: an exponent of 0 draws uniformly, whatever the priorities.
        return priorities**self._exponent

    def sample(self, count: int) -> ReplaySample:
        """Draws items independently, with replacement, and copies them out."""
        if self.table.max_times_sampled:
            # One may be used up by the first of several draws.
            draws = [self._draw(1) for _ in range(count)]
            info = SampleInfo(*(np.concatenate(parts) for parts in zip(*(i for i, _ in draws), strict=True)))
            leaves = [np.concatenate(parts) for parts in zip(*(leaves for _, leaves in draws), strict=True)]
        else:
            info, leaves = self._draw(count)
        return ReplaySample(info, tree.unflatten_as(self.table.signature, leaves))

    def _draw(self, count: int) -> tuple[SampleInfo, list[np.ndarray]]:
        if self._tree is None:
            oldest = self.inserts - self._size
            rows = (oldest + self._random.integers(self._size, size=count)) % self.table.max_size
            probabilities = np.full(count, 1.0 / self._size)
        else:
            rows = self._tree.sample(self._random.random(count))
            probabilities = self._tree.get(rows) / self._tree.total
        info = SampleInfo(
            keys=self._keys(rows),
            probabilities=probabilities,
            table_size=np.full(count, self._size, np.int64),
            priorities=self._priorities[rows],
        )
        slots = self._slots[rows]
        leaves = [column.values[slots[:, leaf]] for leaf, column in enumerate(self._columns)]
        self.samples += count
        limit = self.table.max_times_sampled
        if limit:
            np.add.at(self._times_sampled, rows, 1)
            self._draws_left -= count
            self._remove(np.unique(rows[self._times_sampled[rows] >= limit]))
        return info, leaves

    def _keys(self, rows: np.ndarray) -> np.ndarray:
        # The newest key that lies in a row is below `inserts` and equals the row, modulo the number of rows.
        newest = self.inserts - 1
        size = self.table.max_size
        return (newest - (newest - rows) % size).astype(np.uint64)

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Sets priorities; keys of items that are gone are skipped."""
        priorities = check_priorities(priorities)
        if not len(priorities):
            return
        self._max_priority = max(self._max_priority, float(priorities.max()))
        rows = (keys % np.uint64(self.table.max_size)).astype(np.int64)
        there = self._alive[rows] & (self._keys(rows) == keys)
        rows, priorities = rows[there], priorities[there]
        self._priorities[rows] = priorities
        if isinstance(self.table.sampler, Prioritized) and self._tree is not None:
            self._tree.set(rows, self._weights(self._priorities[rows]))
