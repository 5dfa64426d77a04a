"""Measures rlpad's RPC beside `multiprocessing.connection` and gRPC, in turns, in one run.

`python -m benchmarks.rpc [--seconds 2] [--rounds 3] [--json]`. Each server is a process of its own on the
same machine; the figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib.util
import json
import os
import pickle
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

#: Bytes of the large array.
ARRAY_BYTES = 16 << 20
#: What rlpad is to reach on two cores: at least, per figure.
GOALS = {"sequential": 8_000.0, "pipelined": 25_000.0, "array": 1.0}

_WINDOW = 200
_GRPC_OPTIONS = [(f"grpc.max_{way}_message_length", 64 << 20) for way in ("send", "receive")]

#: Figures of one peer: sequential (calls/s), p50 and p99 (us), pipelined (calls/s), array (GB/s).
Figures = dict[str, float]


class Peer:
    """One way to call another process.

    Attributes:
      call: calls and returns the answer.
      pipelined: keeps many calls going until a time of `time.perf_counter`; returns how many were answered.
    """

    def __init__(self, call: Callable[[Any], Any], pipelined: Callable[[float], int]):
        self.call = call
        self.pipelined = pipelined


def _futures(submit: Callable[[Any], Any]) -> Callable[[float], int]:
    def run(end: float) -> int:
        waiting: collections.deque[Any] = collections.deque()
        done = 0
        while time.perf_counter() < end:
            while len(waiting) < _WINDOW:
                waiting.append(submit(1))
            for _ in range(_WINDOW // 2):
                waiting.popleft().result(30)
                done += 1
        for future in waiting:
            future.result(30)
            done += 1
        return done

    return run


class _Target:
    def answer(self, value: Any) -> Any:
        """Returns small values, and the size of large ones."""
        return _answer(value)


def _answer(value: Any) -> Any:
    return value.nbytes if isinstance(value, np.ndarray) else value


@contextlib.contextmanager
def _rlpad(address: str) -> Iterator[Peer]:
    from rlpad.launch.rpc import Client

    with Client(f"unix:{address}") as client:
        yield Peer(client.answer, _futures(client.futures.answer))


def _serve_rlpad(address: str) -> None:
    from rlpad.launch.rpc import Server

    with Server(_Target(), f"unix:{address}"):
        _ready_until_end()


@contextlib.contextmanager
def _multiprocessing(address: str) -> Iterator[Peer]:
    import multiprocessing.connection as connections

    connection = connections.Client(address, "AF_UNIX")

    def call(value: Any) -> Any:
        connection.send(value)
        return connection.recv()

    def pipelined(end: float) -> int:
        done = 0
        while time.perf_counter() < end:
            for _ in range(_WINDOW):
                connection.send(1)
            for _ in range(_WINDOW):
                connection.recv()
            done += _WINDOW
        return done

    try:
        yield Peer(call, pipelined)
    finally:
        connection.close()


def _serve_multiprocessing(address: str) -> None:
    import multiprocessing.connection as connections
    import threading

    listener = connections.Listener(address, "AF_UNIX")

    def serve() -> None:
        while True:
            connection = listener.accept()
            with contextlib.suppress(EOFError, ConnectionError):
                while True:
                    connection.send(_answer(connection.recv()))

    threading.Thread(target=serve, daemon=True).start()
    _ready_until_end()


@contextlib.contextmanager
def _grpc(address: str) -> Iterator[Peer]:
    import grpc

    with grpc.insecure_channel(f"unix:{address}", options=_GRPC_OPTIONS) as channel:
        method = channel.unary_unary(
            "/benchmark/answer",
            request_serializer=lambda value: pickle.dumps(value, protocol=5),
            response_deserializer=pickle.loads,
        )
        yield Peer(method, _futures(method.future))


def _serve_grpc(address: str) -> None:
    from concurrent import futures

    import grpc

    handler = grpc.unary_unary_rpc_method_handler(
        lambda request, context: _answer(request),
        request_deserializer=pickle.loads,
        response_serializer=lambda value: pickle.dumps(value, protocol=5),
    )
    server = grpc.server(futures.ThreadPoolExecutor(16), options=_GRPC_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("benchmark", {"answer": handler}),))
    server.add_insecure_port(f"unix:{address}")
    server.start()
    _ready_until_end()
    server.stop(None)


def _ready_until_end() -> None:
    """Tells the parent that this serves; returns when the parent closes the pipe or dies."""
    print("ready", flush=True)
    sys.stdin.read()


_PEERS: dict[str, Callable[[str], contextlib.AbstractContextManager[Peer]]] = {
    "rlpad": _rlpad,
    "multiprocessing": _multiprocessing,
    "grpc": _grpc,
}
_SERVERS = {"rlpad": _serve_rlpad, "multiprocessing": _serve_multiprocessing, "grpc": _serve_grpc}


def measure(peer: Peer, seconds: float) -> Figures:
    """Returns the figures of one peer; takes about `seconds`."""
    share = seconds / 3
    for _ in range(200):
        peer.call(1)
    latencies = []
    start = before = time.perf_counter()
    while before - start < share:
        peer.call(1)
        now = time.perf_counter()
        latencies.append(now - before)
        before = now
    sequential = len(latencies) / (before - start)
    cuts = statistics.quantiles(latencies, n=100)

    start = time.perf_counter()
    pipelined = peer.pipelined(start + share) / (time.perf_counter() - start)

    array = np.zeros(ARRAY_BYTES // 4, np.float32)
    for _ in range(3):
        assert peer.call(array) == ARRAY_BYTES
    count = 0
    start = time.perf_counter()
    while time.perf_counter() - start < share:
        peer.call(array)
        count += 1
    rate = count * ARRAY_BYTES / (time.perf_counter() - start) / 1e9
    return {
        "sequential": sequential,
        "p50": cuts[49] * 1e6,
        "p99": cuts[98] * 1e6,
        "pipelined": pipelined,
        "array": rate,
    }


def run(seconds: float, rounds: int) -> dict[str, Figures]:
    """Returns the median figures by peer."""
    names = [name for name in _PEERS if name != "grpc" or importlib.util.find_spec("grpc")]
    folder = tempfile.mkdtemp(prefix="rlpad-rpc-")
    servers: list[subprocess.Popen[str]] = []
    found: dict[str, list[Figures]] = {name: [] for name in names}
    try:
        for name in names:
            server = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.rpc", "--serve", name, os.path.join(folder, name)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            servers.append(server)
            assert server.stdout is not None
            if server.stdout.readline().strip() != "ready":
                raise RuntimeError(f"the server of {name} didn't come up")
        for _ in range(rounds):
            for name in names:
                with _PEERS[name](os.path.join(folder, name)) as peer:
                    found[name].append(measure(peer, seconds))
    finally:
        for server in servers:
            assert server.stdin is not None
            server.stdin.close()
        for server in servers:
            try:
                server.wait(5)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        shutil.rmtree(folder)
    return {name: {key: statistics.median(one[key] for one in all_) for key in all_[0]} for name, all_ in found.items()}


def _print_table(found: dict[str, Figures]) -> None:
    heads = ("", "sequential/s", "p50 us", "p99 us", "pipelined/s", "16 MiB GB/s")
    keys = ("sequential", "p50", "p99", "pipelined", "array")
    print("{:<18}{:>14}{:>10}{:>10}{:>14}{:>14}".format(*heads))
    row = "{:<18}{:>14,.0f}{:>10.0f}{:>10.0f}{:>14,.0f}{:>14.2f}"
    for name, figures in found.items():
        print(row.format(name, *(figures[key] for key in keys)))
    print("{:<18}{:>14,.0f}{:>34,.0f}{:>14.2f}".format("goal", *GOALS.values()))
    for name, figures in found.items():
        if name != "rlpad":
            ratios = (found["rlpad"][key] / figures[key] for key in keys)
            print("{:<18}{:>14.2f}{:>10.2f}{:>10.2f}{:>14.2f}{:>14.2f}".format(f"rlpad/{name}", *ratios))
    if "grpc" not in found:
        print("gRPC isn't installed, so it wasn't measured (pip install grpcio)")
    for key, goal in GOALS.items():
        print(f"{key}: goal {'reached' if found['rlpad'][key] >= goal else 'MISSED'}")


def main() -> None:
    """Runs the benchmark and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per peer and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--serve", nargs=2, metavar=("PEER", "PATH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        name, path = arguments.serve
        _SERVERS[name](path)
        return
    found = run(arguments.seconds, arguments.rounds)
    if arguments.json:
        print(json.dumps({"figures": found, "goals": GOALS, "cpus": os.cpu_count()}))
    else:
        _print_table(found)


if __name__ == "__main__":
    main()
