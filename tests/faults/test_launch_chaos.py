"""A program whose nodes are killed, stopped and terminated at random (`make chaos`).

RLPAD_CHAOS_SEED=... replays what a seed drew; RLPAD_CHAOS_SECONDS=... makes it longer or shorter.
"""

from __future__ import annotations

import collections
import json
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rlpad.launch as lp
from tests.support_holdings import holdings
from tests.support_training import alive, gone

from .chaos_nodes import RETRIES, Caller, Calls, Relay, Store, read_notes, runs_by_token

pytestmark = pytest.mark.chaos

SECONDS = float(os.environ.get("RLPAD_CHAOS_SECONDS", "120"))
STORES, RELAYS, CALLERS, THREADS = 4, 2, 6, 4
#: Seconds after which a node counts as stuck.
BOUND = 4.0
#: Seconds for which a node is started again, connected to, and waited for on a machine that has much to do.
MARGIN = 7.0
POLICY = lp.Restart(max_restarts=100_000, backoff_s=0.0001)


class Killer:
    """Sends signals to nodes, at times and in ways that a seed draws."""

    def __init__(self, run: lp.Run, draw: random.Random):
        self._run = run
        self._draw = draw
        self._paused: dict[int, float] = {}
        self.sent: collections.Counter[str] = collections.Counter()
        #: Processes that are to die.
        self.doomed: set[int] = set()

    def kill(self, seconds: float) -> None:
        """Goes on for so long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._pause(self._draw.uniform(0.2, 1.6))
            assert self._run.outcome is None, self._run.outcome
            self._hit()
        while self._paused:
            self._pause(0.1)

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.05)
            for pid, resumed_at in list(self._paused.items()):
                if time.monotonic() >= resumed_at:
                    del self._paused[pid]
                    os.kill(pid, signal.SIGCONT)

    def _hit(self) -> None:
        # One draw each, whatever stands: so that a seed draws the same for as long as nodes come up in time.
        chosen, how, pause = self._draw.random(), self._draw.random(), self._draw.uniform(0.1, BOUND - 2.8)
        status = self._run.status()
        spared = self.doomed | set(self._paused)
        nodes = [node for node in status.values() if node.pid is not None and node.pid not in spared]
        if not nodes:
            return
        node = nodes[int(chosen * len(nodes))]
        assert node.pid is not None
        kinds = (("SIGKILL", 0.4), ("SIGTERM", 0.6), ("SIGSTOP", 0.85), ("SIGSTOP and SIGCONT", 1.0))
        kind = next(name for name, limit in kinds if how < limit)
        if kind == "SIGTERM" and not node.up:  # it isn't listened to so early
            kind = "SIGKILL"
        self.sent[kind] += 1
        os.kill(node.pid, getattr(signal, kind.partition(" ")[0]))
        if kind == "SIGSTOP and SIGCONT":
            self._paused[node.pid] = time.monotonic() + pause
        else:
            self.doomed.add(node.pid)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files; short, as sockets are bound there."""
    path = tempfile.mkdtemp(prefix="t")
    monkeypatch.setattr(tempfile, "tempdir", path)
    yield Path(path)
    monkeypatch.undo()
    shutil.rmtree(path)


def make_program(calls: Path, records: Path) -> tuple[lp.Program, list[lp.Handle], list[lp.Handle]]:
    """Makes stores, relays that ask stores, and callers of both."""
    program = lp.Program("chaos")
    with program.group("store", on_failure=POLICY):
        stores = [program.add_node(lp.CourierNode(Store, str(calls))) for _ in range(STORES)]
    with program.group("relay", on_failure=POLICY):
        relays = [program.add_node(lp.CourierNode(Relay, stores)) for _ in range(RELAYS)]
    with program.group("caller", on_failure=POLICY):
        for _ in range(CALLERS):
            program.add_node(lp.PyClassNode(Caller, str(records), stores, relays))
    return program, stores, relays


def wait_for(condition: Callable[[], Any], seconds: float, what: Callable[[], Any]) -> None:
    """Waits until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def test_nodes_that_are_killed_at_random(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("RLPAD_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
    with capsys.disabled():
        print(f"\nRLPAD_CHAOS_SEED={seed}")
    calls, records = tmp_path / "calls", tmp_path / "records"
    calls.mkdir()
    records.mkdir()
    before = holdings()
    program, stores, relays = make_program(calls, records)
    run = lp.launch(program, "processes", seed=seed, heartbeat_timeout_s=BOUND, run_dir=str(tmp_path / "run"))
    try:
        killer = Killer(run, random.Random(seed))
        told = call_while(lambda: killer.kill(SECONDS), run, stores, relays, seed)
        deaths = check_recovery(run, killer, records)
        run.stop("enough", "completed")
        began = time.monotonic()
        assert run.wait(30)
        assert time.monotonic() - began < 12
        assert (run.outcome.status, run.outcome.reason, run.outcome.killed) == ("completed", "enough", ())
    finally:
        run.kill()
    assert gone(killer.doomed, 1.0)
    wait_for(lambda: holdings() == before, 5.0, lambda: (before, holdings()))
    assert os.listdir(folder) == []
    told += [json.loads(line) for line in read_notes(records)]
    hang = BOUND + MARGIN + POLICY.delay(max(deaths))
    outcomes = check_calls(told, runs_by_token(calls), hang)
    assert {"value", "PeerGone", "CallTimeout", "Refused"} == {outcome for _, outcome in outcomes}
    with capsys.disabled():
        print(dict(killer.sent), dict(outcomes), f"slowest {max(record['seconds'] for record in told):.1f} s")


def call_while(
    kill: Callable[[], None], run: lp.Run, stores: list[lp.Handle], relays: list[lp.Handle], seed: int
) -> list[dict[str, Any]]:
    """Makes calls from threads of the launching process while nodes are killed; returns what they came to."""
    told: list[dict[str, Any]] = []
    over = threading.Event()
    named = {handle.name: run.client(handle) for handle in stores}

    def work(number: int) -> None:
        calls = Calls(f"thread {number}", named, [run.client(relay) for relay in relays], random.Random(seed + number))
        calls.tell = told.append
        while not over.wait(0.005):
            calls.make()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    try:
        kill()
    finally:
        over.set()
        for thread in threads:
            thread.join(3 * (BOUND + MARGIN))
    assert not any(thread.is_alive() for thread in threads), "a call hangs"
    return told


def check_recovery(run: lp.Run, killer: Killer, records: Path) -> list[int]:
    """Checks that all nodes are back, each dead as often as it was killed, and that callers get on; returns deaths."""

    def back() -> bool:
        return all(node.up and node.pid not in killer.doomed for node in run.status().values())

    wait_for(back, BOUND + MARGIN + 30.0, run.status)
    status = run.status()
    deaths = [node.epoch - 1 for node in status.values()]
    assert sum(deaths) == len(killer.doomed)
    assert not any(alive(pid) for pid in killer.doomed)
    callers = {name: node for name, node in status.items() if name.startswith("caller/")}
    files = {name: records / f"{name.replace('/', '-')}-{node.pid}" for name, node in callers.items()}
    sizes = {name: path.stat().st_size if path.exists() else 0 for name, path in files.items()}
    wait_for(
        lambda: all(path.exists() and path.stat().st_size > sizes[name] for name, path in files.items()),
        BOUND + MARGIN,
        lambda: "a caller doesn't get on",
    )
    return deaths


def check_calls(
    told: list[dict[str, Any]], runs: collections.Counter[str], hang: float
) -> collections.Counter[tuple[str, str]]:
    """Checks what each call has come to, and how often it has run."""
    for token, times in runs.items():
        assert times <= 1 + int(token.rpartition(":")[2]), f"{token} ran {times} times"
    outcomes: collections.Counter[tuple[str, str]] = collections.Counter()
    for record in told:
        token, kind, outcome = record["token"], record["kind"], record["outcome"]
        outcomes[kind, outcome] += 1
        may = {"value", "PeerGone"}
        limit = hang
        if "retr" in kind:
            may, limit = {"value"}, 3 * hang
        elif kind == "refuse":
            may = {"Refused", "PeerGone"}
        elif "timeout" in kind:
            may, limit = {"value", "PeerGone", "CallTimeout"}, float(kind.rpartition(" ")[2]) + 2.0
        assert outcome in may, record
        assert record["seconds"] < limit, record
        assert outcome not in ("value", "Refused") or runs[token] >= 1, f"{token} was answered but never ran"
    return outcomes


def test_the_checks_find_what_is_wrong() -> None:
    good = {"token": "a:1:0", "kind": "plain", "outcome": "value", "seconds": 0.1}
    check_calls([good], collections.Counter(["a:1:0"]), 1.0)
    for change, runs in (
        ({"outcome": "wrong value 3"}, ["a:1:0"]),
        ({"outcome": "CallTimeout"}, ["a:1:0"]),
        ({"seconds": 2.0}, ["a:1:0"]),
        ({}, []),
        ({}, ["a:1:0", "a:1:0"]),
        ({"kind": "retry", "outcome": "PeerGone"}, ["a:1:0"]),
        ({"token": f"a:1:{RETRIES}"}, [f"a:1:{RETRIES}"] * (RETRIES + 2)),
    ):
        with pytest.raises(AssertionError):
            check_calls([good | change], collections.Counter(runs), 1.0)
