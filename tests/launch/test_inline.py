"""What only `inline` promises: a fixed order, no hang, one thread, and nodes built on demand."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import rlpad.launch as lp

from .conftest import LONG, Start, end


class Shared:
    """A counter that workers draw on, as on a rate limiter; holds the trace of what happened."""

    def __init__(self, trace: list[str]):
        self._trace = trace
        self._items = 0

    def put(self, who: str) -> bool:
        """Adds one, if there's room for it."""
        self._trace.append(f"{who} puts" if self._items < 3 else f"{who} can't put")
        if self._items >= 3:
            return False
        self._items += 1
        return True

    def take(self, who: str) -> bool:
        """Takes two, if they're there."""
        self._trace.append(f"{who} takes" if self._items >= 2 else f"{who} can't take")
        if self._items < 2:
            return False
        self._items -= 2
        return True


class Taker:
    """Calls one method of the shared counter until it could so many times."""

    def __init__(self, shared: Any, method: str, times: int, grace: float | None = None):
        self._call = getattr(shared, method)
        self._left = times
        self._method = method
        if grace is not None:
            self.stall_grace_s = grace
        self.idled = 0

    @property
    def finished(self) -> bool:
        """Whether it could often enough."""
        return self._left == 0

    def step(self) -> bool:
        """Tries once."""
        done = self._call(lp.node_info().name)
        self._left -= done
        return done

    def idle(self, timeout: float) -> None:
        """Waits."""
        self.idled += 1
        time.sleep(timeout)

    def waiting_on(self) -> str:
        """Says for what."""
        return f"its turn to {self._method}, {self._left} to go"

    def close(self) -> None:
        """Holds nothing."""


def program_of(trace: list[str], *, puts: int = 8, takes: int = 4) -> lp.Program:
    """Two that put and one that takes."""
    program = lp.Program("p")
    # Added last, so that it's built when it's needed.
    shared = lp.CourierNode(Shared, lp.Deferred(lambda: trace))
    for _ in range(2):
        program.add_node(lp.PyClassNode(Taker, shared.create_handle(), "put", puts // 2), label="put")
    program.add_node(lp.PyClassNode(Taker, shared.create_handle(), "take", takes), label="take")
    program.add_node(shared, label="shared")
    return program


class TestOrder:
    """The order of the steps is fixed."""

    def test_same_twice(self, start: Start) -> None:
        traces: list[list[str]] = [[], []]
        for trace in traces:
            assert end(start(program_of(trace), "inline")).status == "completed"
        assert traces[0] == traces[1]
        assert traces[0] == [
            "put/0 puts",
            "put/0 puts",
            "put/0 puts",
            "put/0 can't put",
            "put/1 can't put",
            "take/0 takes",
            "take/0 can't take",
            "put/1 puts",
            "put/1 puts",
            "put/1 can't put",
            "put/0 can't put",
            "take/0 takes",
            "take/0 can't take",
            "put/1 puts",
            "put/1 puts",
            "put/0 can't put",
            "take/0 takes",
            "take/0 can't take",
            "put/0 puts",
            "take/0 takes",
        ]

    @pytest.mark.parametrize("timeout", [0.0, 1e-9, 1e-4])
    def test_slices(self, start: Start, timeout: float) -> None:
        whole: list[str] = []
        end(start(program_of(whole), "inline"))
        trace: list[str] = []
        run = start(program_of(trace), "inline")
        slices = 1
        while not run.wait(timeout):
            slices += 1
            assert run.outcome is None
            assert trace == whole[: len(trace)]
            assert slices < 1000
        assert trace == whole
        assert timeout > 1e-9 or slices > len(whole)
        assert run.outcome is not None
        assert run.outcome.status == "completed"

    def test_everything_in_the_calling_thread(self, start: Start) -> None:
        found: list[threading.Thread] = []
        program = lp.Program("p")
        for _ in range(2):
            program.add_node(lp.PyNode(note_thread, lp.Deferred(lambda: found)), label="n")
        before = threading.active_count()
        end(start(program, "inline"))
        assert found == [threading.current_thread()] * 2
        assert threading.active_count() == before

    def test_nested_run(self, start: Start) -> None:
        program = lp.Program("p")
        program.add_node(lp.PyNode(run_inner), label="outer")
        assert end(start(program, "inline")).status == "completed"

    def test_wait_from_a_node_does_not_nest(self, start: Start) -> None:
        found: list[bool] = []
        program = lp.Program("p")
        runs: list[lp.Run] = []
        program.add_node(lp.PyNode(lambda runs: found.append(runs[0].wait(0.0)), lp.Deferred(lambda: runs)), label="n")
        runs.append(start(program, "inline"))
        assert end(runs[0]).status == "completed"
        assert found == [False]


def note_thread(found: list[threading.Thread]) -> None:
    """Writes down in which thread it runs."""
    found.append(threading.current_thread())


def run_inner() -> None:
    """Runs a program inside of a node."""
    trace: list[str] = []
    with lp.launch(program_of(trace), "inline") as run:
        end(run)
    assert len(trace) == 20
    assert lp.node_info().name == "outer/0"


class TestStall:
    """When nobody can step, that's an error and not a hang."""

    def test_lists_all_who_wait(self, start: Start) -> None:
        run = start(program_of([], puts=8, takes=2), "inline")
        with pytest.raises(lp.StalledError) as info:
            run.wait(LONG)
        # After two takes of two, seven puts fit.
        assert str(info.value).splitlines() == [
            "nobody can step:",
            "  put/0 waits for its turn to put, 1 to go",
        ]
        assert run.outcome is not None
        assert run.outcome.status == "failed"
        assert "nobody can step" in run.outcome.reason

    def test_lists_several(self, start: Start) -> None:
        program = lp.Program("p")
        shared = program.add_node(lp.CourierNode(Shared, []), label="shared")
        for name, times in (("a", 1), ("b", 5)):
            program.add_node(lp.PyClassNode(Taker, shared, "take", times), label=name)
        with pytest.raises(lp.StalledError) as info:
            start(program, "inline").wait()
        assert str(info.value).splitlines() == [
            "nobody can step:",
            "  a/0 waits for its turn to take, 1 to go",
            "  b/0 waits for its turn to take, 5 to go",
        ]

    def test_at_once_without_grace(self, start: Start) -> None:
        began = time.monotonic()
        with pytest.raises(lp.StalledError):
            start(program_of([], takes=2), "inline").wait()
        assert time.monotonic() - began < 2.0

    def test_grace(self, start: Start) -> None:
        program = lp.Program("p")
        shared = program.add_node(lp.CourierNode(Shared, []), label="shared")
        program.add_node(lp.PyClassNode(Taker, shared, "take", 1), label="a")
        program.add_node(lp.PyClassNode(Taker, shared, "take", 1, grace=0.3), label="b")
        run = start(program, "inline")
        began = time.monotonic()
        assert run.wait(0.05) is False
        with pytest.raises(lp.StalledError):
            run.wait(LONG)
        assert 0.3 <= time.monotonic() - began < LONG

    def test_help_from_outside_within_the_grace(self, start: Start) -> None:
        program = lp.Program("p")
        shared = program.add_node(lp.CourierNode(Shared, []), label="shared")
        program.add_node(lp.PyClassNode(Taker, shared, "take", 1, grace=LONG), label="a")
        run = start(program, "inline")
        assert run.wait(0.05) is False
        client = run.client(shared)
        assert client.put("test")
        assert client.put("test")
        assert end(run).status == "completed"

    def test_no_stall_once_stopped(self, start: Start) -> None:
        run = start(program_of([], takes=2), "inline")
        run.stop("enough", "completed")
        assert end(run).error is None


class Asks:
    """Calls another when it's built."""

    def __init__(self, others: list[Any]):
        self._answers = [other.answer() for other in others]

    def answer(self) -> list[Any]:
        """Returns what the others said."""
        return self._answers


class TestBuild:
    """Nodes are built on demand."""

    def test_through_handles(self, start: Start) -> None:
        program = lp.Program("p")
        nodes = [lp.CourierNode(Asks, [])]
        for _ in range(3):
            nodes.append(lp.CourierNode(Asks, [nodes[-1].create_handle()]))
        handles = [program.add_node(node, label="n") for node in reversed(nodes)]
        run = start(program, "inline")
        assert {status.state for status in run.status().values()} == {"starting"}
        assert run.client(handles[1]).answer() == [[[]]]
        assert [status.state for status in run.status().values()] == ["starting", *["running"] * 3]
        assert run.client(handles[0]).answer() == [[[[]]]]

    def test_cycle(self, start: Start) -> None:
        program = lp.Program("p")
        others: list[lp.Handle] = []
        first = lp.CourierNode(Asks, others)
        others.append(program.add_node(lp.CourierNode(Asks, [first.create_handle()]), label="second"))
        program.add_node(first, label="first")
        run = start(program, "inline")
        with pytest.raises(lp.LaunchError, match="(first|second)/0 is called while it is being built"):
            run.wait(LONG)
        assert run.outcome is not None
        assert run.outcome.status == "failed"

    def test_not_after_the_end(self, start: Start) -> None:
        program = lp.Program("p")
        handle = program.add_node(lp.CourierNode(Asks, []), label="n")
        run = start(program, "inline")
        run.kill()
        with pytest.raises(lp.PeerGone):
            run.client(handle).answer()
        assert run.status()["n/0"].state == "stopped"
