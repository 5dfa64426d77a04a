"""Nodes for a program whose nodes are killed at random, and callers that know what each call may come to."""

from __future__ import annotations

import collections
import json
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import rlpad.launch as lp

#: Resends that a call asks for which may run several times.
RETRIES = 20
#: Calls in flight at once.
BATCH = 20


class Refused(Exception):
    """What a service raises if it's asked to."""


class Notes:
    """Appends lines to a file of this process: whole ones, however it's killed."""

    def __init__(self, folder: str, name: str):
        path = Path(folder) / f"{name.replace('/', '-')}-{os.getpid()}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, text: str) -> None:
        """Appends a line."""
        os.write(self._file, text.encode() + b"\n")


class Store:
    """Counts its calls, and answers with what was asked, and who it is."""

    def __init__(self, folder: str):
        self._notes = Notes(folder, lp.node_info().name)

    def double(self, token: str, x: int) -> tuple[str, int, str, int]:
        """Doubles a number."""
        self._notes.write(token)
        return token, 2 * x, lp.node_info().name, lp.node_info().epoch

    def slow(self, token: str, x: int) -> tuple[str, int, str, int]:
        """Doubles a number, in a while."""
        answer = self.double(token, x)
        time.sleep(0.3)
        return answer

    def echo(self, token: str, array: np.ndarray) -> tuple[str, np.ndarray]:
        """Gives an array back."""
        self._notes.write(token)
        return token, array

    def refuse(self, token: str) -> None:
        """Raises."""
        self._notes.write(token)
        raise Refused(token)


class Relay:
    """Asks a store in turn."""

    def __init__(self, stores: list[Any]):
        self._stores = stores

    def double(self, token: str, x: int) -> tuple[str, int, str, int]:
        """Has a store double a number."""
        return self._stores[x % len(self._stores)].double(token, x)


class Calls:
    """Makes calls of all kinds, and finds fault with what they come to."""

    def __init__(self, name: str, stores: Mapping[str, Any], relays: Iterable[Any], draw: random.Random):
        self._name = name
        self._stores = list(stores.items())
        self._relays = list(relays)
        self._draw = draw
        self._number = 0
        self._epochs: dict[str, int] = {}
        #: One for each call: token, kind, outcome, seconds.
        self.tell: Callable[[dict[str, Any]], None] = lambda record: None

    def make(self) -> None:
        """Makes one call, or several at once."""
        alone = (self._plain, self._future, self._retry, self._timeout, self._echo, self._refuse, self._relay)
        self._draw.choice((*alone, self._batch))()

    def _token(self, retries: int = 0) -> str:
        self._number += 1
        return f"{self._name}:{self._number}:{retries}"

    def _called(
        self, kind: str, token: str, call: Callable[[], Any], check: Callable[[Any], bool], began: float | None = None
    ) -> None:
        """Makes a call; the outcome is the value, an error that may come, or `wrong` with what came instead."""
        began = began or time.monotonic()
        try:
            value = call()
            outcome = "value" if check(value) else f"wrong value {value!r}"
        except (lp.PeerGone, lp.CallTimeout, Refused) as error:
            outcome = type(error).__name__
        except Exception as error:
            outcome = f"wrong error {error!r}"
        self.tell({"token": token, "kind": kind, "outcome": outcome, "seconds": time.monotonic() - began})

    def _any_store(self) -> tuple[str, Any, int]:
        return *self._draw.choice(self._stores), self._draw.randrange(1000)

    def _answers(self, name: str, token: str, x: int) -> Callable[[Any], bool]:
        def check(value: Any) -> bool:
            # Who has heard from an epoch hears from no earlier one any more.
            earlier, self._epochs[name] = self._epochs.get(name, 1), value[3]
            return value[:3] == (token, 2 * x, name) and value[3] >= earlier

        return check

    def _plain(self) -> None:
        name, store, x = self._any_store()
        token = self._token()
        self._called("plain", token, lambda: store.double(token, x), self._answers(name, token, x))

    def _retry(self) -> None:
        name, store, x = self._any_store()
        token = self._token(RETRIES)
        kind, answers = self._draw.choice(("retry", "retried future")), self._answers(name, token, x)
        if kind == "retry":
            self._called(kind, token, lambda: store.double(token, x, retry=RETRIES), answers)
        else:
            self._called(kind, token, lambda: store.futures.double(token, x, retry=RETRIES).result(), answers)

    def _future(self) -> None:
        name, store, x = self._any_store()
        token = self._token()
        self._called("future", token, lambda: store.futures.slow(token, x).result(), self._answers(name, token, x))

    def _batch(self) -> None:
        name, store, x = self._any_store()
        tokens = [self._token() for _ in range(BATCH)]
        began = time.monotonic()
        futures = [store.futures.double(token, x) for token in tokens]
        for token, future in zip(tokens, futures, strict=True):
            right = (token, 2 * x, name)
            self._called("batch", token, future.result, lambda value, right=right: value[:3] == right, began)

    def _timeout(self) -> None:
        _, store, x = self._any_store()
        token, timeout = self._token(), self._draw.choice((0.1, 0.5))

        def at_once() -> Any:
            return store.slow(token, x, timeout=timeout)

        def later() -> Any:
            return store.futures.slow(token, x, timeout=timeout).result()

        kind, call = self._draw.choice((("timeout", at_once), ("future's timeout", later)))
        self._called(f"{kind} {timeout}", token, call, lambda value: value[:2] == (token, 2 * x))

    def _echo(self) -> None:
        _, store, x = self._any_store()
        token = self._token()
        array = np.arange(x * 200)
        self._called(
            "echo",
            token,
            lambda: store.echo(token, array),
            lambda value: value[0] == token and np.array_equal(value[1], array),
        )

    def _refuse(self) -> None:
        _, store, _ = self._any_store()
        token = self._token()
        self._called("refuse", token, lambda: store.refuse(token), lambda value: False)

    def _relay(self) -> None:
        x, token = self._draw.randrange(1000), self._token()
        relay = self._draw.choice(self._relays)
        self._called("relay", token, lambda: relay.double(token, x), lambda value: value[:2] == (token, 2 * x))


class Caller:
    """A node that makes calls until the program stops."""

    def __init__(self, folder: str, stores: list[Any], relays: list[Any]):
        info = lp.node_info()
        draw = random.Random(info.seed + info.epoch)
        named = {f"store/{index}": store for index, store in enumerate(stores)}
        self._calls = Calls(f"{info.name}.{info.epoch}", named, relays, draw)
        notes = Notes(folder, info.name)
        self._calls.tell = lambda record: notes.write(json.dumps(record))

    def run(self) -> None:
        """Makes calls."""
        while not lp.wait_for_stop(0.005):
            self._calls.make()


def read_notes(folder: Path) -> list[str]:
    """Returns the lines of all files in a folder."""
    return [line for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]


def runs_by_token(folder: Path) -> collections.Counter[str]:
    """Counts how often each call has run."""
    return collections.Counter(read_notes(folder))
