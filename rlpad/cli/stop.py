"""`rlpad stop`: stops a launched program, and says how it ended."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import tyro

from rlpad.cli.launched import ask_status, how_it_stands, open_launch
from rlpad.cli.parse import parse
from rlpad.cli.text import shown
from rlpad.errors import UserError
from rlpad.launch import CallTimeout, PeerGone, linux
from rlpad.launch.control import ELSEWHERE, RUNNING, LaunchRecord

#: Exit code of a run that goes on.
STILL_RUNNING = 1
#: Seconds that a killed launching process, and then its nodes, get to be gone.
KILL_SECONDS = 10.0
_POLL_SECONDS = 0.05


@dataclasses.dataclass(frozen=True)
class StopFlags:
    """Flags of `rlpad stop`."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run directory of the program to stop."""
    timeout: float = 30.0
    """Seconds to wait for its end."""
    kill: bool = False
    """Kill the launching process (SIGKILL) if it hasn't ended by then; its nodes die with it, nothing is saved."""
    json: bool = False
    """Print one JSON object."""


def main(arguments: Sequence[str]) -> int:
    """Asks a program to stop, waits for its end and prints how it ended."""
    flags = parse(
        StopFlags,
        arguments,
        prog="rlpad stop",
        description=(
            "Stops a launched program as SIGTERM would, and says how it ended.\n\n"
            "Exit codes: 0 if it has ended, 1 if it goes on after --timeout, "
            "2 for a request that can't be carried out, such as for a run that isn't running."
        ),
    )
    if not flags.timeout > 0:
        raise UserError(f"--timeout must be above 0, got {flags.timeout:g}")
    record = open_launch(flags.run)
    record.clear_remains()
    if record.state != RUNNING:
        here = " here" if record.state == ELSEWHERE else ""
        raise UserError(f"{flags.run!r} isn't running{here}: {how_it_stands(record)}")
    began = time.monotonic()
    answered = _ask(record)
    ended = _wait(lambda: _now(flags.run, record).state != RUNNING, flags.timeout)
    if not ended and flags.kill:
        ended = _kill(record)
    record = _now(flags.run, record)
    seconds = time.monotonic() - began
    outcome = how_it_stands(record)
    if not ended:
        why = "" if answered else ", its launching process doesn't answer"
        outcome = f"still running after {flags.timeout:g} s{why}; --kill kills it"
    if flags.json:
        row = {"run": flags.run, "ended": ended, "status": record.state, "description": outcome, "seconds": seconds}
        print(json.dumps(row))
    else:
        print(f"{shown(Path(flags.run))}: {outcome}" + (f" ({seconds:.1f} s)" if ended else ""))
    return 0 if ended else STILL_RUNNING


def _ask(record: LaunchRecord) -> bool:
    """Asks a launch to stop; returns whether it answered, or ended before it could."""
    with record.client() as client:
        try:
            client.stop("stopped by rlpad stop")
        except PeerGone:
            return record.state != RUNNING
        except CallTimeout:
            return False
    return True


def _now(run: str, record: LaunchRecord) -> LaunchRecord:
    """Returns what is known of a launch by now; one whose place another has taken has ended."""
    found = open_launch(run)
    if (found.pid, found.started) != (record.pid, record.started):
        return dataclasses.replace(record, status="interrupted", reason="another program runs there now")
    return found


def _kill(record: LaunchRecord) -> bool:
    """Kills a launching process; returns whether it and its nodes have ended."""
    nodes = [status.pid for status in (ask_status(record) or {}).values() if status.pid is not None]
    started = {pid: linux.start_ticks(pid) for pid in nodes}
    killed = record.kill(KILL_SECONDS)
    gone = _wait(lambda: all(linux.start_ticks(pid) != ticks for pid, ticks in started.items() if ticks), KILL_SECONDS)
    record.clear_remains()
    return killed and gone


def _wait(condition: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return met
