"""Batches are never too large, nobody waits for ever for a full one, and each client gets its own answers."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.launch.batched_inference import make_program
from tests.launch.conftest import LONG

from .conftest import Results


def check_answers(found: dict[str, Any], clients: int, requests: int) -> None:
    """Checks that every client got the right answer to each of its requests."""
    assert found["clients"][:clients] == [{"right": requests, "wrong": 0, "refused": 0}] * clients


@pytest.mark.parametrize("size", [3, 16])
def test_full_batches_wait_for_nothing(results_of: Results, concurrent: str, size: int) -> None:
    found = results_of(make_program, concurrent, clients=size, requests=5, batch_size=size, timeout=LONG)
    check_answers(found, size, 5)
    assert found["batch_sizes"] == [size] * 5


@pytest.mark.parametrize("size", [3, 16])
def test_no_batch_is_too_large(results_of: Results, concurrent: str, size: int) -> None:
    found = results_of(make_program, concurrent, clients=size + 2, requests=4, batch_size=size, timeout=0.1)
    check_answers(found, size + 2, 4)
    assert sum(found["batch_sizes"]) == (size + 2) * 4
    assert 1 < max(found["batch_sizes"]) <= size


def test_a_partial_batch_goes_when_its_time_is_over(results_of: Results, concurrent: str) -> None:
    found = results_of(make_program, concurrent, clients=2, requests=3, batch_size=16, timeout=0.05)
    check_answers(found, 2, 3)
    assert sum(found["batch_sizes"]) == 6
    assert max(found["batch_sizes"]) <= 2


def test_padded_batches_are_always_full(results_of: Results, concurrent: str) -> None:
    found = results_of(make_program, concurrent, clients=2, requests=3, batch_size=5, timeout=0.02, pad=True)
    check_answers(found, 2, 3)
    assert 3 <= len(found["batch_sizes"]) <= 6
    assert set(found["batch_sizes"]) == {5}


def test_a_malformed_request_harms_nobody_else(results_of: Results, launcher: str) -> None:
    found = results_of(make_program, launcher, clients=3, requests=4, batch_size=4, timeout=0.02, malformed=True)
    check_answers(found, 3, 4)
    assert found["clients"][3] == {"right": 0, "wrong": 0, "refused": 4}


def test_inline_each_request_is_a_batch(results_of: Results) -> None:
    found = results_of(make_program, "inline", clients=3, requests=4, batch_size=3, timeout=LONG)
    check_answers(found, 3, 4)
    assert found["batch_sizes"] == [1] * 12
