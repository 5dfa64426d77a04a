"""Calls between processes: values, errors, timeouts, peers that die, limits and who may connect."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import gc
import os
import pickle
import signal
import socket
import ssl
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpad.launch.errors import CallTimeout, PeerGone, RemoteError, RemoteTraceback
from rlpad.launch.rpc import Client, Server, codec, list_methods, security
from rlpad.launch.rpc import stream as streams

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


@pytest.fixture
def folder() -> Iterator[str]:
    # pytest's own folders are too deep for a socket's path.
    with tempfile.TemporaryDirectory(prefix="rpc-") as path:
        yield path


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    def descriptors() -> set[str]:
        found = set()
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                link = os.readlink(f"/proc/self/fd/{name}")
                if link.startswith("socket:"):
                    found.add(link)
        return found

    threads, sockets = set(threading.enumerate()), descriptors()
    yield

    def left() -> list[Any]:
        gc.collect()
        rest: list[Any] = [t for t in threading.enumerate() if t not in threads and t.name != "rpc-timer"]
        return rest + sorted(descriptors() - sockets)

    until(lambda: not left(), left)


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


# Values.


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


# Timeouts.


def test_a_call_that_takes_too_long_raises_and_the_client_goes_on(folder: str) -> None:
    with serving(folder) as (_, client):
        start = time.monotonic()
        with pytest.raises(CallTimeout, match="'sleep' on unix:"):
            client.sleep(0.6, timeout=0.1)
        assert 0.08 < time.monotonic() - start < 0.5
        assert client.same(1) == 1


def test_a_future_that_takes_too_long_raises_and_the_others_go_on(folder: str) -> None:
    with serving(folder) as (_, client):
        late, good = client.futures.sleep(0.5, timeout=0.1), client.futures.sleep(0.4)
        start = time.monotonic()
        with pytest.raises(CallTimeout, match="'sleep' on unix:"):
            late.result(WAIT)
        assert time.monotonic() - start < 0.35
        assert good.result(WAIT) == 0.4
        time.sleep(0.15)  # the late answer comes, and is dropped
        assert client.futures.same(1).result(WAIT) == 1


def test_a_cancelled_future_drops_its_answer(folder: str) -> None:
    with serving(folder) as (_, client):
        future = client.futures.sleep(0.1)
        assert future.cancel()
        assert client.futures.sleep(0.2).result(WAIT) == 0.2
        done, _ = concurrent.futures.wait([future], WAIT)
        assert done == {future} and future.cancelled()


def test_nobody_listening_raises_after_connect_timeout(folder: str) -> None:
    with Client(f"unix:{folder}/nobody", connect_timeout=0.2, name="actor/3") as client:
        start = time.monotonic()
        with pytest.raises(PeerGone, match="'f' on actor/3: it can't be reached for 0.2 s"):
            client.f()
        with pytest.raises(PeerGone, match="actor/3"):
            client.futures.f().result(WAIT)
        assert 0.35 < time.monotonic() - start < 2
        with pytest.raises(CallTimeout):
            client.f(timeout=0.05)


def test_the_first_call_waits_for_the_peer_to_come_up(folder: str) -> None:
    pool = concurrent.futures.ThreadPoolExecutor(1)
    with Client(f"unix:{folder}/s", connect_timeout=WAIT) as client, pool:
        answer = pool.submit(client.same, 5)
        time.sleep(0.1)
        with Server(Target(), f"unix:{folder}/s"):
            assert answer.result(WAIT) == 5


def test_sending_waits_while_the_server_pushes_back_and_times_out_alone(folder: str) -> None:
    with serving(folder, thread_pool_size=1) as (target, client):
        first = client.futures.sleep(0.7)
        until(lambda: target.running)
        payload = np.zeros(4 << 20, np.uint8)
        start = time.monotonic()
        many = [client.futures.same(payload, timeout=0.15) for _ in range(3)]
        assert time.monotonic() - start > 0.12  # the sockets' buffers don't hold them all
        with pytest.raises(CallTimeout):
            many[0].result(WAIT)
        assert first.result(WAIT) == 0.7
        assert many[-1].exception(WAIT) is None or isinstance(many[-1].exception(), CallTimeout)
        assert client.futures.same(1).result(WAIT) == 1


# Peers that go away.


def test_stopping_the_server_ends_pending_calls(folder: str) -> None:
    release = threading.Event()

    class Waits:
        def wait(self) -> None:
            release.wait(WAIT)

    try:
        server = Server(Waits(), f"unix:{folder}/s")
        server.start()
        with (
            Client(server.address, connect_timeout=0.2) as client,
            concurrent.futures.ThreadPoolExecutor(2) as pool,
        ):
            pending = [client.futures.wait() for _ in range(3)] + [pool.submit(client.wait) for _ in range(2)]
            time.sleep(0.1)
            stopping = threading.Thread(target=server.stop)
            start = time.monotonic()
            stopping.start()
            for future in pending:
                with pytest.raises(PeerGone, match="'wait' on unix:"):
                    future.result(2)
            assert time.monotonic() - start < 1
            assert not os.path.exists(f"{folder}/s")
            release.set()
            stopping.join(WAIT)
            server.stop()
            with pytest.raises(PeerGone):
                client.wait()
    finally:
        release.set()


def test_a_killed_server_is_noticed_at_once_even_if_its_child_lives(folder: str) -> None:
    with child(f"{folder}/s") as process, Client(f"unix:{folder}/s", connect_timeout=0.2) as client:
        grandchild = client.fork()
        try:
            pending = [client.futures.sleep(60)]
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                pending.append(pool.submit(client.sleep, 60))
                time.sleep(0.1)
                start = time.monotonic()
                process.kill()
                for future in pending:
                    with pytest.raises(PeerGone):
                        future.result(2)
            assert time.monotonic() - start < 1
            with pytest.raises(PeerGone):
                client.pid()
        finally:
            os.kill(grandchild, signal.SIGKILL)


def test_a_call_runs_at_most_once_unless_retry_is_asked_for(folder: str) -> None:
    path, notes = f"{folder}/s", f"{folder}/notes"
    with Client(f"unix:{path}", connect_timeout=0.2) as client:
        with child(path), pytest.raises(PeerGone):
            client.note(notes)
        assert os.path.getsize(notes) == 1


@pytest.mark.parametrize("pipelined", [False, True])
def test_retry_sends_again_to_the_successor(folder: str, pipelined: bool) -> None:
    path, notes = f"{folder}/s", f"{folder}/notes"
    with contextlib.ExitStack() as stack:

        def resolve() -> str:
            if os.path.exists(notes):
                # The first child left its socket behind; the second takes the path over.
                stack.enter_context(child(path))
            return f"unix:{path}"

        stack.enter_context(child(path))
        client = stack.enter_context(Client(resolve, connect_timeout=WAIT))
        if pipelined:
            assert client.futures.note(notes, retry=1).result(WAIT) == 2
        else:
            assert client.note(notes, retry=1) == 2


def test_a_resolver_may_say_that_the_peer_is_gone_for_good() -> None:
    def gone() -> str:
        raise PeerGone("learner/0 has ended")

    with Client(gone) as client:
        with pytest.raises(PeerGone, match="has ended"):
            client.f()
        with pytest.raises(PeerGone, match="has ended"):
            client.futures.f().result(WAIT)


def test_a_stale_connection_is_replaced_after_a_restart(folder: str) -> None:
    with Client(f"unix:{folder}/s", connect_timeout=2) as client:
        for _ in range(3):
            with Server(Target(), f"unix:{folder}/s"):
                # The first call after a restart finds connections to the old server.
                assert client.increment() == 1
                assert client.futures.increment().result(WAIT) == 2


def test_a_closed_client_says_so(folder: str) -> None:
    with serving(folder) as (_, client):
        pending = client.futures.sleep(0.3)
        client.same(1)
        client.close()
        client.close()
        with pytest.raises(PeerGone, match="closed"):
            pending.result(WAIT)
        with pytest.raises(PeerGone, match="closed"):
            client.same(1)
        with pytest.raises(PeerGone, match="closed"):
            client.futures.same(1).result(WAIT)


def test_a_client_that_nobody_holds_any_more_closes(folder: str) -> None:
    with Server(Target(), f"unix:{folder}/s") as server:
        client = Client(server.address)
        assert client.futures.same(1).result(WAIT) == client.same(1)
        assert server._connections
        del client
        until(lambda: not server._connections)


# Concurrency.


def test_slow_pipelined_calls_run_at_once(folder: str) -> None:
    with serving(folder) as (target, client):
        start = time.monotonic()
        futures = [client.futures.sleep(0.4) for _ in range(16)]
        assert [f.result(WAIT) for f in futures] == [0.4] * 16
        assert time.monotonic() - start < 1
        assert target.most == 16


def test_the_limit_of_threads_is_honoured_over_all_connections(folder: str) -> None:
    with serving(folder, thread_pool_size=3) as (target, client):
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            futures = [client.futures.sleep(0.05) for _ in range(6)]
            futures += [pool.submit(client.sleep, 0.05) for _ in range(6)]
            for future in futures:
                future.result(WAIT)
        assert target.most == 3


def test_a_reply_is_not_held_back_by_a_slow_call_behind_it(folder: str) -> None:
    with serving(folder, thread_pool_size=1) as (_, client):
        for _ in range(20):
            quick = [client.futures.same(i) for i in range(50)]
            slow = client.futures.sleep(0.03)
            behind = client.futures.same(1)
            for future in quick:
                future.result(WAIT)
            slow.result(WAIT)
            behind.result(WAIT)


def test_many_threads_share_a_client(folder: str) -> None:
    with serving(folder) as (_, client):

        def work(number: int) -> None:
            for i in range(50):
                assert client.same((number, i)) == (number, i)
                assert client.futures.same((number, i)).result(WAIT) == (number, i)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for future in [pool.submit(work, number) for number in range(8)]:
                future.result(WAIT)


def test_at_most_so_many_calls_are_in_flight(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlpad.launch.rpc.client.MAX_IN_FLIGHT", 8)
    with serving(folder, thread_pool_size=1) as (_, client):
        blocker = client.futures.sleep(0.3)
        start = time.monotonic()
        futures = [client.futures.same(i) for i in range(100)]
        assert time.monotonic() - start > 0.25
        assert [f.result(WAIT) for f in futures] == list(range(100))
        assert blocker.done()


def test_requests_that_are_held_back_to_travel_together_are_sent_soon(folder: str) -> None:
    with serving(folder, thread_pool_size=64) as (target, client):
        start = time.monotonic()
        futures = [client.futures.sleep(0.3) for _ in range(40)]
        for future in futures:
            future.result(WAIT)
        assert target.most == 40
        assert time.monotonic() - start < 1


def test_callbacks_of_late_futures_may_wait(folder: str) -> None:
    with serving(folder) as (_, client):
        release = threading.Event()
        client.futures.sleep(0.2, timeout=0.05).add_done_callback(lambda _: release.wait(WAIT))
        try:
            with pytest.raises(CallTimeout):
                client.futures.sleep(0.4, timeout=0.1).result(0.3)
        finally:
            release.set()


def test_callbacks_of_futures_may_call(folder: str) -> None:
    with serving(folder) as (_, client):
        done = threading.Event()
        left = [200]

        def again(future: concurrent.futures.Future[int]) -> None:
            left[0] -= 1
            if left[0]:
                client.futures.same(left[0]).add_done_callback(again)
            else:
                assert client.same(3) == 3
                done.set()

        client.futures.same(0).add_done_callback(again)
        assert done.wait(WAIT)


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX warns of all forks, if it is loaded
def test_a_forked_child_makes_connections_of_its_own(folder: str) -> None:
    with child(f"{folder}/s"), Client(f"unix:{folder}/s", connect_timeout=2) as client:
        assert client.futures.pid().result(WAIT) == client.pid()
        pending = client.futures.sleep(0.3)
        process = os.fork()
        if not process:
            code = 1
            try:
                assert client.futures.pid().result(WAIT) == client.pid()
                client.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
        assert pending.result(WAIT) is None
        assert client.pid() == client.futures.pid().result(WAIT)


def test_a_client_can_be_pickled(folder: str) -> None:
    with serving(folder) as (_, client), pickle.loads(pickle.dumps(client)) as copy:
        assert copy.same(1) == client.same(1)
        assert client.same(copy)._address == client._address


# Who may connect.


def test_the_socket_is_the_users_own(folder: str) -> None:
    with serving(folder):
        assert stat.S_IMODE(os.stat(f"{folder}/s").st_mode) == 0o600


def test_addresses_that_cannot_be_used(folder: str) -> None:
    with pytest.raises(ValueError, match="at most 107"):
        Server(Target(), f"unix:{folder}/{'x' * 120}")
    with pytest.raises(ValueError, match="malformed"):
        Server(Target(), "http://localhost")
    with pytest.raises(ValueError, match="without mutual TLS is refused"):
        Server(Target(), "tcp://127.0.0.1:0")
    refused = pytest.raises(ValueError, match="without mutual TLS is refused")
    with Client("tcp://127.0.0.1:1", connect_timeout=0.2) as client, refused:
        client.f()
    with serving(folder), pytest.raises(OSError, match="in use"):
        Server(Target(), f"unix:{folder}/s")


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["RPC_TEST_BOMB"],)


@pytest.mark.parametrize("first", ["nothing", "garbage", "call", "hello of another version", "huge"])
def test_garbage_is_not_unpickled_and_harms_nobody(folder: str, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RPC_TEST_BOMB", f"{folder}/bomb")
    bomb = pickle.dumps(("same", (Bomb(),), {}))
    call = streams.pack(streams.CALL, 1, bomb)
    data = {
        "nothing": b"",
        "garbage": os.urandom(1000) + bomb,
        "call": call,
        "hello of another version": streams.pack(streams.HELLO, 0, b"999 x") + call,
        "huge": struct.pack("<2sHIQQ", b"rP", streams.HELLO, 1 << 19, 0, 1 << 39) + b"\xff" * 64,
    }[first]
    with serving(folder) as (_, client):
        assert client.same(1) == 1
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(f"{folder}/s")
            raw.settimeout(WAIT)
            with contextlib.suppress(ConnectionError):
                raw.sendall(data)
                raw.shutdown(socket.SHUT_WR)
                while raw.recv(1000):
                    pass
        assert client.same(2) == 2
        assert not os.path.exists(f"{folder}/bomb")


def test_another_version_of_the_protocol_is_refused(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(folder) as (_, client):
        monkeypatch.setattr(streams, "hello", lambda name: b"999 x")
        with pytest.raises(PeerGone, match="speaks version 999"):
            client.same(1)


@pytest.fixture(scope="module")
def credentials() -> security.Credentials:
    pytest.importorskip("cryptography")
    return security.make_credentials()


def test_round_trips_over_tcp_with_mutual_tls(credentials: security.Credentials) -> None:
    server = Server(Target(), "tcp://127.0.0.1:0", credentials=credentials)
    with server, Client(server.address, credentials=credentials, connect_timeout=2) as client:
        assert not server.address.endswith(":0")
        array = np.arange(1 << 20, dtype=np.float64)
        for _ in range(3):
            np.testing.assert_array_equal(client.same(array), array)
            assert client.increment()
        futures = [client.futures.same(array if i % 3 == 0 else i) for i in range(30)]
        for i, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(WAIT), array if i % 3 == 0 else i)
        assert len(client._state.idle) == 1  # it was used again, session tickets and all
        with pytest.raises(ValueError, match="too blue"):
            client.raise_value_error()
        with pytest.raises(CallTimeout):
            client.sleep(0.3, timeout=0.1)
        assert "increment" in list_methods(client)
        pending = client.futures.sleep(0.3)
        server.stop()
        with pytest.raises(PeerGone):
            pending.result(2)


def test_strangers_are_refused_over_tcp(
    credentials: security.Credentials, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RPC_TEST_BOMB", f"{folder}/bomb")
    with Server(Target(), "tcp://127.0.0.1:0", credentials=credentials) as server:
        host, port = server.address.removeprefix("tcp://").split(":")
        raw = socket.create_connection((host, int(port)), timeout=WAIT)
        with raw, contextlib.suppress(ConnectionError):
            raw.sendall(streams.pack(streams.HELLO, 0, streams.hello("")))
            raw.sendall(streams.pack(streams.CALL, 1, pickle.dumps(("same", (Bomb(),), {}))))
            while raw.recv(1000):
                pass
        with Client(server.address, credentials=security.make_credentials(), connect_timeout=2) as client:
            start = time.monotonic()
            with pytest.raises(PeerGone, match="connecting failed"):
                client.same(1)
            assert time.monotonic() - start < 1
        # One who trusts anybody, but shows another authority's certificate.
        context = security.make_credentials().client_context()
        context.verify_mode = ssl.CERT_NONE
        plain = socket.create_connection((host, int(port)), timeout=WAIT)
        refused = pytest.raises((ssl.SSLError, ConnectionError))
        with plain, refused, context.wrap_socket(plain) as secure:
            secure.sendall(streams.pack(streams.HELLO, 0, streams.hello("")))
            if not secure.recv(100):
                raise ConnectionError("closed")
        assert not os.path.exists(f"{folder}/bomb")
        with Client(server.address, credentials=credentials, connect_timeout=2) as client:
            assert client.same(1) == 1
