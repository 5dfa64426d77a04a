"""Every node hears of the end in its own way and has the time to clean up; one that doesn't listen is named."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import rlpad.launch as lp
from experiments.launch.clean_termination import make_program
from tests.launch.conftest import Start, end, wait_until

CLEAN = ["handle/0", "poll/0", "wait/0", "watch/0"]


def test_every_cleanup_of_two_seconds_runs(start: Start, concurrent: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    began = time.monotonic()
    outcome = end(start(make_program(after=0.3, cleanup=2.1, out=str(out)), concurrent))
    assert outcome == lp.Outcome("completed", "it was time", 0)
    assert sorted(out.read_text().splitlines()) == CLEAN
    assert 2.4 <= time.monotonic() - began < 8.0  # they clean up at the same time


def test_the_launching_process_stops_it_as_well(start: Start, concurrent: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = start(make_program(after=60.0, cleanup=0.0, out=str(out)), concurrent)
    # Whoever is done before has its handler registered.
    wait_until(lambda: run.status()["handle/0"].state == "finished")
    assert run.wait(0.1) is False
    assert not out.exists()
    run.stop("that's enough", "completed")
    assert end(run) == lp.Outcome("completed", "that's enough", 0)
    assert sorted(out.read_text().splitlines()) == CLEAN


def test_who_ignores_the_end_is_named(start: Start, concurrent: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    # A thread can't be killed; it's left to itself, and the test has to wait for it.
    deaf = 2.5 if concurrent == "threads" else 60.0
    program = make_program(after=0.3, cleanup=0.0, deaf=deaf, out=str(out))
    outcome = end(start(program, concurrent, stop_notice_s=0.8))
    assert outcome.killed == ("ignore/0",)
    assert outcome.reason == "it was time; ignored the stop and had to be killed: ignore/0"
    assert sorted(out.read_text().splitlines()) == CLEAN
    for thread in threading.enumerate():
        if thread.name == "rlpad-ignore/0":
            assert concurrent == "threads"
            thread.join(5.0)
