"""Nodes that tests run: at module level, so that other processes can import them."""

from __future__ import annotations

import functools
import threading
import time
from pathlib import Path
from typing import Any

import rlpad.launch as lp

from .conftest import LONG, Start, wait_until


class CustomError(Exception):
    """An exception of the user's own."""


def write(path: str, text: str) -> None:
    """Appends a line to a file; whole lines, whoever writes beside."""
    with open(path, "a") as file:
        file.write(text + "\n")


def lines(path: Path) -> list[str]:
    """Returns a file's lines; none if it isn't there."""
    return path.read_text().splitlines() if path.exists() else []


def fail(error: BaseException) -> None:
    """Raises."""
    raise error


class Runner:
    """Has a `run`."""

    def __init__(self, path: str, name: str = "run"):
        self._path, self._name = path, name

    def run(self) -> None:
        """Writes that it ran."""
        write(self._path, self._name)

    def close(self) -> None:
        """Writes that it was closed."""
        write(self._path, f"close {self._name}")

    def answer(self) -> str:
        """Can be called."""
        return self._name


class Neither:
    """Is no worker and has no `run`."""

    def __init__(self, path: str):
        write(path, "made")
        self._path = path

    def close(self) -> None:
        """Writes that it was closed."""
        write(self._path, "closed")


class Worker:
    """Takes so many steps, each possible at every `every`th try only, and writes down what is done to it."""

    stall_grace_s = 30.0

    def __init__(
        self,
        path: str,
        steps: int = 3,
        *,
        every: int = 1,
        fails_at: str = "",
        name: str = "worker",
        other: Any = None,
    ):
        self._path, self._steps, self._every, self._fails_at, self._name = path, steps, every, fails_at, name
        self._other = other
        self._tries = 0
        self.taken = 0
        self._note("made")

    def _note(self, what: str) -> None:
        write(self._path, f"{self._name} {what}")
        if what == self._fails_at:
            raise CustomError(what)

    @property
    def finished(self) -> bool:
        """Whether all steps are taken."""
        return self.taken >= self._steps

    def step(self) -> bool:
        """Takes a step, if it's one of the tries."""
        self._tries += 1
        if self._tries % self._every:
            return False
        self.taken += 1
        self._note(f"step {self.taken}")
        return True

    def idle(self, timeout: float) -> None:
        """Writes that it idles."""
        assert 0 < timeout < 1
        self._note("idle")

    def waiting_on(self) -> str:
        """Waits for its turn."""
        return "its turn"

    def close(self) -> None:
        """Writes that it was closed, and that another still answers."""
        if self._other is not None:
            write(self._path, f"{self._name} hears {self._other.ping()}")
        self._note("close")

    def steps_taken(self) -> int:
        """Can be called."""
        return self.taken


class Waits:
    """A worker that waits for the stop."""

    finished = False
    stall_grace_s = 30.0

    def step(self) -> bool:
        """Never can."""
        return False

    def idle(self, timeout: float) -> None:
        """Waits."""
        lp.wait_for_stop(timeout)

    def waiting_on(self) -> str:
        """Waits for the end."""
        return "the end"

    def close(self) -> None:
        """Holds nothing."""


class Service:
    """Serves a bit of everything."""

    def __init__(self, path: str = ""):
        self._path = path
        self._private_calls = 0
        self.attribute = 5
        self.made_later = functools.partial(self.add, 10)
        self.release = threading.Event()

    def __call__(self, x: int) -> int:
        """Squares."""
        return x * x

    def __getstate__(self) -> None:
        raise TypeError("a service isn't sent anywhere")

    def add(self, x: int, y: int = 1, *more: int, scale: int = 1) -> int:
        """Adds."""
        return (x + y + sum(more)) * scale

    def echo(self, value: Any) -> Any:
        """Gives back."""
        return value

    def append(self, values: list[Any]) -> int:
        """Changes its argument."""
        values.append("changed")
        return len(values)

    def fail(self, text: str) -> None:
        """Raises."""
        raise CustomError(text)

    def lookup(self) -> None:
        """Raises a builtin exception."""
        raise KeyError("missing")

    def timed_out(self) -> None:
        """Raises what a call that takes too long might, too."""
        raise TimeoutError("of its own")

    def unpicklable(self) -> Any:
        """Returns what can't be sent."""
        return threading.Lock()

    @classmethod
    def of_class(cls) -> str:
        """Returns the name of the class."""
        return cls.__name__

    @staticmethod
    def static(x: int) -> int:
        """Returns its argument."""
        return x

    def _private(self) -> None:
        write(self._path, "private")

    @property
    def prop(self) -> Any:
        """Must not be evaluated."""
        write(self._path, "property")
        return self.add

    @functools.cached_property
    def cached(self) -> Any:
        """Must not be evaluated either."""
        write(self._path, "cached property")
        return self.add

    def wait(self) -> str:
        """Waits to be let go."""
        return "let go" if self.release.wait(LONG) else "given up"

    def let_go(self) -> None:
        """Lets go who waits."""
        self.release.set()

    def hang(self, path: str) -> None:
        """Takes until a file is there, whether the program stops or not."""
        wait_until(Path(path).exists)

    def ping(self) -> str:
        """Answers."""
        return "pong"

    def close(self) -> None:
        """Writes that it was closed, and lets go who waits."""
        self.release.set()
        if self._path:
            write(self._path, "service close")


class Stepper:
    """A service, for which `step` is something else than for a worker."""

    def __init__(self) -> None:
        self._total = 0

    def step(self, action: int) -> int:
        """Adds the action."""
        self._total += action
        return self._total

    def close(self) -> None:
        """Holds nothing."""


class Limited:
    """Counts how many calls run at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = self._most = 0

    def work(self) -> None:
        """Takes a while."""
        with self._lock:
            self._now += 1
            self._most = max(self._most, self._now)
        time.sleep(0.01)
        with self._lock:
            self._now -= 1

    def most(self) -> int:
        """Returns the most calls that ever ran at once."""
        return self._most


def one(node: lp.Node, label: str = "n") -> lp.Program:
    """Makes a program of one node."""
    program = lp.Program("p")
    program.add_node(node, label=label)
    return program


def serve(start: Start, launcher: str, *args: Any, **options: Any) -> tuple[lp.Run, Any]:
    """Runs a `Service`, and returns the run and a client."""
    program = lp.Program("p")
    handle = program.add_node(lp.CourierNode(Service, *args), label="service")
    run = start(program, launcher, **options)
    return run, run.client(handle)
