"""A consumer that asks many producers at once, again and again, and takes their answers in order.

python -m experiments.launch.consumer_producers --producers 8 --seconds 0.2
"""

from __future__ import annotations

import time
from typing import Any

import rlpad.launch as lp
from experiments.launch.command import command, gather, report


class Producer:
    """Makes something, which takes a while."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._number = lp.node_info().index

    def work(self, step: int) -> list[int]:
        """Returns the step that it worked for and the producer's own number."""
        time.sleep(self._seconds)
        return [step, self._number]


class Consumer:
    """Asks all producers for something in each step, and stops the program after the last."""

    def __init__(self, producers: list[Any], steps: int, out: str):
        # The handles that were passed to the node arrive here as clients.
        self._producers = producers
        self._steps = steps
        self._out = out
        self._taken = 0

    def step(self) -> list[list[int]]:
        """Asks all of them, then waits for the answers."""
        self._taken += 1
        return gather(producer.futures.work(self._taken) for producer in self._producers)

    def run(self) -> None:
        """Takes all steps."""
        results, seconds = [], []
        for _ in range(self._steps):
            began = time.monotonic()
            results.append(self.step())
            seconds.append(time.monotonic() - began)
        # The first step waits until the producers are up, so it doesn't tell how long a step takes.
        report({"last_step": results[-1], "fastest_step_seconds": min(seconds), "steps": results}, self._out)
        # Asks the program to stop: this node's word ends the producers, too.
        lp.stop("the consumer has all it wanted")


def make_program(producers: int = 4, steps: int = 10, seconds: float = 0.1, out: str = "") -> lp.Program:
    """Makes a program of one consumer and many producers.

    Args:
      producers: how many producers there are.
      steps: how often the consumer asks all of them.
      seconds: how long a producer works for an answer.
      out: file for the results, as JSON.
    """
    program = lp.Program("consumer-producers")
    with program.group("producer"):
        handles = [program.add_node(lp.CourierNode(Producer, seconds)) for _ in range(producers)]
    with program.group("consumer"):
        program.add_node(lp.CourierNode(Consumer, handles, steps, out))
    return program


if __name__ == "__main__":
    raise SystemExit(command(make_program))
