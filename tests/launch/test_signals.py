"""Ctrl-C and SIGTERM, where nodes run in this process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rlpad.launch as lp

from .conftest import LONG, Start, end, wait_until


class Interrupts:
    """A worker that sends its own process a signal in its third step, and again in later ones."""

    finished = False
    stall_grace_s = LONG

    def __init__(self, number: int, at: tuple[int, ...] = (3,), deaf: bool = False):
        self._number, self._at, self._deaf = number, at, deaf
        self._steps = 0

    def step(self) -> bool:
        """Sends the signal."""
        while True:
            self._steps += 1
            if self._steps in self._at:
                os.kill(os.getpid(), self._number)
                # Python calls handlers between two instructions of the main thread.
                for _ in range(1000):
                    pass
            if not self._deaf:
                return self._steps <= max(self._at)
            assert self._steps < 1000

    def idle(self, timeout: float) -> None:
        """Waits."""
        lp.wait_for_stop(timeout)

    def waiting_on(self) -> str:
        """Waits for the end."""
        return "the end"

    def close(self) -> None:
        """Holds nothing."""


def handlers() -> list[Any]:
    """Returns the handlers of both signals."""
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.fixture
def own_handlers() -> Iterator[Callable[[], list[int]]]:
    """Puts handlers of the test's own in place that write down what they're called with."""
    seen: list[int] = []
    before = handlers()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: seen.append(number))
    yield lambda: list(seen)
    for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
        signal.signal(number, handler)


def interrupting(*args: Any, **kwargs: Any) -> lp.Program:
    """Makes a program that sends a signal."""
    program = lp.Program("p")
    program.add_node(lp.PyClassNode(Interrupts, *args, **kwargs), label="n")
    return program


@pytest.mark.usefixtures("own_handlers")
class TestSignals:
    """Ctrl-C and SIGTERM."""

    @pytest.mark.parametrize("launcher", ["inline", "threads"])
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_once(self, launcher: str, start: Start, number: int, code: int, own_handlers: Any) -> None:
        before = handlers()
        run = start(interrupting(number), launcher)
        assert handlers() != before
        outcome = end(run)
        assert (outcome.status, outcome.exit_code, outcome.error) == ("interrupted", code, None)
        assert outcome.reason == ("interrupted by Ctrl-C" if code == 130 else "terminated by SIGTERM")
        assert handlers() == before
        assert own_handlers() == []

    def test_message(self, start: Start, capsys: pytest.CaptureFixture[str]) -> None:
        end(start(interrupting(signal.SIGINT), "inline"))
        assert "stopping and saving; press Ctrl-C again to kill" in capsys.readouterr().err

    def test_twice(self, start: Start) -> None:
        before = handlers()
        run = start(interrupting(signal.SIGINT, (3, 4), deaf=True), "inline")
        # A step that goes on after the first is ended by the second.
        outcome = end(run)
        assert (outcome.status, outcome.exit_code) == ("interrupted", 130)
        assert handlers() == before

    def test_not_asked_for(self, start: Start, own_handlers: Any) -> None:
        before = handlers()
        run = start(interrupting(signal.SIGINT), "inline", handle_signals=False)
        assert handlers() == before
        assert run.wait(0.1) is False
        assert own_handlers() == [signal.SIGINT]

    def test_pythons_own(self, start: Start) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        outcome = end(start(interrupting(signal.SIGINT), "inline", handle_signals=False))
        assert (outcome.status, outcome.exit_code) == ("interrupted", 130)

    def test_restored_after_a_failure(self, start: Start) -> None:
        before = handlers()
        program = lp.Program("p")
        program.add_node(lp.PyNode(int, "x"), label="n")
        with pytest.raises(ValueError, match="invalid literal"):
            start(program, "inline").wait()
        assert handlers() == before

    def test_restored_by_kill(self) -> None:
        before = handlers()
        with lp.launch(interrupting(signal.SIGINT), "inline"):
            assert handlers() != before
        assert handlers() == before

    def test_ended_but_not_waited_for(self, start: Start, own_handlers: Any) -> None:
        program = lp.Program("p")
        program.add_node(lp.PyNode(int), label="n")
        run = start(program, "threads")
        wait_until(lambda: run.outcome)
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(own_handlers)
        assert own_handlers() == [signal.SIGINT]

    def test_overlapping_runs(self, start: Start, own_handlers: Any) -> None:
        before = handlers()
        first = start(interrupting(signal.SIGUSR1, (10**9,)), "threads")
        second = start(interrupting(signal.SIGINT), "inline")
        # The one below goes first, and must not take the other's handlers away.
        first.stop()
        end(first)
        assert end(second).exit_code == 130
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(own_handlers)
        assert own_handlers() == [signal.SIGTERM]
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
