"""The same parameters to the last bit for any number of evaluators, and though one of them is late."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlpad.launch as lp
from experiments.launch.evolution_strategies import Evaluator, evaluate, make_program, noise
from experiments.launch.problems import sphere

from .conftest import Results

GENERATIONS = 12


def theta_of(results_of: Results, launcher: str, **options: Any) -> tuple[list[float], int]:
    """Returns the parameters after some generations, and how many evaluators were in time."""
    found = results_of(make_program, launcher, **{"generations": GENERATIONS, **options})
    return found["theta"], found["evaluators_in_time"]


@pytest.fixture(scope="module")
def expected() -> list[float]:
    """The parameters after some generations, computed here."""
    theta = np.full(4, 2.0)
    for generation in range(GENERATIONS):
        seeds = [(3, generation, member) for member in range(16)]
        samples, sigma = np.stack([noise(seed) for seed in seeds]), 0.93**generation
        order = sorted(range(16), key=lambda n: sphere(theta + sigma * samples[n]), reverse=True)
        ranks = np.array([order.index(n) / 15 - 0.5 for n in range(16)])
        theta = theta + 2 * sigma * ranks @ samples / 16
    return theta.tolist()


@pytest.mark.parametrize("evaluators", [1, 3, 16])
def test_same_theta_for_any_number(results_of: Results, launcher: str, expected: list[float], evaluators: int) -> None:
    assert theta_of(results_of, launcher, seed=3, evaluators=evaluators) == (expected, evaluators)


def test_another_seed_leads_elsewhere(results_of: Results, expected: list[float]) -> None:
    assert theta_of(results_of, "inline", seed=4)[0] != expected


def test_improves(results_of: Results, concurrent: str) -> None:
    found = results_of(make_program, concurrent, generations=50)
    assert sphere(np.full(4, 2.0)) == 16.0
    assert found["value"] == sphere(np.array(found["theta"])) < 1e-3


def test_a_straggler_is_left_behind(results_of: Results, concurrent: str, expected: list[float]) -> None:
    # It takes longer than the test may, and so does its part of a generation.
    found = theta_of(results_of, concurrent, seed=3, evaluators=3, lag=60.0, patience=2.0)
    assert found == (expected, 2)


def test_evaluators_share_the_work(results_of: Results, concurrent: str) -> None:
    seconds = {}
    for evaluators in (1, 4):
        found = results_of(make_program, concurrent, evaluators=evaluators, generations=3, seconds=0.02)
        seconds[evaluators] = found["fastest_generation_seconds"]
    assert seconds[1] >= 16 * 0.02
    assert 4 * 0.02 <= seconds[4] < seconds[1] / 2


class Recorder:
    """Stands for a client of an evaluator: notes what it's asked, and may never answer."""

    def __init__(self, answers: bool = True):
        self.asked: list[tuple[Any, ...]] = []
        self._answers = answers

    @property
    def futures(self) -> Recorder:
        return self

    def evaluate(self, *args: Any, timeout: float) -> Future[float]:
        """Answers with the last number of the seed."""
        self.asked.append(args)
        future: Future[float] = Future()
        if self._answers:
            future.set_result(float(args[-1][-1]))
        else:
            future.set_exception(lp.CallTimeout(f"not within {timeout:g} s"))
        return future


def test_seeds_travel_and_not_noise() -> None:
    theta, seeds = np.arange(4.0), [(7, 2, member) for member in range(5)]
    crew = [Recorder(), Recorder()]
    assert evaluate(list(crew), theta, 0.5, seeds, 1.0) == {seed: float(seed[2]) for seed in seeds}
    asked = [args for recorder in crew for args in recorder.asked]
    assert [len(recorder.asked) for recorder in crew] == [3, 2]
    assert sorted(seed for _, _, seed in asked) == seeds
    assert all(sent is theta and sigma == 0.5 for sent, sigma, _ in asked)


def test_work_of_late_evaluators_is_given_to_others() -> None:
    seeds = [(0, 0, member) for member in range(7)]
    late, good, other = Recorder(answers=False), Recorder(), Recorder()
    crew = [good, late, other]
    assert evaluate(crew, np.zeros(4), 1.0, seeds, 1.0) == {seed: float(seed[2]) for seed in seeds}
    assert crew == [good, other]
    assert sorted(seed for r in (good, other) for _, _, seed in r.asked) == seeds
    with pytest.raises(lp.CallTimeout, match="not within 1 s"):
        evaluate([late, Recorder(answers=False)], np.zeros(4), 1.0, seeds, 1.0)


def test_evaluation(tmp_path: Path) -> None:
    program = lp.Program("p")
    handle = program.add_node(lp.CourierNode(Evaluator, 0.0), label="evaluator")
    with lp.launch(program, "threads") as run:
        theta, seed = np.array([1.0, 2.0, -1.0, 0.0]), (1, 2, 3)
        expected = -float(np.sum((theta + 0.25 * np.random.default_rng([1, 2, 3]).normal(size=4)) ** 2))
        assert run.client(handle).evaluate(theta, 0.25, seed) == expected
