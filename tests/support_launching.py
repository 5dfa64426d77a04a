"""Launched programs, real ones and those that only a file tells of."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from pathlib import Path
from typing import Any

import rlpad.launch as lp
from rlpad.launch import linux
from rlpad.launch.control import LAUNCH_FILE, LaunchRecord, read_launch
from tests.launch.example_nodes import Service, Waits


def waiting(actors: int = 2) -> lp.Program:
    """Makes a program that goes on until it's stopped."""
    program = lp.Program("waiting")
    program.add_node(lp.CourierNode(Service), label="service")
    with program.group("actor"):
        for _ in range(actors):
            program.add_node(lp.PyClassNode(Waits))
    return program


def record_of(run_dir: Path) -> LaunchRecord:
    """Returns the record in a run directory, which must be there."""
    record = read_launch(run_dir)
    assert record is not None
    return record


def write_record(run_dir: Path, record: LaunchRecord, **changes: Any) -> bytes:
    """Writes a record as a launcher might have left it; returns the file's content."""
    run_dir.mkdir(parents=True, exist_ok=True)
    data = json.dumps({**dataclasses.asdict(record), **changes}).encode()
    (run_dir / LAUNCH_FILE).write_bytes(data)
    return data


def made_up(**changes: Any) -> LaunchRecord:
    """Makes the record of a launch by this process that never was."""
    record = LaunchRecord(
        program="made-up",
        launcher="threads",
        nodes={"n": ["n/0"]},
        processes={},
        pid=os.getpid(),
        start_ticks=linux.start_ticks(os.getpid()) or 0,
        boot_id=linux.boot_id(),
        host=socket.gethostname(),
        started="2025-01-01T00:00:00.000+00:00",
        control="unix:/nowhere/control",
    )
    return dataclasses.replace(record, **changes)
