"""What tests of calls between processes serve, and how they call it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlpad.launch.rpc import Client, Server

WAIT = 10.0


@dataclasses.dataclass
class Point:
    x: Any
    y: Any


class Picky(Exception):
    def __init__(self, first: int, second: int):
        super().__init__(f"{first} and {second}")


class Target:
    """What most tests serve."""

    constant = 3

    def __init__(self) -> None:
        self.count = 0
        self.running = 0
        self.most = 0
        self.lock = threading.Lock()
        self.attribute = functools.partial(int, "7")

    @property
    def explosive(self) -> int:
        raise AssertionError("a property was evaluated")

    @functools.cached_property
    def lazy(self) -> int:
        raise AssertionError("a cached property was evaluated")

    @classmethod
    def of_class(cls) -> str:
        return cls.__name__

    @staticmethod
    def static() -> str:
        return "static"

    def _private(self) -> None: ...

    def __call__(self, value: int) -> int:
        return value + 1

    def echo(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    def same(self, value: Any) -> Any:
        return value

    def double_in_place(self, array: np.ndarray) -> np.ndarray:
        array *= 2
        return array

    def increment(self) -> int:
        self.count += 1
        return self.count

    def sleep(self, seconds: float) -> float:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(seconds)
        with self.lock:
            self.running -= 1
        return seconds

    def raise_value_error(self) -> None:
        raise ValueError("too blue")

    def raise_picky(self) -> None:
        raise Picky(1, 2)

    def raise_exit(self) -> None:
        raise SystemExit(3)

    def unpicklable(self) -> Any:
        return threading.Lock()


def until(condition: Callable[[], Any], what: Callable[[], Any] = lambda: "") -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.005)


@contextlib.contextmanager
def serving(folder: str, target: Any = None, **options: Any) -> Iterator[tuple[Any, Client]]:
    target = Target() if target is None else target
    with (
        Server(target, f"unix:{folder}/s", **options) as server,
        Client(server.address, connect_timeout=2) as client,
    ):
        yield target, client


_CHILD = """
import os, sys, time
from rlpad.launch.rpc import Server

class Target:
    def pid(self): return os.getpid()
    def sleep(self, seconds): time.sleep(seconds)
    def fork(self):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
        return child
    def note(self, path):
        with open(path, "a") as file:
            file.write("x")
        if os.path.getsize(path) == 1:
            os.kill(os.getpid(), 9)
        return os.path.getsize(path)

with Server(Target(), "unix:" + sys.argv[1]):
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def child(path: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", _CHILD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()
