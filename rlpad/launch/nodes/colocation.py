"""Nodes that hold other nodes: several that share a process, or a machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rlpad.launch.errors import LaunchError
from rlpad.launch.handles import Handle
from rlpad.launch.nodes.base import Built, Node
from rlpad.launch.policies import FailurePolicy, Restart
from rlpad.launch.resources import Resources

if TYPE_CHECKING:
    from rlpad.launch.context import Context


class _ColocationHandle(Handle):
    """Refers to a colocation, which answers to nothing itself."""

    refusal = "is a colocation; pass on the handles of the nodes inside of it"


class Colocation(Node):
    """Nodes that are launched together. They're called `group/index.0`, `group/index.1` and so on."""

    handle_class = _ColocationHandle

    def __init__(self, nodes: Iterable[Node] = ()):
        self._inner: list[Node] = []
        for node in nodes:
            self.add_node(node)

    def add_node(self, node: Node) -> Handle:
        """Adds a node, before the colocation itself is added to a program.

        Returns:
          A handle to pass to other nodes, inside and outside.

        Raises:
          LaunchError: it's no node, is in a program already, or the colocation is.
        """
        if not isinstance(node, Node):
            raise LaunchError(f"{type(self).__name__} needs nodes such as PyNode(function), got {node!r}")
        if self.name is not None:
            raise LaunchError(f"{self!r} is in a program already; add its nodes before that")
        if any(inner is self for inner in node.walk()):
            raise LaunchError(f"a {type(self).__name__} can't hold itself")
        self._inner.append(node)
        return node.create_handle()

    @property
    def inner(self) -> list[Node]:
        """The nodes inside."""
        return list(self._inner)

    @property
    def handles(self) -> list[Handle]:
        """None of its own."""
        return []

    def check(self) -> None:
        """Checks that there is a node.

        Raises:
          LaunchError: there's none.
        """
        if not self._inner:
            raise LaunchError(f"{self!r}: {type(self).__name__} holds no nodes")


class MultiThreadingColocation(Colocation):
    """Runs nodes in threads of one process: `MultiThreadingColocation([node, node])`.

    They call each other directly, without a copy; what they get from each other they shouldn't change. The process
    ends when all of them have finished and none serves, or at the end of the program. One that raises ends the
    process, and what then happens is said by the group. Colocations can be nested.

    Under `threads` and `inline`, where all nodes share a process anyway, its nodes run as those of any program.
    """

    def __init__(self, nodes: Iterable[Node] = (), return_on_first_completed: bool = False):
        """Takes nodes.

        Args:
          nodes: nodes that are in no program yet.
          return_on_first_completed: whether all of them stop as soon as one has finished.

        Raises:
          LaunchError: one is no node, or is in a program already.
        """
        super().__init__(nodes)
        self.return_on_first_completed = return_on_first_completed

    def processes(self) -> list[tuple[Node, list[Node]]]:
        """Returns its own process with the nodes in it, then those of processes started from inside."""
        mine: list[Node] = []
        others: list[tuple[Node, list[Node]]] = []
        for node in self._inner:
            processes = node.processes()
            if not isinstance(node, MultiProcessingColocation):
                mine += processes.pop(0)[1]
            others += processes
        return [(self, mine), *others]

    def check(self) -> None:
        """Checks that there is a node for its process.

        Raises:
          LaunchError: there's none.
        """
        super().check()
        if not self.processes()[0][1]:
            raise LaunchError(f"{self!r}: MultiThreadingColocation holds no nodes that run in its process")

    def build(self, context: Context) -> Built:
        """Builds the nodes, each in a thread of its own, where it will run."""
        return context.host(self._inner, first=self.return_on_first_completed)


class MultiProcessingColocation(Colocation):
    """Runs nodes in processes of one machine: `MultiProcessingColocation([node, node])`.

    With `processes` there's one machine only, so each node is a process like any other, with restarts of its own.
    """

    def __init__(self, nodes: Iterable[Node] = (), num_retries_on_failure: int = 0):
        """Takes nodes.

        Args:
          nodes: nodes that are in no program yet.
          num_retries_on_failure: times that each of them is started again when it dies; one death more counts as
            that of the colocation, and the program ends, whatever the group says. With 0, the group's policy holds.

        Raises:
          LaunchError: one is no node, or is in a program already; the number is negative.
        """
        super().__init__(nodes)
        if num_retries_on_failure < 0:
            raise LaunchError(f"num_retries_on_failure must be at least 0, got {num_retries_on_failure}")
        self.num_retries_on_failure = num_retries_on_failure

    def _place(self, name: str, group: str, index: int, resources: Resources, on_failure: FailurePolicy) -> None:
        policy = Retries(self.num_retries_on_failure) if self.num_retries_on_failure else on_failure
        super()._place(name, group, index, resources, policy)

    def processes(self) -> list[tuple[Node, list[Node]]]:
        """Returns the processes of each node inside; there's none for the colocation itself."""
        return [process for node in self._inner for process in node.processes()]

    def build(self, context: Context) -> Built:
        """Raises: its nodes are built one by one."""
        raise LaunchError(f"{self!r} has no process of its own")


@dataclasses.dataclass(frozen=True)
class Retries(Restart):
    """The restarts of a `MultiProcessingColocation`."""

    def used_up(self) -> str:
        """Says that there are no more restarts."""
        return f"num_retries_on_failure (={self.max_restarts}) is reached."
