"""Launched programs by their run directories, for the commands that show and stop them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rlpad.errors import UserError
from rlpad.files import nearest_sibling
from rlpad.launch import CallTimeout, NodeStatus, PeerGone
from rlpad.launch.control import ELSEWHERE, KILLED, LAUNCH_FILE, RUNNING, LaunchRecord, read_launch


def open_launch(run: str) -> LaunchRecord:
    """Returns what is known of the launch in a run directory.

    Raises:
      UserError: there is none; names the nearest one beside it.
    """
    record = read_launch(run)
    if record is None:
        hint = nearest_sibling(Path(run).absolute(), LAUNCH_FILE)
        raise UserError(f"no launched run {run!r}: it has no {LAUNCH_FILE}{hint}")
    return record


def find_launches(root: Path) -> dict[Path, LaunchRecord]:
    """Returns all launches below a folder by run directory; one that can't be read is told of on stderr."""
    found = {}
    for name, folders, files in os.walk(root):
        folder = Path(name)
        if LAUNCH_FILE in files:
            try:
                record = read_launch(folder)
            except UserError as error:
                print(f"rlpad: warning: {error}", file=sys.stderr)
                continue
            if record is not None:
                found[folder] = record
        # What lies in a run directory is the run's own.
        own = LAUNCH_FILE in files or "run.json" in files
        folders[:] = [] if own else sorted(child for child in folders if not child.startswith("."))
    return found


def ask_status(record: LaunchRecord) -> dict[str, NodeStatus] | None:
    """Returns where the nodes of a running launch stand, or None if its launching process doesn't answer."""
    with record.client() as client:
        try:
            return client.status()
        except (PeerGone, CallTimeout):
            return None


def how_it_stands(record: LaunchRecord) -> str:
    """Says in one line whether a launch goes on, or how it ended."""
    state = record.state
    if state == RUNNING:
        return state
    if state == KILLED:
        return f"killed: its launching process {record.pid} is gone"
    if state == ELSEWHERE:
        return f"launched on host {record.host}, where alone it can be seen"
    return f"{state}: {record.reason}"
