"""Measures how long programs take from `launch` until all nodes are up, and from `stop` until all are gone.

`python -m benchmarks.launch [--nodes 1 8 32 64] [--rounds 3] [--spawn-up-to 8] [--json]`. Beside rlpad's launcher
`processes` stands `multiprocessing` with its method `spawn`, which is what JAX programs are told to use, in turns, in
one run. A node that uses JAX loads what an actor of rlpad loads (JAX, Haiku, and reverb where it's installed), compiles
a function and calls it before it's up. The figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import multiprocessing
import statistics
import sys
import time
from typing import Any

import rlpad.launch as lp

#: What rlpad is to reach on two cores, in seconds: nodes, JAX or not, ready, stopped.
GOALS = {(8, False): (1.0, 0.5), (32, True): (None, 3.0)}
#: Times that one node with JAX takes, within which 32 are to be ready.
JAX_RATIO = 3.0
#: What a node that uses JAX loads; the fork server has loaded it already.
MODULES = tuple(name for name in ("jax", "jax.numpy", "haiku", "reverb") if importlib.util.find_spec(name) is not None)
_LIMIT_SECONDS = 600.0


class Node:
    """Serves, once it has compiled something if it uses JAX."""

    def __init__(self, uses_jax: bool):
        if uses_jax:
            use_jax()

    def ping(self) -> None:
        """Answers."""


def use_jax() -> float:
    """Loads what an actor loads, compiles a function and calls it."""
    for name in MODULES:
        importlib.import_module(name)
    import jax
    import jax.numpy as jnp
    import numpy as np

    return float(jax.jit(lambda x: jnp.tanh(x @ x).sum())(np.ones((8, 8), np.float32)))


def rlpad(number: int, uses_jax: bool) -> tuple[float, float]:
    """Launches a program; returns the seconds until all nodes are up, and from the stop until none is left."""
    program = lp.Program("benchmark")
    with program.group("node", resources=lp.Resources(threads=1, jax_platform="cpu")):
        for _ in range(number):
            program.add_node(lp.CourierNode(Node, uses_jax))
    began = time.monotonic()
    with lp.launch(program, "processes", preload=MODULES if uses_jax else ()) as run:
        while not all(status.up for status in run.status().values()):
            if run.wait(0.005) or time.monotonic() - began > _LIMIT_SECONDS:
                raise RuntimeError("the nodes didn't come up")
        ready = time.monotonic() - began
        began = time.monotonic()
        run.stop("measured", "completed")
        run.wait(_LIMIT_SECONDS)
        return ready, time.monotonic() - began


def _spawned(uses_jax: bool, ready: Any, stop: Any) -> None:
    if uses_jax:
        use_jax()
    ready.release()
    stop.wait()


def spawn(number: int, uses_jax: bool) -> tuple[float, float]:
    """The same with `multiprocessing`."""
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Semaphore(0), context.Event()
    began = time.monotonic()
    processes = [context.Process(target=_spawned, args=(uses_jax, ready, stop)) for _ in range(number)]
    for process in processes:
        process.start()
    for _ in processes:
        if not ready.acquire(timeout=_LIMIT_SECONDS):
            raise RuntimeError("the processes didn't come up")
    took = time.monotonic() - began
    began = time.monotonic()
    stop.set()
    for process in processes:
        process.join()
    return took, time.monotonic() - began


def measure(numbers: list[int], rounds: int, spawn_up_to: int) -> list[dict[str, Any]]:
    """Returns a row for each way to launch, number of nodes, and JAX or not."""
    found: dict[tuple[str, bool, int], list[tuple[float, float]]] = {}
    for number in range(rounds):
        for uses_jax in (False, True):
            for size in numbers:
                for name, launch in (("rlpad", rlpad), ("spawn", spawn)):
                    if name == "spawn" and size > spawn_up_to:
                        continue
                    print(f"round {number + 1}: {name}, {size} nodes, JAX: {uses_jax}", file=sys.stderr, flush=True)
                    found.setdefault((name, uses_jax, size), []).append(launch(size, uses_jax))
    return [
        {
            "launcher": name,
            "jax": uses_jax,
            "nodes": size,
            "ready": statistics.median(ready for ready, _ in times),
            "stopped": statistics.median(stopped for _, stopped in times),
        }
        for (name, uses_jax, size), times in found.items()
    ]


def report(rows: list[dict[str, Any]]) -> str:
    """Returns the rows as a table, with what they say of the goals."""
    by_key = {(row["launcher"], row["jax"], row["nodes"]): row for row in rows}
    lines = [f"{'':24}{'ready (s)':>12}{'stopped (s)':>14}{'ready, spawn':>15}{'stopped, spawn':>16}"]
    for uses_jax in (False, True):
        for size in sorted({row["nodes"] for row in rows}):
            ours, peer = by_key["rlpad", uses_jax, size], by_key.get(("spawn", uses_jax, size))
            name = f"{size} node{'s' * (size > 1)}{' with JAX' if uses_jax else ''}"
            theirs = f"{peer['ready']:15.2f}{peer['stopped']:16.2f}" if peer else f"{'-':>15}{'-':>16}"
            lines.append(f"{name:24}{ours['ready']:12.2f}{ours['stopped']:14.2f}{theirs}")
    for (size, uses_jax), (ready, stopped) in GOALS.items():
        row = by_key.get(("rlpad", uses_jax, size))
        one = by_key.get(("rlpad", uses_jax, 1))
        if row is None or (ready is None and one is None):
            continue
        limit = ready if ready is not None else JAX_RATIO * one["ready"] if one else 0.0
        met = row["ready"] <= limit and row["stopped"] <= stopped
        what = (
            f"{size} nodes{' with JAX' if uses_jax else ''} ready within {limit:.2f} s and stopped within {stopped:g} s"
        )
        lines.append(f"goal {'met' if met else 'MISSED'}: {what}")
    return "\n".join(lines)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 8, 32, 64], help="numbers of nodes")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--spawn-up-to", type=int, default=8, help="most processes that spawn is measured with")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    flags = parser.parse_args()
    rows = measure(flags.nodes, flags.rounds, flags.spawn_up_to)
    print(json.dumps(rows, indent=2) if flags.json else report(rows))


if __name__ == "__main__":
    main()
