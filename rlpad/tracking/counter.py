"""Counts that add up over the nodes of a program."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from rlpad import core


class Counter(core.Saveable[dict[str, Any]]):
    """Named counts, kept here or added up in a parent.

    A child keeps what it counted and hands it to its parent, every name with the child's prefix
    (`actor` counts `steps`, the parent holds `actor_steps`), at most every `push_period_s` seconds; in
    between it answers with the parent's last reply and its own counts since. All methods may be called from
    any thread.
    """

    def __init__(
        self,
        parent: Any = None,
        prefix: str = "",
        push_period_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Starts with no counts.

        Args:
          parent: counter to push to: a `Counter` or an RPC client of one; None for a root.
          prefix: put before each name, with an underscore, in the parent; "" for the names as they are.
          push_period_s: least seconds between two pushes; 0 pushes at each increment.
          clock: monotonic seconds.

        Raises:
          ValueError: the period is negative.
        """
        if push_period_s < 0:
            raise ValueError(f"push_period_s must be at least 0, got {push_period_s}")
        self._parent = parent
        self._prefix = f"{prefix}_" if prefix else ""
        self._period = push_period_s
        self._clock = clock
        self._lock = threading.RLock()
        self._counts: dict[str, int] = {}
        self._pending: dict[str, int] = {}
        self._cache: dict[str, int] = {}
        self._pushed_at: float | None = None

    def increment(self, **counts: int) -> dict[str, int]:
        """Adds to counts, and pushes to the parent if a push is due.

        Returns:
          All counts: at a root its own; at a child those of the parent, with what it hasn't pushed yet.

        Raises:
          ValueError: an increment is negative; nothing has been added.
          Exception: what the parent raised; the increments stay pending here, and the next push carries them.
        """
        for name, amount in counts.items():
            if amount < 0:
                raise ValueError(f"counts only grow: {name} can't be incremented by {amount}")
        with self._lock:
            for name, amount in counts.items():
                self._counts[name] = self._counts.get(name, 0) + amount
                if self._parent is not None:
                    key = self._prefix + name
                    self._pending[key] = self._pending.get(key, 0) + amount
            if self._due():
                self._push()
            return self._all()

    def get_counts(self) -> dict[str, int]:
        """Returns all counts as `increment` does, and asks the parent anew if a push is due."""
        with self._lock:
            if self._due():
                self._push()
            return self._all()

    def flush(self) -> None:
        """Pushes what is pending now, whether or not a push is due.

        Raises:
          Exception: what the parent raised; the increments stay pending.
        """
        with self._lock:
            if self._parent is not None:
                self._push()

    def save(self) -> dict[str, Any]:
        """Returns own counts, what is pending and the parent's last reply."""
        with self._lock:
            return {
                "counts": dict(self._counts),
                "pending": dict(self._pending),
                "cache": dict(self._cache),
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Puts back what `save` returned; the next push is due at once."""
        with self._lock:
            self._counts = dict(state["counts"])
            self._pending = dict(state["pending"])
            self._cache = dict(state["cache"])
            self._pushed_at = None

    def _due(self) -> bool:
        if self._parent is None:
            return False
        return self._pushed_at is None or self._clock() - self._pushed_at >= self._period

    def _push(self) -> None:
        # Taken out only after the reply: what a failing push carried isn't lost.
        self._cache = dict(self._parent.increment(**self._pending))
        self._pending = {}
        self._pushed_at = self._clock()

    def _all(self) -> dict[str, int]:
        if self._parent is None:
            return dict(self._counts)
        merged = dict(self._cache)
        for name, amount in self._pending.items():
            merged[name] = merged.get(name, 0) + amount
        return merged
