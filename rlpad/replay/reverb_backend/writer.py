"""Writes steps and items through dm-reverb's trajectory writer, without ever waiting for long."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tree

from rlpad.launch.errors import PeerGone
from rlpad.replay import interface
from rlpad.replay.interface import Cell
from rlpad.replay.reverb_backend.server import max_priority_table
from rlpad.types import NestedArray

if TYPE_CHECKING:
    from rlpad.replay.reverb_backend.client import ReverbClient

#: Items that may be on their way before `ready` looks whether the server takes them.
IN_FLIGHT = 16
#: Milliseconds that a look may take; a server that isn't held confirms sooner.
LOOK_MS = 3
#: Seconds between two questions whether the server is still there, while it takes nothing.
ALIVE_SECONDS = 1.0


class ReverbWriter(interface.Writer):
    """A trajectory writer; the background thread of its own sends what is pending."""

    def __init__(self, client: ReverbClient, writer: Any):
        """Wraps a `reverb.TrajectoryWriter`."""
        self._client = client
        self._writer = writer
        # Its C++ core: the Python class keeps a history of nests that would cost more than all the rest here.
        self._core = writer._writer
        self._checks = interface.ItemChecks(client)
        self._examples: dict[str, np.ndarray] = {}
        self._places: dict[str, int] = {}
        self._sequence = 0
        self._num_pending = 0
        self._asked_at = 0.0
        self._closed = False

    def append(self, step: dict[str, NestedArray]) -> dict[str, NestedArray]:
        """Hands a step to reverb; see `interface.Writer`."""
        flat: dict[str, np.ndarray] = {}
        for name, value in step.items():
            if not interface.is_leaf(value):
                for i, leaf in enumerate(tree.flatten(value)):
                    flat[f"{name}/{i}"] = np.asarray(leaf)
            else:
                flat[name] = np.asarray(value)
        for name, array in flat.items():
            example = self._examples.get(name)
            if example is None:
                self._places[name] = len(self._places)
                self._examples[name] = np.empty(array.shape, array.dtype)
            else:
                interface.check_column(name, array, example)
        references = self._core.Append([flat.get(name) for name in self._places])
        sequence, self._sequence = self._sequence, self._sequence + 1
        cells: dict[str, NestedArray] = {}
        for name, value in step.items():
            if not interface.is_leaf(value):
                names = [f"{name}/{i}" for i in range(len(tree.flatten(value)))]
                leaves = [Cell(leaf, sequence, references[self._places[leaf]]) for leaf in names]
                cells[name] = tree.unflatten_as(value, leaves)
            else:
                cells[name] = Cell(name, sequence, references[self._places[name]])
        return cells

    def create_item(self, table: str, trajectory: NestedArray, priority: float | None = None) -> None:
        """Hands an item to reverb, which sends it at a moment of its own; see `interface.Writer`."""
        cells = self._checks(table, trajectory, self._examples)
        if priority is None:
            value = self._client.max_priority(table)
        else:
            value = float(interface.check_priorities([priority])[0])
        self._create(table, value, cells)
        if self._client.raise_max_priority(table, value):
            # The value lies in the priority; the cell is only there because an item needs one.
            self._create(max_priority_table(table), value, cells[:1])

    def _create(self, table: str, priority: float, cells: Sequence[Cell]) -> None:
        try:
            self._core.CreateItem(table, priority, [[cell.handle] for cell in cells], [True] * len(cells))
        except RuntimeError as error:
            raise ValueError(f"table {table!r}: {error}") from error
        self._num_pending += 1

    def ready(self, count: int = 1) -> bool:
        """Whether the server has taken enough of what was created for `count` more items."""
        limit = max(IN_FLIGHT, count)
        if self._num_pending + count > limit:
            self._look(limit - count)
        return self._num_pending + count <= limit

    def flush(self) -> bool:
        """Has everything sent; returns whether the server has confirmed all of it."""
        if self._num_pending:
            self._look(0)
        return not self._num_pending

    def _look(self, may_remain: int) -> None:
        try:
            self._core.Flush(may_remain, LOOK_MS)
        except RuntimeError as error:
            if "Timeout exceeded" not in str(error):
                raise PeerGone(f"the reverb server took no items: {error}") from error
            self._check_alive()
        else:
            self._num_pending = min(self._num_pending, may_remain)

    def _check_alive(self) -> None:
        # A writer whose server is gone tries for ever to reach it.
        now = time.monotonic()
        if now - self._asked_at > ALIVE_SECONDS:
            self._asked_at = now
            self._client.check_alive()

    def close(self) -> None:
        """Stops sending; pending items are dropped."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(RuntimeError):
                self._writer.close()
