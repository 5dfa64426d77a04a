"""Which nodes stop together."""

from __future__ import annotations

import threading
from collections.abc import Container, Iterable

from rlpad.launch.nodes.base import Node
from rlpad.launch.nodes.colocation import MultiThreadingColocation


class Scope:
    """A program, or a colocation in it, whose nodes stop together.

    Attributes:
      stop_event: set when its nodes are to stop.
    """

    def __init__(self, stop_event: threading.Event, parent: Scope | None = None, first: bool = False):
        """Starts without parts.

        Args:
          stop_event: set when the nodes around it are to stop.
          parent: the scope around it.
          first: whether all stop when one part has completed.
        """
        self.stop_event = threading.Event() if first else stop_event
        self._first = first
        self._parent = parent
        self._inner: list[Scope] = []
        self._left: set[str | Scope] = set()
        self._lock: threading.RLock = parent._lock if parent is not None else threading.RLock()
        if parent is not None:
            parent._inner.append(self)
            parent._left.add(self)

    def stop(self) -> None:
        """Tells all nodes inside to stop."""
        self.stop_event.set()
        for scope in self._inner:
            scope.stop()

    def complete(self, part: str | Scope) -> None:
        """Notes that a node (by its name) or an inner scope has done its work."""
        with self._lock:
            if part not in self._left:
                return
            self._left.discard(part)
            if self._left and not self._first:
                return
            self._left.clear()
            if self._first:
                self.stop()
            if self._parent is not None:
                self._parent.complete(self)

    @property
    def completed(self) -> bool:
        """Whether its work is done: that of all parts, or of the first."""
        return not self._left

    def enclose(self, nodes: Iterable[Node], found: dict[str, Scope], here: Container[str]) -> None:
        """Adds nodes as parts.

        Args:
          nodes: the nodes; those of colocations get scopes of their own.
          found: gets each leaf's scope by its name.
          here: names of the leaves that run in this process; others don't count.
        """
        for node in nodes:
            if node.inner:
                first = isinstance(node, MultiThreadingColocation) and node.return_on_first_completed
                scope = Scope(self.stop_event, self, first)
                scope.enclose(node.inner, found, here)
                if not scope._left:
                    self._left.discard(scope)
            elif node.name is not None and node.name in here:
                self._left.add(node.name)
                found[node.name] = self
