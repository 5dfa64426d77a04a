"""Calls between processes: timeouts, and peers that go away."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import threading
import time

import numpy as np
import pytest

from rlpad.launch.errors import CallTimeout, PeerGone
from rlpad.launch.rpc import Client, Server

from .serving import WAIT, Target, child, serving, until


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
