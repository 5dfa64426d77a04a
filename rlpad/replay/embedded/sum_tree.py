"""A sum tree: draws positions in proportion to their weights in logarithmic time, many at a time."""

from __future__ import annotations

import numpy as np


class SumTree:
    """Weights of `capacity` positions, with their sums in a complete binary tree.

    A parent is always recomputed from its two children, never adjusted by a difference, so rounding errors
    don't build up.
    """

    def __init__(self, capacity: int):
        """Starts with all weights 0.

        Raises:
          ValueError: the capacity is below 1.
        """
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self._depth = (capacity - 1).bit_length()
        self._leaves = 1 << self._depth
        self._sums = np.zeros(2 * self._leaves, np.float64)

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self._sums[1])

    def get(self, positions: np.ndarray) -> np.ndarray:
        """Returns the weights of positions."""
        return self._sums[positions + self._leaves]

    def set(self, positions: np.ndarray, weights: np.ndarray) -> None:
        """Sets the weights of positions; of a position that appears twice the last weight counts."""
        nodes = np.asarray(positions, np.int64) + self._leaves
        self._sums[nodes] = weights
        for _ in range(self._depth):
            nodes = nodes >> 1
            if len(nodes) > 64:
                nodes = np.unique(nodes)
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def sample(self, uniforms: np.ndarray) -> np.ndarray:
        """Finds the positions at fractions of the total weight.

        Args:
          uniforms: float64 [n] in [0, 1).

        Returns:
          int64 [n]; a position of weight 0 is never among them.

        Raises:
          ValueError: all weights are 0.
        """
        if not self._sums[1] > 0:
            raise ValueError("nothing can be drawn: all weights are 0")
        targets = uniforms * self._sums[1]
        nodes = np.ones(len(targets), np.int64)
        for _ in range(self._depth):
            nodes <<= 1
            left = self._sums[nodes]
            # Rounding may leave a target at the very end of a subtree; an empty right half is never entered.
            right = (targets >= left) & (self._sums[nodes + 1] > 0)
            targets = np.where(right, targets - left, targets)
            nodes += right
        return nodes - self._leaves
