"""What every launcher does the same: running, serving, failing and ending."""

from __future__ import annotations

import concurrent.futures
import functools
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import rlpad.launch as lp

from .conftest import LONG, Start, end, wait_until


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


class TestRunning:
    """Nodes run, finish, and are closed."""

    def test_function(self, launcher: str, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        for index in range(3):
            program.add_node(lp.PyNode(write, str(tmp_path / "out"), text=f"{index}"), label="n")
        run = start(program, launcher)
        outcome = end(run)
        assert sorted(lines(tmp_path / "out")) == ["0", "1", "2"]
        assert outcome == lp.Outcome("completed", "every node has finished", 0)
        assert {name: status.up for name, status in run.status().items()} == dict.fromkeys(
            ("n/0", "n/1", "n/2"), False
        )

    @pytest.mark.parametrize("kind", [lp.PyClassNode, lp.CourierNode])
    def test_object_with_run(self, launcher: str, start: Start, tmp_path: Path, kind: Any) -> None:
        assert end(start(one(kind(Runner, str(tmp_path / "out"))), launcher)).status == "completed"
        assert lines(tmp_path / "out") == ["run", "close run"]

    @pytest.mark.parametrize("kind", [lp.PyClassNode, lp.CourierNode])
    def test_worker(self, launcher: str, start: Start, tmp_path: Path, kind: Any) -> None:
        assert end(start(one(kind(Worker, str(tmp_path / "out"))), launcher)).status == "completed"
        steps = [f"worker step {n}" for n in (1, 2, 3)]
        assert lines(tmp_path / "out") == ["worker made", *steps, "worker close"]

    def test_worker_idles_when_it_cannot_step(self, launcher: str, start: Start, tmp_path: Path) -> None:
        end(start(one(lp.PyClassNode(Worker, str(tmp_path / "out"), 2, every=3)), launcher))
        found = lines(tmp_path / "out")
        assert [line for line in found if line != "worker idle"] == [
            "worker made",
            "worker step 1",
            "worker step 2",
            "worker close",
        ]
        # One thread for all idles only when a whole round has come to nothing.
        assert found.count("worker idle") == (3 if launcher == "inline" else 4)

    def test_worker_that_has_finished_before(self, launcher: str, start: Start, tmp_path: Path) -> None:
        end(start(one(lp.PyClassNode(Worker, str(tmp_path / "out"), 0)), launcher))
        assert lines(tmp_path / "out") == ["worker made", "worker close"]

    def test_neither(self, launcher: str, start: Start, tmp_path: Path) -> None:
        program = one(lp.PyClassNode(Neither, str(tmp_path / "out")))
        program.add_node(lp.PyClassNode(Worker, str(tmp_path / "other")), label="w")
        assert end(start(program, launcher)).reason == "every node has finished"
        assert lines(tmp_path / "out") == ["made", "closed"]

    def test_ends_when_the_last_has_finished(self, launcher: str, start: Start, tmp_path: Path) -> None:
        program = one(lp.CourierNode(Service))
        for steps in (1, 20):
            program.add_node(lp.PyClassNode(Worker, str(tmp_path / str(steps)), steps), label="w")
        assert end(start(program, launcher)).status == "completed"
        for steps in (1, 20):
            found = lines(tmp_path / str(steps))
            assert len(found) == steps + 2
            assert found[-1] == "worker close"

    def test_finished_node_still_serves(self, concurrent: str, start: Start, tmp_path: Path) -> None:
        program = one(lp.PyClassNode(Waits), label="waits")
        worker = program.add_node(lp.CourierNode(Worker, str(tmp_path / "a"), 2), label="w")
        runner = program.add_node(lp.CourierNode(Runner, str(tmp_path / "b"), "r"), label="r")
        run = start(program, concurrent)
        wait_until(lambda: run.status()["w/0"].state == run.status()["r/0"].state == "finished")
        assert run.status()["w/0"].up
        assert run.status()["waits/0"].state == "running"
        assert run.client(worker).steps_taken() == 2
        assert run.client(runner).answer() == "r"
        assert lines(tmp_path / "b") == ["r"]
        run.stop()
        end(run)
        assert lines(tmp_path / "b") == ["r", "close r"]

    def test_workers_close_before_services(self, launcher: str, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        out = tmp_path / "out"
        service = program.add_node(lp.CourierNode(Service, str(out)), label="service")
        for name in ("a", "b"):
            program.add_node(lp.PyClassNode(Worker, str(out), 1, name=name, other=service), label="w")
        end(start(program, launcher))
        found = lines(out)
        assert found[-1] == "service close"
        assert found.count("service close") == 1
        assert {line for line in found if "hears" in line} == {"a hears pong", "b hears pong"}

    def test_calls_between_nodes(self, launcher: str, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        service = program.add_node(lp.CourierNode(Service), label="service")
        program.add_node(lp.PyNode(call_much, service, str(tmp_path / "out")), label="caller")
        end(start(program, launcher))
        assert lines(tmp_path / "out") == ["4950", "4950", "caught of a call"]


def call_much(service: Any, path: str) -> None:
    """Calls a service in all ways."""
    write(path, str(sum(service.echo(n) for n in range(100))))
    write(path, str(sum(future.result(LONG) for future in [service.futures.echo(n) for n in range(100)])))
    try:
        service.fail("of a call")
    except CustomError as error:
        write(path, f"caught {error}")


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

    def test_timeout_while_the_node_is_built(self, concurrent: str, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        handle = program.add_node(lp.CourierNode(slow_service, str(tmp_path / "go")), label="s")
        client = start(program, concurrent).client(handle)
        with pytest.raises(lp.CallTimeout):
            client.add(1, timeout=0.05)
        future = client.futures.add(1)
        assert not future.done()
        (tmp_path / "go").touch()
        assert future.result(LONG) == 2
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

    def test_pending_futures(self, concurrent: str, start: Start) -> None:
        run, client = serve(start, concurrent)
        futures = [client.futures.wait() for _ in range(40)]
        run.stop(status="completed")
        end(run)
        for future in futures:
            assert isinstance(future.exception(LONG), lp.PeerGone)


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


class TestFailing:
    """What a node raises comes out of `wait`, with its name."""

    def check(self, run: lp.Run, kind: type, text: str, node: str) -> lp.Outcome:
        """Waits for a failure, and checks what is told of it."""
        with pytest.raises(kind, match=text) as info:
            run.wait(LONG)
        notes = [note for note in info.value.__notes__ if note.startswith("raised in node")]
        assert len(notes) == 1
        assert notes[0].startswith(f"raised in node {node}")
        outcome = run.outcome
        assert outcome is not None
        assert (outcome.status, outcome.exit_code, outcome.error) == ("failed", 1, info.value)
        assert outcome.reason.startswith(f"node {node} failed")
        assert "\n" not in outcome.reason
        # Raised once: who asks again is told only that it has ended.
        assert run.wait(LONG) is True
        return outcome

    def test_function(self, launcher: str, start: Start) -> None:
        run = start(one(lp.PyNode(fail, CustomError("a\nb")), label="bad"), launcher)
        outcome = self.check(run, CustomError, "a\nb", "bad/0")
        assert outcome.reason == "node bad/0 failed: CustomError: a"
        assert run.status()["bad/0"].state == "failed"

    def test_without_text(self, launcher: str, start: Start) -> None:
        outcome = self.check(start(one(lp.PyNode(fail, KeyError())), launcher), KeyError, "^", "n/0")
        assert outcome.reason == "node n/0 failed: KeyError: KeyError"

    def test_stops_the_others(self, launcher: str, start: Start, tmp_path: Path) -> None:
        bad = tmp_path / "bad"
        node = lp.PyClassNode(Worker, str(bad), 5, every=2, fails_at="step 2", name="bad")
        program = one(lp.PyClassNode(Waits), label="waits")
        program.add_node(node, label="bad")
        run = start(program, launcher)
        self.check(run, CustomError, "step 2", "bad/0")
        # Closed once, though it failed.
        assert lines(bad)[-2:] == ["bad step 2", "bad close"]
        assert lines(bad).count("bad close") == 1
        assert run.status()["waits/0"].state == "stopped"

    @pytest.mark.parametrize("kind", [lp.PyClassNode, lp.CourierNode])
    def test_constructor(self, launcher: str, start: Start, tmp_path: Path, kind: Any) -> None:
        program = one(lp.PyClassNode(Waits), label="waits")
        program.add_node(kind(Worker, str(tmp_path / "out"), fails_at="made"), label="bad")
        self.check(start(program, launcher), CustomError, "made", "bad/0")
        assert lines(tmp_path / "out") == ["worker made"]

    def test_constructor_of_a_node_that_others_call(self, launcher: str, start: Start) -> None:
        program = lp.Program("p")
        bad = lp.CourierNode(fail, CustomError("not built"))
        program.add_node(lp.PyClassNode(asks, bad.create_handle()), label="asks")
        program.add_node(bad, label="bad")
        self.check(start(program, launcher), CustomError, "not built", "bad/0")

    def test_idle(self, launcher: str, start: Start, tmp_path: Path) -> None:
        node = lp.PyClassNode(Worker, str(tmp_path / "out"), every=2, fails_at="idle")
        self.check(start(one(node), launcher), CustomError, "idle", "n/0")
        assert lines(tmp_path / "out") == ["worker made", "worker idle", "worker close"]

    def test_close(self, launcher: str, start: Start, tmp_path: Path) -> None:
        program = one(lp.PyClassNode(Worker, str(tmp_path / "a"), fails_at="close"), label="a")
        program.add_node(lp.PyClassNode(Worker, str(tmp_path / "b")), label="b")
        outcome = self.check(start(program, launcher), CustomError, "close", "a/0")
        assert outcome.reason.startswith("node a/0 failed when it was closed")
        # Others are closed all the same.
        assert lines(tmp_path / "b")[-1] == "worker close"

    def test_close_after_another_failure(self, launcher: str, start: Start, tmp_path: Path) -> None:
        program = one(lp.CourierNode(BadClose), label="c")
        program.add_node(lp.CourierNode(Neither, str(tmp_path / "n")), label="n")
        program.add_node(lp.PyNode(fail, CustomError("first")), label="bad")
        self.check(start(program, launcher), CustomError, "^first", "bad/0")
        assert lines(tmp_path / "n") == ["made", "closed"]

    def test_call_of_another(self, launcher: str, start: Start) -> None:
        program = lp.Program("p")
        service = program.add_node(lp.CourierNode(Service), label="service")
        program.add_node(lp.PyNode(call_fail, service), label="caller")
        # It's the caller that didn't see to it.
        self.check(start(program, launcher), CustomError, "called", "caller/0")

    @pytest.mark.parametrize("error", [SystemExit(3), SystemExit(0)])
    def test_exit(self, launcher: str, start: Start, error: BaseException) -> None:
        run = start(one(lp.PyNode(fail, error), label="bad"), launcher)
        with pytest.raises(lp.NodeFailed, match="bad/0") as info:
            run.wait(LONG)
        assert info.value.node == "bad/0"
        assert run.outcome is not None
        assert (run.outcome.status, run.outcome.exit_code) == ("failed", 1)

    def test_first_failure_counts(self, launcher: str, start: Start) -> None:
        program = lp.Program("p")
        for name in "abc":
            program.add_node(lp.PyNode(fail, CustomError(name)), label=name)
        run = start(program, launcher)
        with pytest.raises(CustomError) as info:
            run.wait(LONG)
        assert info.value.__notes__ == [f"raised in node {info.value}/0"]


def asks(service: Any) -> None:
    """Calls what isn't built."""
    service.ping()


def call_fail(service: Any) -> None:
    """Doesn't catch what a call raises."""
    service.fail("called")


class BadClose:
    """Can't be closed."""

    def close(self) -> None:
        """Raises."""
        raise CustomError("close")


class TestEnding:
    """Stopping, killing, waiting."""

    def test_wait_with_timeout(self, launcher: str, start: Start) -> None:
        run = start(one(lp.PyClassNode(Waits)), launcher)
        for _ in range(3):
            began = time.monotonic()
            assert run.wait(0.05) is False
            assert 0.05 <= time.monotonic() - began < 5.0
            assert run.outcome is None
        assert run.status()["n/0"].state == "running"
        run.stop("that's it", "completed")
        assert end(run) == lp.Outcome("completed", "that's it", 0)
        assert run.wait(0.0) is True
        assert run.wait() is True

    def test_stop_after_the_end(self, launcher: str, start: Start, tmp_path: Path) -> None:
        run = start(one(lp.PyNode(write, str(tmp_path / "out"), "x")), launcher)
        outcome = end(run)
        run.stop("too late", "failed")
        run.kill()
        assert run.outcome == outcome

    def test_context_manager(self, launcher: str, tmp_path: Path) -> None:
        program = one(lp.CourierNode(Service, str(tmp_path / "out")), label="s")
        program.add_node(lp.PyClassNode(Waits), label="waits")
        with lp.launch(program, launcher) as run:
            assert isinstance(run, lp.Run)
            run.wait(0.05)
            assert run.outcome is None
        assert run.outcome is not None
        assert run.outcome.status == "interrupted"
        assert lines(tmp_path / "out") == ["service close"]

    def test_context_manager_passes_errors_on(self, launcher: str) -> None:
        with (
            pytest.raises(CustomError, match="mine"),
            lp.launch(one(lp.PyClassNode(Waits)), launcher) as run,
        ):
            raise CustomError("mine")
        assert run.outcome is not None

    def test_stop_at_once(self, launcher: str, start: Start) -> None:
        run = start(one(lp.PyClassNode(Waits)), launcher)
        run.stop("at once", "completed")
        assert end(run).reason == "at once"

    def test_launched_twice(self, launcher: str, start: Start, tmp_path: Path) -> None:
        program = one(lp.PyClassNode(Worker, str(tmp_path / "out"), 1))
        for _ in range(2):
            assert end(start(program, launcher)).status == "completed"
        assert lines(tmp_path / "out") == ["worker made", "worker step 1", "worker close"] * 2


def ignore_stop(path: str) -> None:
    """Goes on until a file is there."""
    Path(path + ".running").touch()
    wait_until(Path(path).exists)


class BlockedClose:
    """Takes long to be closed."""

    def __init__(self, path: str):
        self._path = path

    def close(self) -> None:
        """Waits for a file."""
        wait_until(Path(self._path).exists)


class TestThreads:
    """Threads can't be killed, only named and left."""

    def test_ignores_the_stop(self, start: Start, tmp_path: Path) -> None:
        program = one(lp.PyNode(ignore_stop, str(tmp_path / "go")), label="deaf")
        program.add_node(lp.CourierNode(Service, str(tmp_path / "out")), label="s")
        run = start(program, "threads", stop_notice_s=0.2)
        wait_until((tmp_path / "go.running").exists)
        run.stop("enough", "completed")
        began = time.monotonic()
        outcome = end(run)
        assert 0.1 < time.monotonic() - began < 10.0
        assert outcome.killed == ("deaf/0",)
        assert outcome.reason == "enough; ignored the stop and had to be killed: deaf/0"
        assert lines(tmp_path / "out") == ["service close"]
        (tmp_path / "go").touch()

    def test_cannot_be_closed_in_time(self, start: Start, tmp_path: Path) -> None:
        program = one(lp.CourierNode(BlockedClose, str(tmp_path / "go")), label="slow")
        program.add_node(lp.CourierNode(Service, str(tmp_path / "out")), label="s")
        run = start(program, "threads", stop_notice_s=0.2)
        assert run.wait(0.05) is False
        run.stop("enough", "completed")
        assert end(run).killed == ("slow/0",)
        assert lines(tmp_path / "out") == ["service close"]
        (tmp_path / "go").touch()

    def test_serves_for_ever_without_workers(self, start: Start) -> None:
        run, client = serve(start, "threads")
        assert run.wait(0.1) is False
        assert client.ping() == "pong"

    def test_cancelled_call(self, start: Start) -> None:
        program = lp.Program("p")
        node = lp.CourierNode(Service, courier_kwargs={"thread_pool_size": 1})
        handle = program.add_node(node, label="s")
        run = start(program, "threads")
        client = run.client(handle)
        first, second = client.futures.wait(), client.futures.add(1)
        assert second.cancel()
        done, _ = concurrent.futures.wait([second], timeout=LONG)
        assert done == {second}
        run.stop()
        end(run)
        assert isinstance(first.exception(LONG), lp.PeerGone)
        assert second.cancelled()
