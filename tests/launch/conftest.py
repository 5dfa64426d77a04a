"""What tests of all launchers share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rlpad.launch as lp

#: The launchers that every test of behaviour runs under.
LAUNCHERS = ["inline", "threads", "processes"]
#: Those among them under which nodes run beside each other, and beside the test.
CONCURRENT = [name for name in LAUNCHERS if name != "inline"]
#: Seconds after which a run that should have ended fails the test.
LONG = 20.0

Start = Callable[..., lp.Run]


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest) -> str:
    """Each launcher in turn."""
    return request.param


@pytest.fixture(params=CONCURRENT)
def concurrent(request: pytest.FixtureRequest) -> str:
    """Each launcher in turn under which nodes run beside the test."""
    return request.param


@pytest.fixture
def start() -> Iterator[Start]:
    """Launches programs, and ends those that a test has left running."""
    runs: list[lp.Run] = []

    def launch(program: lp.Program, launcher: str, **options: Any) -> lp.Run:
        run = lp.launch(program, launcher, **options)
        runs.append(run)
        return run

    yield launch
    for run in runs:
        run.kill()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Checks that no node's thread and no current program is left behind by a test."""
    yield
    names: list[str] = []
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        names = [t.name for t in threading.enumerate() if t.name.startswith("rlpad-")]
        if not names:
            break
        time.sleep(0.01)
    assert not names, f"threads were left behind: {names}"
    with pytest.raises(lp.LaunchError, match="no program runs here"):
        lp.node_info()


def wait_until(
    condition: Callable[[], Any], seconds: float = LONG, what: Callable[[], Any] = lambda: "this never came true"
) -> Any:
    """Waits until a condition holds, and returns what it says; fails the test, saying `what`, if it doesn't in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.005)
    return value


def end(run: lp.Run) -> lp.Outcome:
    """Waits until a run has ended, and returns how."""
    assert run.wait(LONG) is True
    assert run.outcome is not None
    return run.outcome
