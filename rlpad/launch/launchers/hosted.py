"""The nodes of a colocation, in threads of the process that it has of its own."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from rlpad.launch.launchers.local import LocalNode, Parts
from rlpad.launch.launchers.threads import ThreadsRun
from rlpad.launch.nodes.base import Built
from rlpad.launch.rpc.methods import LIST_METHODS, Forwarder

#: Seconds that threads get to stop; the supervisor may have killed the process before that.
_STOP_SECONDS = 9.0
#: Seconds between looks at how far the threads are.
_POLL_SECONDS = 0.02

#: Makes a node known to those in other processes: its name, its service (or None), and what it was built as.
Announce = Callable[[str, Forwarder | None, Built], None]


class HostedRun(ThreadsRun):
    """Runs a part of a program, until the program around it stops or its nodes have finished."""

    def __init__(self, parts: Parts, announce: Announce):
        self._announce = announce
        self._first = parts.first
        self._work_done = threading.Event()
        super().__init__(parts, handle_signals=False, stop_notice_s=_STOP_SECONDS, test_serialization=False)

    def build(self) -> Built:
        """Waits until all nodes are built.

        Raises:
          Exception: what a node raised.
        """
        nodes = self._runtime.nodes.values()
        while not self.wait(_POLL_SECONDS) and not all(node.built is not None for node in nodes):
            pass
        works = any(node.built is not None and node.built.worker is not None for node in nodes)
        return Built(worker=_Work(self) if works else None, close=self._end, lingers=self._lingers)

    @property
    def finished(self) -> bool:
        """Whether all work is done."""
        return self._work_done.is_set() or self.outcome is not None

    def _lingers(self) -> bool:
        if self._first:
            return False
        return any(
            node.context.has_stop_handlers
            or (node.built is not None and (node.built.service is not None or node.built.address is not None))
            for node in self._runtime.nodes.values()
        )

    def _built(self, node: LocalNode, built: Built) -> None:
        self._announce(node.name, None if built.service is None else _Service(node), built)

    def _all_finished(self) -> None:
        self._work_done.set()

    def _end(self) -> None:
        self.kill()
        self.wait(0)  # raises what a node raised when it was closed


class _Work:
    """What the nodes of a run do, as the one worker of their process."""

    def __init__(self, run: HostedRun):
        self._run = run

    @property
    def finished(self) -> bool:
        """Whether all work is done."""
        return self._run.finished

    def step(self) -> bool:
        """Waits a moment for the end; raises what a node raised."""
        return self._run.wait(_POLL_SECONDS)

    def idle(self, timeout: float) -> None:
        """Does nothing, as the step has waited already."""

    def waiting_on(self) -> str:
        """Says what it waits for."""
        return "the nodes of the colocation"

    def close(self) -> None:
        """Holds nothing."""


class _Service(Forwarder):
    """The service of a node for those in other processes; its calls run as that node."""

    def __init__(self, node: LocalNode):
        self._node = node

    def _forward(self, name: str) -> Callable[..., Any]:
        return functools.partial(self._call, name)

    def _list_methods(self) -> list[str]:
        return self._node.call(LIST_METHODS, (), {})

    def _call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        return self._node.call(method, args, kwargs)
