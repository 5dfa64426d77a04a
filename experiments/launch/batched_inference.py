"""Many clients ask one model, which answers their requests in batches.

python -m experiments.launch.batched_inference --clients 8 --batch-size 8
"""

from typing import Any

import numpy as np

import rlpad.launch as lp
from experiments.launch.command import command, gather, report

WEIGHTS = np.arange(8).reshape(2, 4)


class Model:
    """Computes a linear layer, and notes how many rows it got each time."""

    def __init__(self, batch_size: int, timeout: float, pad: bool):
        self._sizes: list[int] = []
        # What clients call takes one row; what it's made of takes a batch of them.
        self.compute = lp.batched_handler(batch_size, timeout=timeout, pad_batch=pad)(self._compute)

    def _compute(self, rows: np.ndarray) -> np.ndarray:
        self._sizes.append(len(rows))
        return rows @ WEIGHTS  # raises ValueError if rows aren't of two numbers

    def sizes(self) -> list[int]:
        """Returns how many rows each batch had so far."""
        return self._sizes


class Client:
    """Asks one question after the other."""

    def __init__(self, model: Any, width: int):
        self._model, self._width = model, width

    def ask(self, requests: int) -> dict[str, int]:
        """Returns how many answers were right, and how many wrong or refused."""
        counts = {"right": 0, "wrong": 0, "refused": 0}
        for number in range(requests):
            # Nobody else asks the same, so that the answer to another one's question would be wrong.
            row = np.full(self._width, 1000 * lp.node_info().index + number)
            try:
                answer = self._model.compute(row)
            except ValueError:
                counts["refused"] += 1
            else:
                counts["right" if np.array_equal(answer, row[:2] @ WEIGHTS) else "wrong"] += 1
        return counts


def coordinate(model: Any, clients: list[Any], requests: int, out: str) -> None:
    """Has all clients ask at once."""
    counts = gather(client.futures.ask(requests) for client in clients)
    report({"batch_sizes": model.sizes(), "clients": counts}, out)


def make_program(
    clients: int = 4,
    requests: int = 10,
    batch_size: int = 4,
    timeout: float = 0.05,
    pad: bool = False,
    malformed: bool = False,
    out: str = "",
) -> lp.Program:
    """Makes a program of clients that share a model.

    Args:
      clients: how many clients there are.
      requests: how many requests each of them makes.
      batch_size: most requests that the model gets at once.
      timeout: seconds that a request waits for others.
      pad: whether the model always gets full batches, for models compiled for one size.
      malformed: whether there's one client more, whose requests are of the wrong size.
      out: file for the results, as JSON.
    """
    program = lp.Program("batched-inference")
    # A service answers 16 calls at once if it isn't told otherwise, and no batch can be larger than that.
    threads = {"thread_pool_size": max(16, clients + malformed)}
    model = program.add_node(lp.CourierNode(Model, batch_size, timeout, pad, courier_kwargs=threads), label="model")
    widths = [2] * clients + [3] * malformed
    handles = [program.add_node(lp.CourierNode(Client, model, width), label="client") for width in widths]
    program.add_node(lp.PyNode(coordinate, model, handles, requests, out), label="coordinator")
    return program


if __name__ == "__main__":
    raise SystemExit(command(make_program))
