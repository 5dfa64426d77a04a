"""The model is learnt whatever the number of workers, no update is lost, and cachers spare the servers reads."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from experiments.launch.parameter_server import Server, make_program
from experiments.launch.problems import TRUTH, loss_and_gradient

from .conftest import Results


def check_learnt(found: dict[str, Any], updates: int) -> None:
    """Checks that the model fits, and that the servers hold the exact sum of all that was sent."""
    assert loss_and_gradient(0 * TRUTH, 0)[0] > 100
    assert found["loss"] < 1e-3
    # Roughly, as a worker that comes last moves alone: it fits its own rows, and others only as far as they agree.
    np.testing.assert_allclose(found["parameters"], TRUTH, atol=0.2)
    assert found["parameters"] == found["sent"]
    assert found["updates"] == [updates] * len(found["updates"])


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (4, 1), (4, 3)])
def test_learns_and_loses_no_update(results_of: Results, launcher: str, workers: int, servers: int) -> None:
    found = results_of(make_program, launcher, workers=workers, servers=servers, steps=60)
    check_learnt(found, workers * 60)
    assert len(found["reads"]) == servers
    # Without cachers each pull is a read at each server; the last one is the coordinator's.
    assert found["pulls"] == workers * 60
    assert found["reads"] == [found["pulls"] + 1] * servers


@pytest.mark.parametrize("workers", [1, 8])
def test_cachers_read_once_per_interval(results_of: Results, concurrent: str, workers: int) -> None:
    found = results_of(make_program, concurrent, workers=workers, servers=2, steps=40, refresh_ms=10)
    check_learnt(found, workers * 40)
    for reads in found["reads"]:
        # No worker uses parameters twice, so there were at least as many reads as one of them took steps.
        assert 40 <= reads - 1 <= 1 + found["seconds"] / 0.01
    if workers == 8:
        assert found["pulls"] > 2 * max(found["reads"])


def test_nobody_sees_stale_parameters(results_of: Results, concurrent: str) -> None:
    found = results_of(make_program, concurrent, workers=4, steps=40, refresh_ms=5)
    # They're seldom asked for just when they were read, and never given after ten intervals.
    assert 0.0 < found["oldest_seconds"] < 0.05


class SlowUpdate:
    """An update that lets other threads in while it's added."""

    __array_ufunc__ = None  # NumPy leaves the addition to this class

    def __radd__(self, shard: np.ndarray) -> np.ndarray:
        """Adds one, after a moment."""
        time.sleep(0.001)
        return shard + 1.0


def test_updates_at_the_same_time() -> None:
    server = Server(2)
    update: Any = SlowUpdate()
    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(server.apply, update) for _ in range(64)]:
            future.result()
    answer = server.get()
    assert answer["shard"].tolist() == [64.0, 64.0]
    assert answer["updates"] == 64
