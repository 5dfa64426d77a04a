"""Workers fit a line together: servers hold the parameters in shards, each worker has rows of data of its own.

python -m experiments.launch.parameter_server --workers 4 --servers 2 --refresh-ms 5
"""

import threading
import time
from typing import Any

import numpy as np

import rlpad.launch as lp
from experiments.launch.command import command, gather, report
from experiments.launch.problems import TRUTH, loss_and_gradient

#: Updates are multiples of this, so that floats add up to the same sum in any order: not one can be lost unseen.
GRID = 2.0**-24


class Server:
    """Holds one shard of the parameters; calls come from several threads at once."""

    def __init__(self, size: int):
        self._lock = threading.Lock()
        self._shard, self._updates, self._reads = np.zeros(size), 0, 0

    def get(self) -> dict[str, Any]:
        """Returns the parameters, the updates and reads so far, and the time on the machine's monotonic clock."""
        with self._lock:
            self._reads += 1
            return {"shard": self._shard, "updates": self._updates, "reads": self._reads, "time": time.monotonic()}

    def apply(self, update: np.ndarray) -> None:
        """Adds an update, in a new array: who has read the old one may still look at it."""
        with self._lock:
            self._shard, self._updates = self._shard + update, self._updates + 1


class Worker:
    """Reads from `sources` (servers, or cachers before them), and sends its updates to the servers."""

    def __init__(self, sources: list[Any], servers: list[Any]):
        self._sources, self._servers = sources, servers

    def train(self, steps: int, learning_rate: float) -> tuple[np.ndarray, int, float]:
        """Returns the sum of the updates it sent, how often it read, and the age of the oldest parameters it saw."""
        sent, pulls, oldest, used = np.zeros_like(TRUTH), 0, 0.0, [{"updates": -1}] * len(self._servers)
        while steps:
            asked = time.monotonic()
            answers = gather(source.futures.get() for source in self._sources)
            pulls, oldest = pulls + 1, max(oldest, *(asked - answer["time"] for answer in answers))
            if any(now["updates"] <= before["updates"] for now, before in zip(answers, used, strict=True)):
                # A cacher still gives what was used before; to use it again would be to go too far.
                lp.wait_for_stop(0.001)
                continue
            _, gradient = loss_and_gradient(np.concatenate([a["shard"] for a in answers]), lp.node_info().index)
            update = np.round(-learning_rate * gradient / GRID) * GRID
            shards = zip(self._servers, np.array_split(update, len(self._servers)), strict=True)
            gather(server.futures.apply(shard) for server, shard in shards)
            sent, used, steps = sent + update, answers, steps - 1
        return sent, pulls, oldest


def coordinate(workers: list[Any], servers: list[Any], steps: int, out: str) -> None:
    """Has all workers train at once, then looks at what has come of it."""
    began, size = time.monotonic(), len(workers)
    # Together their steps are of the same length, however many they are.
    trained = gather(worker.futures.train(steps, 0.25 / size) for worker in workers)
    sent, pulls, oldest = zip(*trained, strict=True)
    times = {"pulls": sum(pulls), "oldest_seconds": max(oldest), "seconds": time.monotonic() - began}
    answers = gather(server.futures.get() for server in servers)
    parameters = np.concatenate([answer["shard"] for answer in answers])
    loss = sum(loss_and_gradient(parameters, worker)[0] for worker in range(size)) / size
    results = {"loss": loss, "parameters": parameters.tolist(), "sent": sum(sent).tolist()}
    report(results | times | {name: [a[name] for a in answers] for name in ("updates", "reads")}, out)


def make_program(workers: int = 4, servers: int = 2, steps: int = 60, refresh_ms: int = 0, out: str = "") -> lp.Program:
    """Makes a program of workers that train one model by way of parameter servers.

    Args:
      workers: how many workers there are.
      servers: how many shards the parameters are kept in, 1 to 8.
      steps: updates that each worker sends.
      refresh_ms: milliseconds after which cachers before the servers ask anew (stale after ten times that); 0 for none.
      out: file for the results, as JSON.
    """
    program = lp.Program("parameter-server")
    sizes = [len(shard) for shard in np.array_split(TRUTH, servers)]
    stores = [program.add_node(lp.CourierNode(Server, size), label="server") for size in sizes]
    cachers = [lp.CacherNode(store, refresh_ms, 10 * refresh_ms) for store in stores if refresh_ms]
    sources = [program.add_node(cacher, label="cacher") for cacher in cachers] or stores
    crew = [program.add_node(lp.CourierNode(Worker, sources, stores), label="worker") for _ in range(workers)]
    program.add_node(lp.PyNode(coordinate, crew, stores, steps, out), label="coordinator")
    return program


if __name__ == "__main__":
    raise SystemExit(command(make_program))
