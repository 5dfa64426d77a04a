"""Calls between processes: values, methods and errors."""

from __future__ import annotations

import socket
import threading
import time
import traceback
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpad.launch.errors import RemoteError, RemoteTraceback
from rlpad.launch.rpc import Client, Server, codec, list_methods
from rlpad.launch.rpc import stream as streams

from .serving import WAIT, Point, serving


def test_nested_values_with_small_and_large_arrays_come_back_equal_and_writable(folder: str) -> None:
    value = {
        "small": np.arange(6, dtype=np.int8).reshape(2, 3),
        "large": [np.random.default_rng(0).normal(size=(300, 301)), (np.zeros(0), Point(1, np.float32(2)))],
        "huge": np.arange(1 << 21, dtype=np.float32),
        "fortran": np.asfortranarray(np.arange(20_000.0).reshape(100, 200)),
        "strided": np.arange(40_000)[::2],
        "text": "ä",
        "none": None,
    }
    with serving(folder) as (_, client):
        for _ in range(2):
            args, kwargs = client.echo(1, [value], key=value)
            assert args[1][0] is kwargs["key"]
            for got in (kwargs["key"], client.futures.same(value).result(WAIT)):
                assert got.keys() == value.keys()
                for key in ("small", "huge", "fortran", "strided"):
                    np.testing.assert_array_equal(got[key], value[key])
                    assert got[key].dtype == value[key].dtype
                    assert got[key].flags.writeable
                    got[key] += 1
                np.testing.assert_array_equal(got["large"][0], value["large"][0])
                assert got["large"][1][1] == Point(1, np.float32(2))
                assert got["large"][1][0].shape == (0,)
                assert (got["text"], got["none"]) == ("ä", None)


def test_the_server_may_write_to_the_arrays_it_gets(folder: str) -> None:
    with serving(folder) as (_, client):
        for size in (3, 100_000):
            array = np.ones(size)
            np.testing.assert_array_equal(client.double_in_place(array), 2 * array)
            assert array[0] == 1


def test_jax_arrays_become_numpy(folder: str) -> None:
    jnp = pytest.importorskip("jax.numpy")
    with serving(folder) as (_, client):
        for size in (3, 100_000):
            got = client.same([jnp.arange(size)])[0]
            assert type(got) is np.ndarray and got.flags.writeable
            np.testing.assert_array_equal(got, np.arange(size))


def test_functions_that_cannot_be_imported_travel_by_value(folder: str) -> None:
    factor = 3
    with serving(folder) as (_, client):
        assert client.same(lambda x: factor * x)(2) == 6


def test_code_that_travels_keeps_the_name_of_its_file(folder: str) -> None:
    with serving(folder) as (_, client):
        assert client.same(lambda: 1).__code__.co_filename == __file__


def test_jax_arrays_become_numpy_also_beside_functions(folder: str) -> None:
    jnp = pytest.importorskip("jax.numpy")
    with serving(folder) as (_, client):
        array, function = client.same((jnp.arange(5), lambda: 2))
        assert type(array) is np.ndarray and function() == 2


def test_a_large_answer_to_a_pipelined_call_does_not_block_the_others(folder: str) -> None:
    with serving(folder) as (_, client):
        array = np.zeros(1 << 20)
        futures = [client.futures.same(array if i % 2 else i) for i in range(40)]
        for i, future in enumerate(futures):
            got = future.result(WAIT)
            assert got.nbytes == array.nbytes if i % 2 else got == i


_leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(max_size=50)
)
_arrays = st.tuples(
    st.sampled_from([np.uint8, np.float32, np.int64]), st.sampled_from([(), (0,), (3, 2), (5000,), (70, 70)])
).map(lambda kind: np.arange(int(np.prod(kind[1]))).reshape(kind[1]).astype(kind[0]))
_nests = st.recursive(
    _leaves | _arrays,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=12,
)


def equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all()) and b.flags.writeable
    if isinstance(a, Point):
        return equal(vars(a), vars(b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


@settings(max_examples=40, deadline=None)
@given(_nests)
def test_any_nest_survives_codec_and_stream(value: Any) -> None:
    here, there = (streams.Stream(end) for end in socket.socketpair())
    try:
        payload, buffers = codec.dumps(value)
        here.send(streams.RESULT, 7, payload, buffers)
        kind, call, payload2, buffers2 = there.receive(time.monotonic() + WAIT)
        assert (kind, call) == (streams.RESULT, 7)
        assert equal(value, codec.loads(payload2, buffers2))
    finally:
        here.close()
        there.close()


# Which methods there are.


def test_public_callables_are_bound_and_properties_not_evaluated(folder: str) -> None:
    with serving(folder) as (_, client):
        names = list_methods(client)
        assert {"__call__", "attribute", "echo", "of_class", "static", "sleep"} <= set(names)
        assert not {"explosive", "lazy", "constant", "count", "lock", "_private"} & set(names)
        assert client(2) == 3
        assert client.futures(2).result(WAIT) == 3
        assert (client.of_class(), client.static(), client.attribute()) == ("Target", "static", 7)


def test_an_unknown_method_names_the_nearest(folder: str) -> None:
    with serving(folder) as (_, client):
        with pytest.raises(AttributeError, match="Target has no method 'ecko'; did you mean 'echo'"):
            client.ecko()
        with pytest.raises(AttributeError):
            client.explosive()
        with pytest.raises(AttributeError):
            client._private()
        assert not hasattr(client, "__array__")


def test_a_further_function_can_be_bound(folder: str) -> None:
    with Server(object(), f"unix:{folder}/s", name="empty") as server:
        server.bind("add", lambda a, b: a + b)
        with pytest.raises(TypeError):
            server.bind("three", 3)  # type: ignore[arg-type]
        with Client(server.address) as client:
            assert list_methods(client) == ["add"]
            assert client.add(1, b=2) == 3
            with pytest.raises(AttributeError, match="empty has no method"):
                client()


# Errors.


def test_a_remote_exception_keeps_its_type_and_shows_the_remote_traceback(folder: str) -> None:
    with serving(folder) as (_, client):
        for call in (client.raise_value_error, lambda: client.futures.raise_value_error().result(WAIT)):
            with pytest.raises(ValueError, match="too blue") as caught:
                call()
            assert isinstance(caught.value.__cause__, RemoteTraceback)
            text = "".join(traceback.format_exception(caught.value))
            assert "in raise_value_error" in text and text.count("too blue") >= 2


def test_an_exception_that_cannot_be_rebuilt_arrives_as_text(folder: str) -> None:
    with serving(folder) as (_, client):
        with pytest.raises(RemoteError, match="Picky: 1 and 2"):
            client.raise_picky()
        with pytest.raises(RemoteError, match="SystemExit: 3"):
            client.raise_exit()
        assert client.increment() == 1


def test_what_cannot_be_pickled_names_the_method(folder: str) -> None:
    with serving(folder) as (_, client):
        with pytest.raises(TypeError, match="the arguments of 'same' can't be pickled"):
            client.same(threading.Lock())
        with pytest.raises(TypeError, match="the arguments of 'same' can't be pickled"):
            client.futures.same(threading.Lock())
        with pytest.raises(TypeError, match="the result of 'unpicklable' can't be pickled"):
            client.unpicklable()
        assert client.same(1) == 1
