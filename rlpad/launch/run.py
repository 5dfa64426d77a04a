"""A program that runs: what `launch` returns, whatever the launcher."""

from __future__ import annotations

import abc
import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from rlpad.launch import leaving
from rlpad.launch.context import check_status
from rlpad.launch.handles import Handle

#: Exit codes of a run that a signal ended, as shells have them.
SIGHUP_EXIT, SIGINT_EXIT, SIGTERM_EXIT = 129, 130, 143
#: How the note begins that says where an exception comes from.
_NOTE = "raised in node"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
      status: `completed`, `interrupted` or `failed`.
      reason: one line for people.
      exit_code: what a command line should return: 0 for completed, 1 for failed, 130 after Ctrl-C, 143 after
        SIGTERM or `rlpad stop`.
      error: what a node raised, or a `NodeFailed` that says how it died.
      killed: nodes that ignored the stop and were killed.
    """

    status: str
    reason: str
    exit_code: int
    error: BaseException | None = None
    killed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class NodeStatus:
    """Where a node stands.

    Attributes:
      state: `starting`, `running`, `finished` (its work is done, it may still serve), `stopped`, `failed`, or
        `restarting`.
      epoch: 1, and one more for each restart.
      pid: its process.
    """

    state: str
    epoch: int = 1
    pid: int | None = None

    @property
    def up(self) -> bool:
        """Whether it runs or serves."""
        return self.state in ("running", "finished")


class Run(abc.ABC):
    """A launched program."""

    #: Whether its nodes are threads of this process.
    in_threads = False

    def __init__(self) -> None:
        # A signal's handler may come while its thread holds it.
        self._end_lock = threading.RLock()
        self._request: Outcome | None = None
        self._outcome: Outcome | None = None
        self._raised = False
        self._at_end: list[Callable[[Outcome], object]] = []

    @property
    def outcome(self) -> Outcome | None:
        """How the run ended, or None while it goes on."""
        if self._outcome is not None:
            leaving.remove(self)
        return self._outcome

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the program has ended (and under `inline` runs it, for that's where it runs).

        Args:
          timeout: seconds to wait; None waits for the end.

        Returns:
          Whether it has ended.

        Raises:
          Exception: what a node raised, with a note that names the node, or `NodeFailed` for one that died.
        """
        if not self._wait(timeout):
            return False
        assert self._outcome is not None
        leaving.remove(self)
        if self._outcome.error is not None and not self._raised:
            self._raised = True
            raise self._outcome.error
        return True

    def stop(
        self,
        reason: str = "stopped by the launching process",
        status: str = "interrupted",
        exit_code: int | None = None,
    ) -> None:
        """Asks the program to stop and returns at once; the first request counts.

        Args:
          reason: one line for people.
          status: `completed`, `interrupted` or `failed`.
          exit_code: of the outcome; by default 0, or 1 for failed.
        """
        check_status(status)
        code = exit_code if exit_code is not None else int(status == "failed")
        self.request_end(Outcome(status, reason, code))

    def interrupt(self) -> bool:
        """Stops the program as after Ctrl-C; returns false if it is stopping already."""
        return self.request_end(Outcome("interrupted", "interrupted by Ctrl-C", SIGINT_EXIT))

    def ended_within(self, seconds: float) -> bool:
        """Waits like `wait`, but leaves what a node raised to the outcome."""
        return self._wait(seconds)

    def request_end(self, outcome: Outcome) -> bool:
        """Notes how the run is to end, unless that's known already, and begins to stop.

        Returns:
          Whether this is how it ends.
        """
        with self._end_lock:
            if self._request is not None:
                return False
            self._request = outcome
        self._begin_stop()
        return True

    def fail(self, node: str, error: BaseException) -> bool:
        """Ends the run because of a node; returns whether this is the first cause.

        An error that bears a node's name already, one in the process of `node`, keeps it.
        """
        named = [note for note in getattr(error, "__notes__", ()) if note.startswith(_NOTE)]
        if named:
            node = named[0].removeprefix(_NOTE).partition(",")[0].strip()
        else:
            error.add_note(f"{_NOTE} {node}")
        text = str(error) or type(error).__name__
        reason = f"node {node} failed: {type(error).__name__}: {text}".splitlines()[0]
        if getattr(error, "node", None) == node:
            reason = text.splitlines()[0]
        return self.request_end(Outcome("failed", reason, 1, error))

    def fail_late(self, node: str, error: BaseException) -> None:
        """Makes a run that ends a failed one as a node couldn't be closed, unless it has failed already."""
        with self._end_lock:
            request = self._request
            assert request is not None
            if request.error is not None:
                return
            error.add_note(f"{_NOTE} {node}, when it was closed")
            reason = f"node {node} failed when it was closed: {type(error).__name__}: {error}".splitlines()[0]
            self._request = Outcome("failed", reason, 1, error)

    def ended(self, killed: tuple[str, ...] = ()) -> None:
        """Makes what was requested the outcome."""
        request = self._request
        assert request is not None
        if killed:
            reason = f"{request.reason}; ignored the stop and had to be killed: {', '.join(killed)}"
            request = dataclasses.replace(request, killed=killed, reason=reason)
        with self._end_lock:
            self._outcome = request
        if not request.exit_code:
            leaving.remove(self)
        for function in self._at_end:
            function(request)

    def at_end(self, function: Callable[[Outcome], object]) -> None:
        """Has `function` called with the outcome before `wait` returns; now, if the run has ended already."""
        with self._end_lock:
            outcome = self._outcome
            if outcome is None:
                self._at_end.append(function)
        if outcome is not None:
            function(outcome)

    @abc.abstractmethod
    def _wait(self, timeout: float | None) -> bool:
        """Waits; returns whether the run has ended."""

    @abc.abstractmethod
    def _begin_stop(self) -> None:
        """Lets everybody know that the program stops; called once, from any thread."""

    @abc.abstractmethod
    def kill(self) -> None:
        """Ends the program at once and waits until nothing of it is left; does nothing once it has ended."""

    @abc.abstractmethod
    def status(self) -> dict[str, NodeStatus]:
        """Returns where every node stands."""

    @abc.abstractmethod
    def client(self, handle: Handle) -> Any:
        """Returns a client of a node for the launching process."""

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        leaving.remove(self)


class SignalHandlers:
    """Ctrl-C once stops a run, twice kills it; SIGTERM and a closed terminal stop it.

    Does nothing outside of the main thread.
    """

    def __init__(self, run: Run):
        self._run = run
        self._process = os.getpid()
        self._previous: dict[int, Any] = {}
        self._interrupts = 0

    def install(self) -> None:
        """Takes over SIGINT, SIGTERM and SIGHUP."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                previous = _in_use(number)
                # Started with nohup it shall survive its terminal; and what C code has put there can't be put back.
                if previous is None or (number == signal.SIGHUP and previous == signal.SIG_IGN):
                    continue
                self._previous[number] = previous
                signal.signal(number, self._handle)

    def restore(self) -> None:
        """Gives the signals back; only the main thread can."""
        if self._previous and threading.current_thread() is threading.main_thread():
            for number, handler in self._previous.items():
                # Another run may have put its own on top since; that one then calls ours.
                if signal.getsignal(number) == self._handle:
                    signal.signal(number, handler)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        previous = self._previous.get(number)
        if callable(previous):
            previous(number, frame)
        elif previous == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # Nobody may have waited for a run that has ended, to give the signal back; a forked child has none of its own.
        if self._run._outcome is not None or self._process != os.getpid():
            self._pass_on(number, frame)
            return
        if number == signal.SIGTERM:
            self._run.stop("terminated by SIGTERM", "interrupted", SIGTERM_EXIT)
            return
        if number == signal.SIGHUP:
            self._run.stop("its terminal was closed (SIGHUP)", "interrupted", SIGHUP_EXIT)
            return
        self._interrupts += 1
        if self._interrupts == 1:
            print("\nstopping and saving; press Ctrl-C again to kill", file=sys.stderr, flush=True)
            self._run.interrupt()
            return
        self._run.stop("killed by a second Ctrl-C", "interrupted", SIGINT_EXIT)
        self.restore()
        self._run.kill()
        raise KeyboardInterrupt


def _in_use(number: int) -> Any:
    """Returns a signal's handler, past those of runs that have ended and that nobody has waited for."""
    handler = signal.getsignal(number)
    while (owner := getattr(handler, "__self__", None)) is not None and isinstance(owner, SignalHandlers):
        if owner._run._outcome is None:
            break
        handler = owner._previous.get(number)
    return handler
