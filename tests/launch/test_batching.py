"""Batched handlers: batches by hand, nests against one call per request, and faults that stay alone."""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlpad.launch as lp
from rlpad.launch.nests import stack, unstack

from .conftest import LONG, Start, end

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Pair:
    """A dataclass to nest."""

    first: Any
    second: Any


class Model:
    """Doubles rows, and notes the batches that it got."""

    def __init__(self, size: int = 4, timeout: float = 0.2, pad: bool = False, parallel: int = 1):
        self.batches: list[Any] = []
        self.compute = lp.batched_handler(size, parallel, timeout, pad)(self.compute)  # type: ignore[method-assign]

    def compute(self, values: Any) -> Any:
        """Returns twice the values."""
        self.batches.append(values)
        if np.any(values == 13):
            raise ValueError("thirteen")
        return 2 * values

    def sizes(self) -> list[int]:
        """Rows of the batches so far."""
        return [len(batch) for batch in self.batches]


class Decorated:
    """Has its handler decorated in the class."""

    def __init__(self, factor: int):
        self._factor = factor

    @lp.batched_handler(batch_size=2, timeout=LONG)
    def scale(self, x: Any, *, shift: Any) -> Any:
        """Returns factor * x + shift."""
        assert len(x) == len(shift) == 2
        return self._factor * x + shift


def call_all(function: Any, values: list[Any]) -> list[Any]:
    """Calls a function with each value, at the same time; returns values or exceptions, in order."""
    with ThreadPoolExecutor(len(values)) as pool:
        futures = [pool.submit(function, value) for value in values]
        return [future.exception(LONG) or future.result() for future in futures]


@pytest.mark.parametrize("size", [1, 3, 16])
def test_full_batches_go_at_once(size: int) -> None:
    model = Model(size, timeout=LONG)
    rows = call_all(model.compute, [np.array([n, n + 20]) for n in range(20, 20 + 2 * size)])
    assert [row.tolist() for row in rows] == [[2 * n, 2 * n + 40] for n in range(20, 20 + 2 * size)]
    assert model.sizes() == [size, size]
    assert model.batches[0].shape == (size, 2)


def test_a_partial_batch_goes_after_the_timeout() -> None:
    model = Model(8, timeout=0.1)
    assert call_all(model.compute, [1, 2, 3]) == [2, 4, 6]
    assert sum(model.sizes()) == 3
    assert max(model.sizes()) <= 8


def test_padding_repeats_the_first_request() -> None:
    model = Model(4, timeout=0.0, pad=True)
    assert model.compute(5) == 10
    assert model.batches[0].tolist() == [5, 5, 5, 5]


def test_a_batch_fills_while_it_waits_for_its_turn() -> None:
    entered, release = threading.Event(), threading.Event()
    sizes = []

    @lp.batched_handler(batch_size=4, timeout=0.0)
    def slow(x: Any) -> Any:
        sizes.append(len(x))
        entered.set()
        assert release.wait(LONG)
        return x

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(slow, 0)
        assert entered.wait(LONG)
        others = [pool.submit(slow, n) for n in (1, 2, 3)]
        deadline = time.monotonic() + LONG
        while sum(len(batch.requests) for batch in slow._forming.values()) < 3 and time.monotonic() < deadline:
            time.sleep(0.005)
        release.set()
        assert [first.result(LONG), *[other.result(LONG) for other in others]] == [0, 1, 2, 3]
    assert sizes == [1, 3]


def test_batches_at_the_same_time() -> None:
    together = threading.Barrier(3)

    @lp.batched_handler(batch_size=1, max_parallelism=3)
    def meet(x: Any) -> Any:
        together.wait(LONG)  # breaks unless three are handled at once
        return x

    assert sorted(call_all(meet, [1, 2, 3])) == [1, 2, 3]


def test_one_bad_request_fails_alone() -> None:
    model = Model(4, timeout=LONG)
    rows = call_all(model.compute, [12, 13, 14, 15])
    assert [rows[0], rows[2], rows[3]] == [24, 28, 30]
    assert isinstance(rows[1], ValueError)
    assert str(rows[1]) == "thirteen"


def test_another_shape_or_dtype_gets_a_batch_of_its_own() -> None:
    model = Model(3, timeout=0.2)
    bad = np.zeros((5, 2))
    rows = call_all(model.compute, [bad, np.array([1.0]), np.array([2.0]), np.array([3.0]), np.array([4])])
    assert rows[0].shape == (5, 2)
    assert [row.tolist() for row in rows[1:]] == [[2.0], [4.0], [6.0], [8]]
    assert {batch.shape[1:] for batch in model.batches} == {(5, 2), (1,)}
    assert all(batch.dtype in (np.float64, np.int64) for batch in model.batches)


def test_wrong_number_of_rows() -> None:
    short = lp.batched_handler(1)(lambda x: x[:0])
    with pytest.raises(ValueError, match="batch of 1 requests returned 0 rows"):
        short(3)
    scalar = lp.batched_handler(1)(lambda x: 7)
    with pytest.raises(ValueError, match="returned int; expected an array or list with a row per request"):
        scalar(3)


def test_decorated_in_the_class_each_instance_has_its_own_batches() -> None:
    one, ten = Decorated(1), Decorated(10)
    calls = [(one, 1), (ten, 1), (one, 2), (ten, 2)]
    assert call_all(lambda call: call[0].scale(call[1], shift=0.5), calls) == [1.5, 10.5, 2.5, 20.5]


def test_bad_options() -> None:
    with pytest.raises(lp.LaunchError, match="at least 1, got 0 and 1"):
        lp.batched_handler(0)
    with pytest.raises(lp.LaunchError, match="timeout must be at least 0"):
        lp.batched_handler(1, timeout=-1.0)
    with pytest.raises(lp.LaunchError, match="decorates a function or a bound method, got 3"):
        lp.batched_handler(1)(3)  # type: ignore[arg-type]


class Caller:
    """Sends requests that a service answers in batches."""

    def __init__(self, model: Any, number: int):
        self._model, self._number = model, number

    def run(self) -> None:
        """Checks that each answer is for its own request."""
        futures = [self._model.futures.compute([x, x + 1]) for x in range(self._number)]
        assert [future.result(LONG) for future in futures] == [[x, x + 1, 2] for x in range(self._number)]
        assert self._model.largest() <= 3
        lp.stop()


class ListModel:
    """Takes lists, as its callers send them."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self.compute = lp.batched_handler(batch_size=3, timeout=0.05)(self.compute)  # type: ignore[method-assign]

    def compute(self, rows: list[list[int]]) -> list[list[int]]:
        """Appends its length to each list."""
        self._sizes.append(len(rows))
        return [[*row, len(row)] for row in rows]

    def largest(self) -> int:
        """Returns the size of the largest batch."""
        return max(self._sizes)


def test_as_a_service_under_every_launcher(launcher: str, start: Start) -> None:
    program = lp.Program("p")
    model = program.add_node(lp.CourierNode(ListModel), label="model")
    program.add_node(lp.PyClassNode(Caller, model, 10), label="caller")
    assert end(start(program, launcher)).status == "completed"


leaves = st.one_of(
    st.integers(-5, 5),
    st.floats(-5, 5, width=32),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=3),
    st.builds(lambda n: np.arange(6, dtype=np.float32).reshape(2, 3) + n, st.integers(0, 9)),
)
nests = st.recursive(
    leaves,
    lambda child: st.one_of(
        st.tuples(child, child),
        st.builds(Point, child, child),
        st.builds(Pair, child, child),
        st.dictionaries(st.sampled_from("abc"), child, max_size=3),
    ),
    max_leaves=6,
)


@given(nests, st.integers(1, 4))
def test_stacking_and_unstacking_gives_the_requests_again(nest: Any, size: int) -> None:
    rows = unstack(stack([nest] * size), size)
    assert len(rows) == size
    for row in rows:
        assert_equal(row, nest)


def assert_equal(actual: Any, expected: Any) -> None:
    """Compares nests leaf by leaf."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key in expected:
            assert_equal(actual[key], expected[key])
    elif isinstance(expected, tuple):
        assert type(actual) is type(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_equal(one, other)
    elif isinstance(expected, Pair):
        assert_equal((actual.first, actual.second), (expected.first, expected.second))
    else:
        np.testing.assert_array_equal(actual, expected)
