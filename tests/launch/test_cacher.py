"""`CacherNode`: which calls reach the target, how old answers get, and that errors aren't remembered."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlpad.launch as lp
from rlpad.launch.nodes.cacher import Cacher
from rlpad.launch.rpc.methods import Methods

from .conftest import LONG, Start, wait_until
from .example_nodes import CustomError


class Target:
    """A client that writes calls down, and answers when it's told to or at once."""

    def __init__(self, at_once: bool = True):
        self.calls: list[tuple[str, Any, Any]] = []
        self.answers: list[Future[Any]] = []
        self.at_once = at_once
        self.fails = False

    @property
    def futures(self) -> Target:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return functools.partial(self._called, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._called("__call__", *args, **kwargs)

    def _called(self, name: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls.append((name, args, kwargs))
        future: Future[Any] = Future()
        self.answers.append(future)
        if self.at_once:
            self.answer(len(self.calls) - 1)
        return future

    def answer(self, number: int) -> None:
        """Answers call `number`, counted from 0, with its number."""
        if self.fails:
            self.answers[number].set_exception(CustomError(f"call {number}"))
        else:
            self.answers[number].set_result(number)


class Clock:
    """Shows what it's set to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class TestCacher:
    """The service by itself, with a clock of the test's own: refreshed after 1 s, stale after 3 s."""

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    def make(self, target: Target, clock: Clock, max_entries: int = 16) -> Methods:
        return Methods(Cacher(target, 1.0, 3.0, max_entries, clock), "cacher")

    def test_ages_by_hand(self, clock: Clock) -> None:
        target = Target()
        read = self.make(target, clock).get("read")
        answers = []
        for now in (0.0, 0.9, 1.0, 1.9, 2.0, 4.9, 5.0, 9.0, 9.5):
            clock.now = 100.0 + now
            answers.append(read())
        # At 1.0, 2.0 and 4.9 the old answer is given and a new one asked for; at 9.0 the one of 4.9 is stale.
        assert answers == [0, 0, 0, 1, 1, 2, 3, 4, 4]
        assert len(target.calls) == 5

    def test_each_method_and_arguments(self, clock: Clock) -> None:
        target = Target()
        cacher = self.make(target, clock)
        requests: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
            ("read", (), {}),
            ("write", (), {}),
            ("__call__", (), {}),
            ("read", (1,), {}),
            ("read", (1.0,), {}),
            ("read", (True,), {}),
            ("read", ([1],), {}),
            ("read", ("1",), {}),
            ("read", (), {"a": 1, "method": 2}),
            ("read", (), {"self": 1, "key": 2}),
        ]
        for _ in range(2):
            assert [cacher.get(name)(*args, **kwargs) for name, args, kwargs in requests] == list(range(10))
        assert cacher.get("read")(method=2, a=1) == 8  # the order of keywords makes no difference
        assert target.calls == requests

    def test_the_least_recently_wanted_is_forgotten(self, clock: Clock) -> None:
        target = Target()
        read = self.make(target, clock, max_entries=2).get("read")
        assert [read(key) for key in "ababcacb"] == [0, 1, 0, 1, 2, 3, 2, 4]

    def test_errors_are_not_remembered(self, clock: Clock) -> None:
        target = Target()
        read = self.make(target, clock).get("read")
        target.fails = True
        for number in range(2):
            with pytest.raises(CustomError, match=f"call {number}"):
                read()
        target.fails = False
        assert [read(), read()] == [2, 2]
        # One that fails in the background leaves the old answer, and isn't tried again before the interval is over.
        target.fails = True
        answers = []
        for now in (1.0, 1.5, 2.0, 2.9):
            clock.now = 100.0 + now
            answers.append(read())
        assert answers == [2, 2, 2, 2]
        assert len(target.calls) == 5
        clock.now = 103.0
        with pytest.raises(CustomError, match="call 5"):
            read()

    def test_readers_wait_together(self, clock: Clock) -> None:
        target = Target(at_once=False)
        read = self.make(target, clock).get("read")
        with ThreadPoolExecutor(8) as pool:
            readers = [pool.submit(read) for _ in range(8)]
            wait_until(lambda: target.calls)
            time.sleep(0.05)
            assert not any(reader.done() for reader in readers)
            target.answer(0)
            assert [reader.result(LONG) for reader in readers] == [0] * 8
        assert len(target.calls) == 1

    def test_an_answer_asked_for_too_long_ago_is_asked_for_again(self, clock: Clock) -> None:
        target = Target(at_once=False)
        read = self.make(target, clock).get("read")
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(read)
            wait_until(lambda: target.calls)
            clock.now += 5.0  # the target is slow
            second = pool.submit(read)
            time.sleep(0.05)
            target.answer(0)
            # As new as one can be had for the reader who asked, too old for the one who joined.
            assert first.result(LONG) == 0
            wait_until(lambda: len(target.calls) == 2)
            target.answer(1)
            assert second.result(LONG) == 1

    def test_what_cannot_be_sent_is_raised_for_all(self, clock: Clock) -> None:
        class Broken(Target):
            def _called(self, name: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
                raise TypeError("can't be sent")

        read = self.make(Broken(), clock).get("read")
        for _ in range(2):
            with pytest.raises(TypeError, match="can't be sent"):
                read()

    @given(st.lists(st.tuples(st.floats(0, 2), st.integers(0, 3)), max_size=60))
    def test_never_stale_and_never_asked_too_often(self, reads: list[tuple[float, int]]) -> None:
        target, clock = Target(), Clock()
        read = self.make(target, clock, max_entries=3).get("read")
        asked_at: list[float] = []
        for pause, key in reads:
            clock.now += pause
            answer = read(key)
            asked_at += [clock.now] * (len(target.calls) - len(asked_at))
            assert clock.now - asked_at[answer] < 3.0
            assert target.calls[answer][1] == (key,)
        for one in range(4):
            times = [when for when, call in zip(asked_at, target.calls, strict=True) if call[1] == (one,)]
            # Fewer keys than can be remembered are never asked for twice within the interval.
            if len({key for _, key in reads}) <= 3:
                assert all(then - now >= 1.0 for now, then in itertools.pairwise(times))


class Store:
    """Counts how often it's read."""

    def __init__(self) -> None:
        self._reads = 0
        self._lock = threading.Lock()

    def get(self, key: str) -> tuple[str, float]:
        """Returns the key, and when it was read."""
        with self._lock:
            self._reads += 1
        return key, time.monotonic()

    def fail(self) -> None:
        """Raises."""
        raise CustomError("store")

    def reads(self) -> int:
        """Returns how often `get` was called."""
        return self._reads


def programs(*cachers: tuple[float, float]) -> tuple[lp.Program, lp.Handle, list[lp.Handle]]:
    """Returns a program of a store with a chain of cachers before it."""
    program = lp.Program("cached")
    store = program.add_node(lp.CourierNode(Store), label="store")
    handles = [store]
    for refresh, stale in cachers:
        handles.append(program.add_node(lp.CacherNode(handles[-1], refresh, stale), label="cacher"))
    return program, store, handles[1:]


class TestCacherNode:
    """The node in a program."""

    def test_reads_are_answered_from_memory(self, launcher: str, start: Start) -> None:
        program, store, [handle] = programs((60_000, 60_000))
        run = start(program, launcher)
        client = run.client(handle)
        first = client.get("a")
        assert [client.get("a") for _ in range(5)] == [first] * 5
        assert [future.result(LONG) for future in [client.futures.get("a") for _ in range(5)]] == [first] * 5
        assert client.get("b")[0] == "b"
        assert run.client(store).reads() == 2
        with pytest.raises(CustomError, match="store"):
            client.fail()
        with pytest.raises(AttributeError, match="has no method 'gett'; did you mean 'get'"):
            client.gett()
        assert lp.list_methods(client) == ["fail", "get", "reads"]

    def test_many_readers_cost_what_one_does(self, concurrent: str, start: Start) -> None:
        program, store, handles = programs((50, 200), (50, 200))
        run = start(program, concurrent)
        client = run.client(handles[-1])
        client.get("a")
        began = time.monotonic()
        ages = []

        def read() -> None:
            while time.monotonic() < began + 1.0:
                now = time.monotonic()
                ages.append(now - client.get("a")[1])

        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        reads = run.client(store).reads()
        elapsed = time.monotonic() - began
        assert len(ages) > 4 * reads
        assert 2 <= reads <= elapsed / 0.05 + 2
        # Two tiers: what the first gives may be as old as its bound already.
        assert max(ages) < 0.4

    def test_bad_arguments(self) -> None:
        program = lp.Program("p")
        store = program.add_node(lp.CourierNode(Store), label="store")
        other = program.add_node(lp.PyNode(print), label="other")
        for target in (Store(), other, None):
            with pytest.raises(lp.LaunchError, match="needs the handle of a CourierNode or CacherNode, got"):
                lp.CacherNode(target, 1, 2)  # type: ignore[arg-type]
        for refresh, stale in ((-1, 2), (3, 2), (float("nan"), 2)):
            with pytest.raises(lp.LaunchError, match="0 <= refresh_interval_ms <= stale_after_ms, got"):
                lp.CacherNode(store, refresh, stale)
        with pytest.raises(lp.LaunchError, match="max_entries must be at least 1, got 0"):
            lp.CacherNode(store, 1, 2, max_entries=0)
