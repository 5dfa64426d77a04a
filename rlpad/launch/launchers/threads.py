"""One process, a thread per node; nodes call each other's objects directly."""

from __future__ import annotations

import threading
import time

from rlpad.launch import leaving
from rlpad.launch.context import entered
from rlpad.launch.errors import PeerGone, as_failure
from rlpad.launch.launchers.local import LocalNode, LocalRun, Parts
from rlpad.launch.nodes.base import Built
from rlpad.launch.worker import step_until_done

# A node can still close when others have used up all the time there was to stop.
_MIN_CLOSE_SECONDS = 1.0


class ThreadsRun(LocalRun):
    """Runs every node in a thread of its own.

    A node that fails ends the program whatever its group says: an object that raised can't be trusted to be
    made anew beside its remains. Threads can't be killed; those that ignore the stop are named and left
    behind.
    """

    in_threads = True

    def __init__(self, parts: Parts, *, handle_signals: bool, stop_notice_s: float, test_serialization: bool):
        super().__init__(parts, single_threaded=False, test_serialization=test_serialization)
        self._notice = stop_notice_s
        self._done = threading.Event()
        self._working = {
            name: threading.Thread(target=self._run_node, args=(node,), name=f"rlpad-{name}", daemon=True)
            for name, node in self._runtime.nodes.items()
        }
        self._work_left = set(self._runtime.nodes)
        self._lock = threading.Lock()
        self._gone_late: dict[str, PeerGone] = {}
        self._start(handle_signals)
        if parts.outer is None:
            leaving.add(self)
        for thread in self._working.values():
            thread.start()
        self._supervisor = threading.Thread(target=self._supervise, name="rlpad-supervisor", daemon=True)
        self._supervisor.start()

    def _run_node(self, node: LocalNode) -> None:
        try:
            with entered(node.context):
                built = node.build()
                self._built(node, built)
                if built.worker is not None:
                    step_until_done(built.worker)
            if node.state == "running" and built.worker is not None:
                self._runtime.finish(node)
        except PeerGone as error:
            # Most likely somebody else failed first; that one says so within a moment.
            node.state = "failed"
            self._gone_late[node.name] = error
        except BaseException as error:
            node.state = "failed"
            self.fail(node.name, as_failure(node.name, error))
        finally:
            with self._lock:
                self._work_left.discard(node.name)

    def _built(self, node: LocalNode, built: Built) -> None:
        """Is called when a node is built, in its thread."""

    def _all_finished(self) -> None:
        """Is called when all work is done; services may be left."""
        self.stop("every node has finished", "completed")

    def _supervise(self) -> None:
        stop = self._runtime.stop_event
        nodes = self._runtime.nodes
        outer = self._runtime.outer
        while not stop.wait(0.02) and not (outer is not None and outer.stop_event.is_set()):
            with self._lock:
                idle = not self._work_left
            late = dict(self._gone_late)
            if late and not stop.wait(0.5):
                name, error = next(iter(late.items()))
                self.fail(name, error)
            elif idle and any(n.built is not None and n.built.worker is not None for n in nodes.values()):
                self._all_finished()
        self.stop("the program around stops", "completed")  # unless that's why this is reached
        deadline = time.monotonic() + self._notice
        for thread in self._working.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        stuck = [name for name, thread in self._working.items() if thread.is_alive()]
        for node in self._runtime.in_closing_order():
            if node.name in stuck:
                node.leave("stopped")
                continue
            # In a thread of its own, for it may hang.
            closing = threading.Thread(target=self._close, args=(node,), name=f"rlpad-{node.name}-close")
            closing.daemon = True
            try:
                closing.start()
            except RuntimeError:  # no more can be had; some Pythons have none after the end of a script
                self._close(node)
                continue
            closing.join(max(_MIN_CLOSE_SECONDS, deadline - time.monotonic()))
            if closing.is_alive():
                stuck.append(node.name)
        self._runtime.end()
        self.ended(tuple(stuck))
        self._done.set()

    def _close(self, node: LocalNode) -> None:
        try:
            node.end("failed" if node.state == "failed" else "stopped")
        except BaseException as error:
            self.fail_late(node.name, as_failure(node.name, error))

    def _wait(self, timeout: float | None) -> bool:
        ended = self._done.wait(timeout)
        if ended:
            self._signals.restore()
        return ended

    def kill(self) -> None:
        """Stops the program and waits for the end, at most the notice and a little."""
        if not self._done.is_set():
            self.stop()
            self._done.wait(self._notice + 5.0)
        self._signals.restore()
        leaving.remove(self)
