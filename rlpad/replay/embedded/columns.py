"""Where steps lie: one array per column, slots that are counted and used again."""

from __future__ import annotations

import numpy as np

#: Slots that a column starts with, if the table doesn't say how many it will need.
_FIRST_SLOTS = 1024


class Column:
    """Values of one shape and dtype in numbered slots, each held by a number of references."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, slots: int = _FIRST_SLOTS):
        # Not touched until it's written to, so what isn't used costs no memory.
        self.values = np.empty((max(slots, 1), *shape), dtype)
        self._references = np.zeros(len(self.values), np.int32)
        self._free = np.empty(0, np.int64)
        self._fresh = 0

    @property
    def used(self) -> int:
        """Slots that hold something."""
        return self._fresh - len(self._free)

    def put(self, values: np.ndarray) -> np.ndarray:
        """Stores values [k, ...] and returns their slots, int64 [k], each with one reference."""
        count = len(values)
        reused, self._free = self._free[:count], self._free[count:]
        fresh = count - len(reused)
        if self._fresh + fresh > len(self.values):
            self._grow(self._fresh + fresh)
        slots = np.concatenate([reused, np.arange(self._fresh, self._fresh + fresh)])
        self._fresh += fresh
        self.values[slots] = values
        self._references[slots] = 1
        return slots

    def _grow(self, least: int) -> None:
        slots = max(2 * len(self.values), least)
        grown = np.empty((slots, *self.values.shape[1:]), self.values.dtype)
        grown[: self._fresh] = self.values[: self._fresh]
        self.values = grown
        self._references = np.concatenate([self._references, np.zeros(slots - len(self._references), np.int32)])

    def retain(self, slots: np.ndarray) -> None:
        """Adds a reference per mention."""
        np.add.at(self._references, slots, 1)

    def release(self, slots: np.ndarray) -> None:
        """Takes a reference per mention; slots without any are used again, the oldest freed ones first."""
        np.subtract.at(self._references, slots, 1)
        freed = slots[self._references[slots] == 0]
        if len(freed):
            self._free = np.concatenate([self._free, np.unique(freed)])
