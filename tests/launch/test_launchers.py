"""What every launcher does the same: running, finishing, stopping, closing."""

from __future__ import annotations

import concurrent.futures
import time
from pathlib import Path
from typing import Any

import pytest

import rlpad.launch as lp

from .conftest import LONG, Start, end, wait_until
from .example_nodes import (
    CustomError,
    Neither,
    Runner,
    Service,
    Waits,
    Worker,
    lines,
    one,
    serve,
    write,
)


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
        assert {name: status.up for name, status in run.status().items()} == dict.fromkeys(("n/0", "n/1", "n/2"), False)

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

    @pytest.mark.parametrize("kind", [lp.PyClassNode, lp.CourierNode])
    @pytest.mark.parametrize("made", [Runner, Worker])
    def test_not_run(self, launcher: str, start: Start, tmp_path: Path, kind: Any, made: Any) -> None:
        node = kind(made, str(tmp_path / "out"))
        node.disable_run()
        program = one(node)
        program.add_node(lp.PyClassNode(Worker, str(tmp_path / "other")), label="w")
        assert end(start(program, launcher)).status == "completed"
        assert lines(tmp_path / "out") == (["close run"] if made is Runner else ["worker made", "worker close"])
        node.enable_run()
        assert end(start(program, launcher)).status == "completed"
        assert ("run" if made is Runner else "worker step 3") in lines(tmp_path / "out")

    def test_not_run_but_served(self, concurrent: str, start: Start, tmp_path: Path) -> None:
        node = lp.CourierNode(Worker, str(tmp_path / "out"), steps=0)
        node.disable_run()
        program = lp.Program("p")
        handle = program.add_node(node, label="n")
        run = start(program, concurrent)
        client = run.client(handle)
        assert [client.step(), client.step(), client.steps_taken()] == [True, True, 2]
        assert run.wait(0.1) is False

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
        expected = {"waits/0": "running", "w/0": "finished", "r/0": "finished"}
        wait_until(lambda: {name: status.state for name, status in run.status().items()} == expected)
        assert run.status()["w/0"].up
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


class TestEnding:
    """Stopping, killing, waiting."""

    def test_wait_with_timeout(self, launcher: str, start: Start) -> None:
        run = start(one(lp.PyClassNode(Waits)), launcher)
        wait_until(lambda: run.wait(0.01) or run.status()["n/0"].up)
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
        # A process is killed at once; what can't be killed is stopped.
        assert lines(tmp_path / "out") == ([] if launcher == "processes" else ["service close"])

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
