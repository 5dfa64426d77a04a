"""One thread steps every worker in a fixed order: reproducible, and debuggable with pdb."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Any

from rlpad.launch.context import entered
from rlpad.launch.errors import StalledError, as_failure
from rlpad.launch.launchers.local import LocalNode, LocalRun, Parts


class InlineRun(LocalRun):
    """Runs the program inside of `wait`, one step of one worker after another.

    Each worker steps until it can't, then the next one in the order of the program. If none of them can, and
    it isn't for something that comes from outside (a worker says so with `stall_grace_s`), nobody ever will.
    """

    def __init__(self, parts: Parts, *, handle_signals: bool, test_serialization: bool):
        super().__init__(parts, single_threaded=True, test_serialization=test_serialization)
        self._schedule = self._steps()
        self._running = False
        self._deadline = math.inf
        self._steps_taken = dict.fromkeys(self._runtime.nodes, 0)
        self._start(handle_signals)

    def _wait(self, timeout: float | None) -> bool:
        if self._outcome is not None or self._running:
            return self._outcome is not None
        self._deadline = math.inf if timeout is None else time.monotonic() + timeout
        self._running = True
        try:
            for _ in self._schedule:
                if time.monotonic() >= self._deadline:
                    return False
        except KeyboardInterrupt:
            # Without handlers of ours (another thread's launch, say) Python's own has raised it.
            self.interrupt()
        finally:
            self._running = False
        self._finish()
        return True

    def _steps(self) -> Iterator[None]:
        """Yields after each step; ends when the program does."""
        nodes = list(self._runtime.nodes.values())
        stop = self._runtime.stop_event
        for node in nodes:
            if stop.is_set() or not self._guarded(node, node.build):
                return
            yield
        idle_since: float | None = None
        while not stop.is_set():
            progressed = False
            for node in self._in_turn(nodes):
                worker = node.built.worker if node.built is not None else None
                more = worker is not None
                while more:
                    stepped, more = self._burst(node, worker)
                    progressed |= stepped
                    yield
            waiting = [n for n in nodes if n.built and n.built.worker is not None and n.state != "finished"]
            if not waiting:
                self.stop("every node has finished", "completed")
            elif progressed:
                idle_since = None
            elif not stop.is_set():
                idle_since = idle_since or time.monotonic()
                self._idle(waiting, time.monotonic() - idle_since)
                yield

    def _guarded(self, node: LocalNode, function: Any) -> Any:
        try:
            with entered(node.context):
                return function()
        except (Exception, SystemExit) as error:
            self._failed(node, error)
            return False

    def _failed(self, node: LocalNode, error: BaseException) -> None:
        node.state = "failed"
        self.fail(node.name, as_failure(node.name, error))

    def _in_turn(self, nodes: list[LocalNode]) -> list[LocalNode]:
        """Groups in the order of the program; in a group first whoever has stepped least, or one would do it all."""
        groups = list(dict.fromkeys(node.node.group for node in nodes))
        return sorted(nodes, key=lambda n: (groups.index(n.node.group), self._steps_taken[n.name], n.node.index))

    def _burst(self, node: LocalNode, worker: Any) -> tuple[bool, bool]:
        """Steps a worker until it can't, or until time is up; returns whether it stepped, and could step more."""
        stop, stepped = self._runtime.stop_event, False
        # A colocation may stop by itself.
        stop_own = node.context.stop_event
        try:
            with entered(node.context):
                while node.state == "running" and not stop.is_set():
                    if worker.finished or stop_own.is_set():
                        self._runtime.finish(node)
                    elif not worker.step():
                        break
                    else:
                        stepped = True
                        self._steps_taken[node.name] += 1
                        if time.monotonic() >= self._deadline:
                            return True, True
        except (Exception, SystemExit) as error:
            self._failed(node, error)
        return stepped, False

    def _idle(self, waiting: list[LocalNode], seconds: float) -> None:
        workers = [node.built.worker for node in waiting if node.built is not None]
        if seconds < max(getattr(worker, "stall_grace_s", 0.0) for worker in workers):
            self._guarded(waiting[0], lambda: workers[0].idle(0.01))
            return
        reasons = [
            f"{node.name} waits for {self._guarded(node, worker.waiting_on)}"
            for node, worker in zip(waiting, workers, strict=True)
        ]
        self.fail(waiting[0].name, StalledError("nobody can step:\n  " + "\n  ".join(reasons)))

    def _finish(self) -> None:
        for node in self._runtime.in_closing_order():
            try:
                node.end("failed" if node.state == "failed" else "stopped")
            except (Exception, SystemExit) as error:
                self.fail_late(node.name, as_failure(node.name, error))
        self._signals.restore()
        self._runtime.end()
        self.ended()

    def kill(self) -> None:
        """Ends the program; what runs inside of `wait` can only be asked to."""
        if self._outcome is not None:
            return
        self.stop()
        if not self._running:
            with contextlib.suppress(Exception):
                self._schedule.close()  # type: ignore[attr-defined]
            self._finish()
