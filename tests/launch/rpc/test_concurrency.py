"""Calls between processes: many at once."""

from __future__ import annotations

import concurrent.futures
import os
import pickle
import threading
import time

import pytest

from rlpad.launch.errors import CallTimeout
from rlpad.launch.rpc import Client

from .serving import WAIT, child, serving


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


@pytest.mark.parametrize("served_before", [0, 1])
def test_without_further_threads_connections_are_served_in_turn(
    folder: str, served_before: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(thread: threading.Thread) -> None:
        if thread.name.endswith("-connection"):
            raise RuntimeError("can't start new thread")
        really_start(thread)

    really_start = threading.Thread.start
    with serving(folder) as (_, client):
        for value in range(served_before):
            assert client.same(value) == value
        monkeypatch.setattr(threading.Thread, "start", start)
        for value in range(3):
            with Client(f"unix:{folder}/s", connect_timeout=WAIT) as other:
                # The call that is slow can't be overtaken, nor does it lose the one behind it.
                slow, behind = other.futures.sleep(0.01), other.futures.same(value)
                assert (slow.result(WAIT), behind.result(WAIT)) == (0.01, value)
                for before in range(served_before):
                    assert client.same(before) == before
        monkeypatch.undo()
        with Client(f"unix:{folder}/s") as one, Client(f"unix:{folder}/s") as another:
            assert [one.same(1), another.same(2)] == [1, 2]
    assert [r.message.split(": ")[0] for r in caplog.records] == ["server Target serves further connections in turn"]


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
