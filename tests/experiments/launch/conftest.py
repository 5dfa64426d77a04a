"""What the tests of the programs share: fixtures of the launchers' tests, and a way to get a program's results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rlpad.launch as lp
from tests.launch.conftest import (
    Start,
    concurrent,
    end,
    launcher,
    nothing_left,
    start,
)

__all__ = ["concurrent", "launcher", "nothing_left", "start"]

Results = Callable[..., dict[str, Any]]


@pytest.fixture
def results_of(start: Start, tmp_path: Path) -> Results:
    """Runs a program to its end, which must be a good one, and returns what it reported."""

    def run(make_program: Callable[..., lp.Program], launcher: str, **options: Any) -> dict[str, Any]:
        out = tmp_path / "results.json"
        out.unlink(missing_ok=True)
        outcome = end(start(make_program(**options, out=str(out)), launcher))
        assert (outcome.status, outcome.exit_code, outcome.killed) == ("completed", 0, ())
        return json.loads(out.read_text())

    return run
