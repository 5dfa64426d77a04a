"""Nodes that die: what each policy makes of it, and what callers see meanwhile."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import rlpad.launch as lp
from rlpad.launch import context as context_lib

from .conftest import LONG, Start, end, wait_until
from .example_nodes import lines, write

#: The shortest bound there may be.
BOUND = 2.0
#: Seconds that may pass between what should happen and when a test sees it, on a machine that has much to do.
MARGIN = 3.0

AGAIN = lp.Restart(max_restarts=5, backoff_s=0.02)


class Service:
    """Tells who answers, and writes down what it's called for."""

    def __init__(self, path: str = ""):
        self._path = path

    def who(self) -> tuple[str, int, int]:
        """Returns name, epoch and process of the node."""
        return lp.node_info().name, lp.node_info().epoch, os.getpid()

    def hang(self, token: str) -> str:
        """Writes down that it's called, and takes long in the first epoch."""
        write(self._path, token)
        if lp.node_info().epoch == 1:
            time.sleep(LONG)
        return token


def grouped(label: str, node: lp.Node, policy: Any, program: lp.Program) -> lp.Handle:
    """Adds a node under a policy."""
    with program.group(label, on_failure=policy):
        return program.add_node(node)


def succeeded(run: lp.Run, name: str, epoch: int = 2) -> lp.NodeStatus:
    """Waits until a node has been started again."""
    wait_until(lambda: run.status()[name].epoch == epoch and run.status()[name].up)
    return run.status()[name]


def freeze(pid: int) -> None:
    """Stops a process, and waits until all of its threads have stopped."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    wait_until(
        lambda: all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks.iterdir())
    )


class TestStuck:
    """A node that gives no sign of life is killed, and has died."""

    def test_stopped(self, start: Start, capfd: pytest.CaptureFixture[str]) -> None:
        program = lp.Program("p")
        handles = [
            grouped(label, lp.CourierNode(Service), policy, program)
            for label, policy in (("again", AGAIN), ("spare", lp.Ignore()), ("other", lp.Stop()))
        ]
        run = start(program, "processes", heartbeat_timeout_s=BOUND)
        clients = [run.client(handle) for handle in handles]
        pids = [client.who()[2] for client in clients]
        pending = [client.futures.who() for client in clients]
        for future in pending:
            future.result(LONG)
        for pid in pids[:2]:
            freeze(pid)
        began = time.monotonic()
        pending = [client.futures.who() for client in clients]
        with pytest.raises(lp.CallTimeout):
            clients[1].who(timeout=0.1)
        # A thread that would wait for an answer hears that there will be none.
        with pytest.raises(lp.PeerGone, match="again/0"):
            clients[0].who()
        assert BOUND - 1.5 < time.monotonic() - began < BOUND + MARGIN
        for future in pending[:2]:
            assert isinstance(future.exception(MARGIN), lp.PeerGone), future.result()
        assert pending[2].result(MARGIN) == ("other/0", 1, pids[2])
        name, epoch, pid = clients[0].who()
        assert (name, epoch, pid in pids) == ("again/0", 2, False)
        with pytest.raises(lp.PeerGone, match="spare/0 has ended"):
            clients[1].who()
        assert run.outcome is None
        errors = capfd.readouterr().err
        assert "node again/0 gave no sign of life for 2 s and was killed; restart 1 of 5" in errors
        assert "node spare/0 gave no sign of life for 2 s and was killed; goes on without it" in errors

    def test_midway_through_a_message(self, start: Start) -> None:
        program = lp.Program("p")
        grouped("bad", lp.PyNode(stuck_midway), AGAIN, program)
        began = time.monotonic()
        # It mustn't hold up the supervisor either.
        assert end(start(program, "processes", heartbeat_timeout_s=BOUND)).status == "completed"
        assert time.monotonic() - began > BOUND - 1.5

    def test_before_it_has_begun(self, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # Its process is started anew, and so takes long to have a group of its own that could be killed.
        module = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        (tmp_path / "rlpad_threaded_module.py").write_text(module)
        monkeypatch.syspath_prepend(str(tmp_path))
        program = lp.Program("p")
        # More than a pipe takes, so that nobody may wait for it to be read.
        handle = grouped("again", lp.CourierNode(Service, "x" * 200_000), AGAIN, program)
        run = start(program, "processes", heartbeat_timeout_s=BOUND, preload=("rlpad_threaded_module",))
        pid = wait_until(lambda: run.status()["again/0"].pid)
        freeze(pid)
        assert os.getpgid(pid) != pid
        assert run.client(handle).who()[1] == 2


def stuck_midway() -> None:
    """Gets stuck within a message to the supervisor, as a node may that is stopped."""
    if lp.node_info().epoch > 1:
        return
    control = context_lib.current()._control  # type: ignore[attr-defined]
    with control._send_lock:
        control._channel._socket.sendall(struct.pack("<Q", 1000) + b"x")
        time.sleep(LONG)


class TestRestart:
    """A node that is started again is the same one, in its next epoch."""

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_calls_in_flight(self, start: Start, tmp_path: Path, number: int) -> None:
        calls = tmp_path / "calls"
        program = lp.Program("p")
        handle = grouped("again", lp.CourierNode(Service, str(calls)), AGAIN, program)
        run = start(program, "processes")
        client = run.client(handle)
        _, _, pid = client.who()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            plain = [pool.submit(client.hang, "plain"), client.futures.hang("future")]
            again = [pool.submit(client.hang, "plain again", retry=1), client.futures.hang("future again", retry=1)]
            wait_until(lambda: len(lines(calls)) == 4)
            os.kill(pid, number)
            began = time.monotonic()
            for future in plain:
                assert isinstance(future.exception(LONG), lp.PeerGone)
            assert [future.result(LONG) for future in again] == ["plain again", "future again"]
            assert time.monotonic() - began < MARGIN
        # Nothing ran twice that wasn't to.
        assert sorted(lines(calls)) == sorted(2 * ["plain again", "future again"] + ["plain", "future"])
        assert client.who()[:2] == ("again/0", 2)
        assert run.status()["again/0"] == lp.NodeStatus("running", 2, client.who()[2])

    def test_callers_in_other_nodes(self, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        handle = grouped("again", lp.CourierNode(Service), AGAIN, program)
        program.add_node(lp.PyNode(follow, handle, str(tmp_path)), label="follower")
        run = start(program, "processes")
        for epoch in (1, 2):
            wait_until((tmp_path / f"{epoch}").exists)
            os.kill(run.client(handle).who()[2], signal.SIGKILL)
        assert end(run).status == "completed"
        seen = lines(tmp_path / "seen")
        assert seen == sorted(seen)
        assert set(seen) == {"again/0 1", "again/0 2", "again/0 3"}

    def test_backoff(self, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        policy = lp.Restart(max_restarts=3, backoff_s=0.1)
        grouped("bad", lp.PyNode(die, str(tmp_path / "times")), policy, program)
        with pytest.raises(lp.NodeFailed, match="^node bad/0 exited with code 7\n"):
            start(program, "processes").wait(LONG)
        epochs, times = zip(*[line.split() for line in lines(tmp_path / "times")], strict=True)
        assert epochs == ("1", "2", "3", "4")
        for number in (1, 2, 3):
            waited = float(times[number]) - float(times[number - 1])
            assert policy.delay(number) <= waited < policy.delay(number) + MARGIN

    def test_stop_while_it_waits(self, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        handle = grouped("bad", lp.CourierNode(die, str(tmp_path / "times")), lp.Restart(backoff_s=LONG), program)
        run = start(program, "processes")
        wait_until(lambda: run.status()["bad/0"].state == "restarting")
        with pytest.raises(lp.CallTimeout):  # it may come back
            run.client(handle).who(timeout=0.2)
        run.stop("enough", "completed")
        assert end(run) == lp.Outcome("completed", "enough", 0)
        with pytest.raises(lp.PeerGone, match="bad/0 has ended"):
            run.client(handle).who()
        assert len(lines(tmp_path / "times")) == 1


def follow(service: Any, folder: str) -> None:
    """Calls a service until it's in its third epoch, and writes down who answers."""
    epoch = 0
    while epoch < 3:
        try:
            name, epoch, _ = service.who()
        except lp.PeerGone:
            continue
        write(f"{folder}/seen", f"{name} {epoch}")
        (Path(folder) / f"{epoch}").touch()


def die(path: str) -> None:
    """Writes down when it's called, and ends its process."""
    write(path, f"{lp.node_info().epoch} {time.monotonic()}")
    os._exit(7)


def end_by(how: str, path: str) -> None:
    """Ends in the first epoch in a way of its own, later by returning."""
    write(path, how)
    if lp.node_info().epoch > 1 or how == "return":
        return
    if how == "sys.exit":
        sys.exit()
    os._exit(0)


POLICIES = {"stop": lp.Stop(), "restart": AGAIN, "ignore": lp.Ignore()}


class TestCleanExit:
    """A node whose work is done has finished, whatever the policy; an exit before that is a death."""

    @pytest.mark.parametrize("policy", POLICIES)
    def test_finished(self, start: Start, tmp_path: Path, policy: str) -> None:
        program = lp.Program("p")
        grouped("n", lp.PyNode(end_by, "return", str(tmp_path / "ran")), POLICIES[policy], program)
        grouped("other", lp.PyNode(time.sleep, 0.3), lp.Stop(), program)
        run = start(program, "processes")
        assert end(run) == lp.Outcome("completed", "every node has finished", 0)
        assert lines(tmp_path / "ran") == ["return"]
        assert run.status()["n/0"].epoch == 1

    @pytest.mark.parametrize("how", ["sys.exit", "os._exit"])
    @pytest.mark.parametrize("policy", POLICIES)
    def test_before_its_work_is_done(self, start: Start, tmp_path: Path, policy: str, how: str) -> None:
        program = lp.Program("p")
        grouped("n", lp.PyNode(end_by, how, str(tmp_path / "ran")), POLICIES[policy], program)
        grouped("other", lp.PyNode(time.sleep, 0.3), lp.Stop(), program)
        run = start(program, "processes")
        if policy == "stop":
            with pytest.raises(lp.NodeFailed, match="node n/0 (ended with SystemExit|exited with code 0 before)"):
                run.wait(LONG)
        else:
            assert end(run).status == "completed"
        assert lines(tmp_path / "ran") == [how] * (2 if policy == "restart" else 1)
        assert run.status()["n/0"].epoch == (2 if policy == "restart" else 1)

    def test_finished_but_killed_while_it_serves(self, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        handle = grouped("n", lp.CourierNode(Server, str(tmp_path / "ran")), AGAIN, program)
        grouped("other", lp.PyNode(lp.wait_for_stop), lp.Stop(), program)
        run = start(program, "processes")
        for epoch in (1, 2):
            wait_until(
                lambda epoch=epoch: run.status()["n/0"] == lp.NodeStatus("finished", epoch, run.status()["n/0"].pid)
            )
            if epoch == 1:
                os.kill(run.client(handle).pid(), signal.SIGKILL)
        assert lines(tmp_path / "ran") == ["1", "2"]
        # It needn't serve for ever.
        run.client(handle).futures.exit()
        wait_until(lambda: run.status()["n/0"].pid is None)
        assert run.status()["n/0"].state == "finished"
        with pytest.raises(lp.PeerGone, match="n/0 has ended"):
            run.client(handle).pid()
        assert run.outcome is None

    def test_all_have_died(self, start: Start) -> None:
        for node in (lp.CourierNode(os._exit, 1), lp.PyNode(os._exit, 1)):
            program = lp.Program("p")
            grouped("n", node, lp.Ignore(), program)
            assert end(start(program, "processes")) == lp.Outcome("failed", "every node has died", 1)


class Server:
    """Runs shortly, and serves on."""

    def __init__(self, path: str):
        self._path = path

    def run(self) -> None:
        """Writes down that it has run."""
        write(self._path, str(lp.node_info().epoch))

    def pid(self) -> int:
        """Returns its process."""
        return os.getpid()

    def exit(self) -> None:
        """Ends its process, cleanly."""
        os._exit(0)


def test_more_nodes_than_a_pipe_holds_news_of(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    # Some hundreds did with the buffers that sockets have by default; here they are small.
    pair = socket.socketpair

    def small() -> Any:
        ends = pair()
        for connection in ends:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        return ends

    monkeypatch.setattr(socket, "socketpair", small)
    program = lp.Program("p")
    for _ in range(30):
        program.add_node(lp.PyNode(int), label="n")
    assert end(start(program, "processes")).status == "completed"


def test_a_call_keeps_its_deadline_while_another_connects(start: Start) -> None:
    program = lp.Program("p")
    handle = grouped("again", lp.CourierNode(Service), AGAIN, program)
    run = start(program, "processes", heartbeat_timeout_s=BOUND)
    client = run.client(handle)
    freeze(client.who()[2])
    # The first future connects, which a node that is stopped doesn't answer.
    connecting = threading.Thread(target=client.futures.who)
    connecting.start()
    time.sleep(0.1)
    began = time.monotonic()
    assert isinstance(client.futures.who(timeout=0.1).exception(LONG), lp.CallTimeout)
    assert time.monotonic() - began < 1.0
    connecting.join(LONG)
    assert client.who()[1] == 2
