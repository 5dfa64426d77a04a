"""A program: a graph of nodes, in groups."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator

from rlpad.launch.errors import LaunchError
from rlpad.launch.handles import Handle
from rlpad.launch.nodes.base import Node
from rlpad.launch.policies import FailurePolicy, Stop
from rlpad.launch.resources import Resources

_LABEL = re.compile(r"[A-Za-z0-9_.+-]+")


class Program:
    """Collects nodes; nothing is built before it's launched.

    Nodes of a group share their resources and what happens when one dies. The same label may be opened again;
    its nodes go on counting.
    """

    def __init__(self, name: str):
        """Starts an empty program."""
        if not name:
            raise LaunchError("a program needs a name")
        self.name = name
        self._nodes: dict[str, Node] = {}
        self._groups: dict[str, list[Node]] = {}
        self._group: tuple[str, Resources, FailurePolicy] | None = None

    @contextlib.contextmanager
    def group(
        self, label: str, *, resources: Resources | None = None, on_failure: FailurePolicy | None = None
    ) -> Iterator[None]:
        """Puts the nodes that are added inside into a group.

        Args:
          label: letters, digits, `_`, `.`, `+` and `-`.
          resources: what each of its nodes runs on.
          on_failure: what happens when one dies; by default the program ends.

        Raises:
          LaunchError: the label is empty or malformed, or a group is open already.
        """
        if not label:
            raise LaunchError("Label should not be empty.")
        if not _LABEL.fullmatch(label):
            raise LaunchError(f"group label {label!r} is malformed; expected letters, digits, '_', '.', '+' and '-'")
        if self._group is not None:
            raise LaunchError("group() cannot be nested.")
        self._group = (label, resources or Resources(), on_failure or Stop())
        try:
            yield
        finally:
            self._group = None

    def add_node(self, node: Node, label: str | None = None) -> Handle:
        """Adds a node to the open group, or to a group of its own called `label`.

        Returns:
          A handle to pass to other nodes.

        Raises:
          LaunchError: the node is in a program already, there's neither group nor label, or both and they
            differ.
        """
        if not isinstance(node, Node):
            raise LaunchError(f"add_node needs a node such as PyNode(function), got {node!r}")
        if self._group is None:
            if label is None:
                raise LaunchError("Label should not be empty. Give add_node a label, or open a group.")
            with self.group(label):
                return self.add_node(node)
        group, resources, on_failure = self._group
        if label is not None and label != group:
            raise LaunchError(f"The given label does not match the current group: {label} vs {group}.")
        index = len(self._groups.get(group, ()))
        node.place(f"{group}/{index}", group, index, resources, on_failure)
        self._groups.setdefault(group, []).append(node)
        self._nodes[f"{group}/{index}"] = node
        return node.create_handle()

    @property
    def nodes(self) -> dict[str, Node]:
        """All nodes by name, in the order in which they were added."""
        return dict(self._nodes)

    def group_size(self, group: str) -> int:
        """Returns the number of nodes in a group."""
        return len(self._groups[group])

    @property
    def groups(self) -> dict[str, list[Node]]:
        """The nodes of each group, by its label."""
        return {label: list(nodes) for label, nodes in self._groups.items()}

    @property
    def current_group(self) -> str:
        """The label of the open group.

        Raises:
          LaunchError: none is open.
        """
        if self._group is None:
            raise LaunchError("Current group is only available in group context.")
        return self._group[0]

    def get_all_nodes(self) -> list[Node]:
        """Returns all nodes, in the order in which they were added."""
        return list(self._nodes.values())

    def check(self) -> None:
        """Checks that the program can be launched.

        Raises:
          LaunchError: it's empty, a group is still open, a handle is hidden, of another program or of a node
            that can't be called.
        """
        if self._group is not None:
            raise LaunchError(f"group {self._group[0]!r} is still open: launch after its with block")
        if not self._nodes:
            raise LaunchError(f"program {self.name!r} has no nodes")
        known = {node.name: node for top in self._nodes.values() for node in top.walk()}
        for name, node in known.items():
            node.check()
            for handle in node.handles:
                if known.get(handle.name) is not handle.node:
                    raise LaunchError(f"{name} refers to {handle!r} of another program")
                if handle.refusal:
                    raise LaunchError(f"{name} refers to {handle.name}, which {handle.refusal}")


def node_seed(seed: int, name: str) -> int:
    """Returns a node's own seed, from 0 to 2**31 - 1, from the program's seed and the node's name."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF
