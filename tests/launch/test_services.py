"""Calls of a `CourierNode`."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from pathlib import Path

import pytest

import rlpad.launch as lp

from .conftest import LONG, Start, end, wait_until
from .example_nodes import CustomError, Limited, Service, Stepper, lines, serve


class TestService:
    """Calls of a `CourierNode`."""

    @pytest.fixture(params=[False, True])
    def serialized(self, request: pytest.FixtureRequest) -> bool:
        """Once directly, once through the codec."""
        return request.param

    def test_arguments(self, launcher: str, start: Start, serialized: bool) -> None:
        _, client = serve(start, launcher, test_serialization=serialized)
        assert client.add(1) == 2
        assert client.add(1, 2, 3, 4, scale=2) == 20
        assert client.add(y=5, x=2) == 7
        assert client.add(1, timeout=LONG) == 2
        assert client.add(1, timeout=LONG, retry=2) == 2
        assert client(7) == 49
        assert client(7, timeout=LONG) == 49
        assert client.made_later(5) == 15
        assert client.of_class() == "Service"
        assert client.static(3) == 3
        assert client.echo({"a": [1, (2, b"3")]}) == {"a": [1, (2, b"3")]}
        assert client.echo(None) is None

    def test_futures(self, launcher: str, start: Start, serialized: bool) -> None:
        _, client = serve(start, launcher, test_serialization=serialized)
        futures = [client.futures.add(n, scale=2) for n in range(50)]
        assert all(isinstance(future, concurrent.futures.Future) for future in futures)
        done, missing = concurrent.futures.wait(futures, timeout=LONG)
        assert not missing
        assert len(done) == 50
        assert [future.result() for future in futures] == [2 * (n + 1) for n in range(50)]
        assert client.futures.add(1, timeout=LONG, retry=1).result(LONG) == 2
        assert client.futures(7).result(LONG) == 49
        failed = client.futures.fail("later").exception(LONG)
        assert (type(failed), str(failed)) == (CustomError, "later")
        unknown = client.futures.ad(1).exception(LONG)
        assert isinstance(unknown, AttributeError)

    def test_exceptions(self, launcher: str, start: Start, serialized: bool) -> None:
        run, client = serve(start, launcher, test_serialization=serialized)
        with pytest.raises(CustomError, match="^oh no$"):
            client.fail("oh no")
        with pytest.raises(KeyError, match="missing"):
            client.lookup()
        with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
            client.add(1, z=2)
        with pytest.raises(CustomError, match="^oh no$"):
            client.fail("oh no", timeout=LONG)
        # The service lives on.
        assert client.add(1) == 2
        assert run.outcome is None

    def test_timeout_error_of_its_own(self, launcher: str, start: Start) -> None:
        _, client = serve(start, launcher)
        with pytest.raises(TimeoutError, match="of its own") as info:
            client.timed_out(timeout=LONG)
        assert not isinstance(info.value, lp.CallTimeout)

    def test_unknown_method(self, launcher: str, start: Start) -> None:
        _, client = serve(start, launcher)
        with pytest.raises(AttributeError, match="service/0.* has no method 'ech'; did you mean 'echo'"):
            client.ech(1)
        with pytest.raises(AttributeError, match="has no method 'attribute'"):
            client.attribute()

    def test_list_methods(self, launcher: str, start: Start, tmp_path: Path) -> None:
        _, client = serve(start, launcher, str(tmp_path / "out"))
        names = lp.list_methods(client)
        assert names == sorted(names)
        assert {"__call__", "add", "echo", "fail"} <= set(names)
        assert not {"attribute", "prop", "cached", "_private"} & set(names)
        assert lines(tmp_path / "out") == []
        with pytest.raises(TypeError, match="list_methods needs a client of a node, got 'service/0'"):
            lp.list_methods("service/0")

    def test_private_names(self, launcher: str, start: Start, tmp_path: Path) -> None:
        _, client = serve(start, launcher, str(tmp_path / "out"))
        for target in (client, client.futures):
            for name in ("_private", "__len__", "__getitem__"):
                assert not hasattr(target, name)
        assert lines(tmp_path / "out") == []

    def test_properties_are_not_evaluated(self, launcher: str, start: Start, tmp_path: Path) -> None:
        _, client = serve(start, launcher, str(tmp_path / "out"))
        for name in ("prop", "cached"):
            with pytest.raises(AttributeError, match=f"has no method '{name}'"):
                getattr(client, name)(1)
        with pytest.raises(AttributeError, match="has no method 'pro'"):
            client.pro()
        assert lines(tmp_path / "out") == []

    def test_object_that_cannot_be_called(self, launcher: str, start: Start) -> None:
        program = lp.Program("p")
        handle = program.add_node(lp.CourierNode(Stepper), label="s")
        client = start(program, launcher).client(handle)
        with pytest.raises(AttributeError, match="has no method '__call__'"):
            client(1)

    def test_step_with_an_argument_makes_no_worker(self, launcher: str, start: Start) -> None:
        program = lp.Program("p")
        handle = program.add_node(lp.CourierNode(Stepper), label="s")
        run = start(program, launcher)
        client = run.client(handle)
        assert [client.step(n) for n in (1, 2, 3)] == [1, 3, 6]
        run.stop(status="completed")
        assert end(run).status == "completed"

    def test_timeout(self, concurrent: str, start: Start) -> None:
        _, client = serve(start, concurrent)
        began = time.monotonic()
        with pytest.raises(lp.CallTimeout, match="wait.*service/0.*wasn't answered"):
            client.wait(timeout=0.05)
        assert 0.05 <= time.monotonic() - began < 5.0
        assert client.add(1, timeout=LONG) == 2
        client.let_go()
        assert client.wait(timeout=LONG) == "let go"

    def test_timeout_of_a_future(self, concurrent: str, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        node = lp.CourierNode(Service, courier_kwargs={"thread_pool_size": 1})
        handle = program.add_node(node, label="s")
        client = start(program, concurrent).client(handle)
        assert client.ping() == "pong"
        began = time.monotonic()
        # One is under way when its time is over, two wait for their turn; the last has more time.
        go = str(tmp_path / "go")
        late = [client.futures.hang(go, timeout=seconds) for seconds in (0.1, 0.2, 0.15)]
        patient = client.futures.add(1, timeout=LONG)
        for future in late:
            with pytest.raises(lp.CallTimeout, match="hang.*s/0.*wasn't answered in time"):
                future.result(LONG)
        assert 0.2 <= time.monotonic() - began < 5.0
        assert not patient.done()
        (tmp_path / "go").touch()
        assert patient.result(LONG) == 2

    def test_timeout_while_the_node_is_built(self, concurrent: str, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        handle = program.add_node(lp.CourierNode(slow_service, str(tmp_path / "go")), label="s")
        client = start(program, concurrent).client(handle)
        with pytest.raises(lp.CallTimeout):
            client.add(1, timeout=0.05)
        # Between processes it's the call itself that waits, not its future.
        threading.Timer(0.1, (tmp_path / "go").touch).start()
        assert client.futures.add(1).result(LONG) == 2
        assert client.add(1) == 2

    def test_pool_size(self, concurrent: str, start: Start) -> None:
        for size, calls in ((1, 8), (3, 20)):
            program = lp.Program("p")
            node = lp.CourierNode(Limited, courier_kwargs={"thread_pool_size": size})
            handle = program.add_node(node, label="s")
            run = start(program, concurrent)
            client = run.client(handle)
            for future in [client.futures.work() for _ in range(calls)]:
                future.result(LONG)
            assert client.most() <= size
            run.kill()

    def test_peer_gone(self, launcher: str, start: Start) -> None:
        run, client = serve(start, launcher)
        assert client.ping() == "pong"
        run.stop(status="completed")
        end(run)
        for call in (client.ping, lambda: client.ping(timeout=LONG), client.unknown, lambda: client(1)):
            with pytest.raises(lp.PeerGone, match="service/0"):
                call()
        assert isinstance(client.futures.ping().exception(LONG), lp.PeerGone)

    def test_pending_futures(self, concurrent: str, start: Start, tmp_path: Path) -> None:
        run, client = serve(start, concurrent)
        futures = [client.futures.hang(str(tmp_path / "go")) for _ in range(40)]
        run.stop(status="completed")
        end(run)
        for future in futures:
            assert isinstance(future.exception(LONG), lp.PeerGone)
        (tmp_path / "go").touch()


def slow_service(path: str) -> Service:
    """Makes a service once a file is there."""
    wait_until(Path(path).exists)
    return Service()


class TestSerialization:
    """`test_serialization` shows what would go wrong between processes."""

    def test_unpicklable(self, launcher: str, start: Start) -> None:
        _, client = serve(start, launcher, test_serialization=True)
        with pytest.raises(TypeError, match="the arguments of 'echo' can't be pickled"):
            client.echo(threading.Lock())
        with pytest.raises(TypeError, match="the result of 'unpicklable' can't be pickled"):
            client.unpicklable()
        assert client.echo(1) == 1

    def test_arguments_do_not_leak_back(self, launcher: str, start: Start) -> None:
        _, client = serve(start, launcher, test_serialization=True)
        values = [1]
        assert client.append(values) == 2
        assert client.futures.append(values).result(LONG) == 2
        assert values == [1]
        echoed = client.echo(values)
        assert echoed == values
        assert echoed is not values

    @pytest.mark.parametrize("name", ["inline", "threads"])
    def test_directly_without(self, name: str, start: Start) -> None:
        _, client = serve(start, name)
        lock = threading.Lock()
        assert client.echo(lock) is lock
