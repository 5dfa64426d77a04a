"""The consumer gets every answer in order, waits for all producers at once, and ends the program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rlpad.launch as lp
from experiments.launch.consumer_producers import make_program
from tests.launch.conftest import Start, end

from .conftest import Results


@pytest.mark.parametrize("producers", [1, 5])
def test_answers_are_in_order_in_each_step(results_of: Results, launcher: str, producers: int) -> None:
    found = results_of(make_program, launcher, producers=producers, steps=10, seconds=0.0)
    assert found["steps"] == [[[step, number] for number in range(producers)] for step in range(1, 11)]


def test_a_step_takes_as_long_as_its_slowest_producer(results_of: Results, concurrent: str) -> None:
    found = results_of(make_program, concurrent, producers=6, steps=3, seconds=0.1)
    assert 0.1 <= found["fastest_step_seconds"] < 0.3  # one after the other they would take 0.6


def test_the_consumer_ends_the_program(start: Start, launcher: str) -> None:
    outcome = end(start(make_program(2, steps=1, seconds=0.0), launcher))
    assert outcome == lp.Outcome("completed", "the consumer has all it wanted", 0)


def test_a_test_takes_the_steps_itself(start: Start, concurrent: str, tmp_path: Path) -> None:
    program = make_program(3, seconds=0.0, out=str(tmp_path / "results.json"))
    node: Any = program.nodes["consumer/0"]
    node.disable_run()
    run = start(program, concurrent)
    consumer = run.client(node.create_handle())
    for step in range(1, 11):
        assert consumer.step() == [[step, 0], [step, 1], [step, 2]]
    assert run.outcome is None
    run.stop("enough", "completed")
    assert end(run).reason == "enough"
    assert not (tmp_path / "results.json").exists()
