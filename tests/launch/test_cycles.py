"""Programs launched and ended many times in one process, which stays what it was."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import rlpad.launch as lp
from tests.support_holdings import holdings

from .conftest import LONG, wait_until
from .example_nodes import CustomError, Service, Waits, fail

#: How a program ends, in turn.
ENDS = ("ends unheard", "completes", "is stopped", "is killed", "fails")
#: Bytes by which the process may grow: allocators and caches take a while to settle.
GROWTH = 4 << 20


def call(service: Any) -> None:
    """Calls a service in all ways."""
    assert service.add(1, timeout=LONG) == 2
    assert [service.futures.add(n).result(LONG) for n in range(3)] == [1, 2, 3]


def cycle(launcher: str, how: str, run_dir: str | None) -> weakref.ref[lp.Run]:
    """Launches a program, uses it, and ends it in one of the ways."""
    program = lp.Program("cycle")
    service = program.add_node(lp.CourierNode(Service), label="service")
    program.add_node(lp.PyNode(call, service), label="caller")
    lasts = how in ("is stopped", "is killed")
    if lasts:
        program.add_node(lp.PyClassNode(Waits), label="waits")
    if how == "fails":
        program.add_node(lp.PyNode(fail, CustomError("as it should")), label="bad")
    run = lp.launch(program, launcher, run_dir=run_dir)
    if lasts:
        call(run.client(service))
    if how == "is stopped":
        run.stop("enough", "completed")
    elif how == "is killed":
        run.kill()
    if how == "fails":
        with pytest.raises(CustomError, match="as it should"):
            run.wait(LONG)
    elif how == "ends unheard":
        wait_until(lambda: not any(thread.name == "rlpad-supervisor" for thread in threading.enumerate()))
    else:
        assert run.wait(LONG)
        assert run.outcome is not None and run.outcome.status == ("interrupted" if how == "is killed" else "completed")
    return weakref.ref(run)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own for temporary files; short, as sockets are bound there."""
    folder = tempfile.mkdtemp(prefix="t")
    monkeypatch.setattr(tempfile, "tempdir", folder)
    yield Path(folder)
    monkeypatch.undo()
    shutil.rmtree(folder)


@pytest.mark.parametrize("cycles", [20, pytest.param(200, marks=pytest.mark.chaos)])
@pytest.mark.parametrize("launcher", ["threads", "processes"])
def test_nothing_is_left_of_programs(launcher: str, cycles: int, tmp_path: Path, temporary: Path) -> None:
    def run(number: int) -> list[weakref.ref[lp.Run]]:
        # A run directory every other round of the ways to end, as these are an odd number.
        return [cycle(launcher, ENDS[n % len(ENDS)], str(tmp_path / "run") if n % 2 else None) for n in range(number)]

    run(len(ENDS) + 1)
    before, memory = holdings(), psutil.Process().memory_info().rss
    runs = run(cycles)
    wait_until(lambda: holdings() == before, 5.0, lambda: (before, holdings()))
    assert [ref() for ref in runs] == [None] * cycles
    assert os.listdir(temporary) == []
    assert psutil.Process().memory_info().rss - memory < GROWTH
