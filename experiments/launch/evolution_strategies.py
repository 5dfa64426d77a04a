"""Evolution strategies: evaluators try parameters with noise, which they make from a seed as the evolver does itself.

python -m experiments.launch.evolution_strategies --evaluators 8 --seconds 0.02
"""

import time
from typing import Any

import numpy as np

import rlpad.launch as lp
from experiments.launch.command import command, report
from experiments.launch.problems import sphere

Seed = tuple[int, int, int]


def noise(seed: Seed) -> np.ndarray:
    """Returns what a seed stands for: three numbers on the wire, however long the noise, and equal in every process."""
    return np.random.default_rng(seed).normal(size=4)


class Evaluator:
    """Says how good parameters are."""

    def __init__(self, seconds: float):
        self._seconds = seconds

    def evaluate(self, theta: np.ndarray, sigma: float, seed: Seed) -> float:
        """Returns the fitness of `theta` with the noise of a seed."""
        lp.wait_for_stop(self._seconds)  # stands for an episode; unlike a sleep it ends with the program
        return -sphere(theta + sigma * noise(seed))


def evolve(evaluators: list[Any], population: int, generations: int, seed: int, patience: float, out: str) -> None:
    """Moves the parameters towards noise that did well."""
    crew, theta, seconds = list(evaluators), np.full(4, 2.0), []
    for evaluator in crew:
        lp.list_methods(evaluator)  # waits until it's up, for what has only just been started isn't late
    for generation in range(generations):
        began, sigma = time.monotonic(), 0.93**generation
        seeds = [(seed, generation, member) for member in range(population)]
        fitness = evaluate(crew, theta, sigma, seeds, patience)
        # Ranks, from -0.5 to 0.5, instead of the fitness itself, which may be of any size.
        ranks = np.argsort(np.argsort([fitness[seed] for seed in seeds])) / (population - 1) - 0.5
        # In the order of the seeds, whoever answered first, so that the sum is the same to the last bit.
        theta = theta + 2 * sigma * ranks @ np.stack([noise(seed) for seed in seeds]) / population
        seconds.append(time.monotonic() - began)
    results = {"theta": theta.tolist(), "value": sphere(theta), "evaluators_in_time": len(crew)}
    report({**results, "fastest_generation_seconds": min(seconds)}, out)


def evaluate(crew: list[Any], theta: np.ndarray, sigma: float, seeds: list[Seed], patience: float) -> dict[Seed, float]:
    """Has all seeds evaluated; an evaluator that is late is struck off the crew, and others do its work."""
    fitness: dict[Seed, float] = {}
    while missing := [seed for seed in seeds if seed not in fitness]:
        work = [(crew[number % len(crew)], seed) for number, seed in enumerate(missing)]
        futures = [evaluator.futures.evaluate(theta, sigma, seed, timeout=patience) for evaluator, seed in work]
        for (evaluator, seed), future in zip(work, futures, strict=True):
            try:
                fitness[seed] = future.result()
            except lp.CallTimeout:
                crew[:] = [other for other in crew if other is not evaluator]
                if not crew:
                    raise
    return fitness


def make_program(
    evaluators: int = 4,
    generations: int = 60,
    seed: int = 0,
    seconds: float = 0.0,
    lag: float = 0.0,
    patience: float = 60.0,
    out: str = "",
) -> lp.Program:
    """Makes a program that minimises a function by evolution strategies.

    Args:
      evaluators: how many evaluators there are; the result doesn't depend on it.
      generations: how many generations of 16 are evaluated.
      seed: seed of the noise.
      seconds: how long an evaluation takes.
      lag: how many seconds longer it takes the first evaluator.
      patience: seconds that an evaluator has for its part of a generation.
      out: file for the results, as JSON.
    """
    program = lp.Program("evolution-strategies")
    times = [seconds + lag * (number == 0) for number in range(evaluators)]
    # One evaluation at a time, as if each kept a processor busy.
    nodes = [lp.CourierNode(Evaluator, time, courier_kwargs={"thread_pool_size": 1}) for time in times]
    crew = [program.add_node(node, label="evaluator") for node in nodes]
    program.add_node(lp.PyNode(evolve, crew, 16, generations, seed, patience, out), label="evolver")
    return program


if __name__ == "__main__":
    raise SystemExit(command(make_program))
