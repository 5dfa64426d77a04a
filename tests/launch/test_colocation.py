"""Colocations: nodes that share a process, or get one each with restarts of their own."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import rlpad.launch as lp

from .conftest import LONG, Start, end, wait_until
from .example_nodes import CustomError, Runner, lines, write

#: The first four bytes of SHA-256 of `0:name`, less the top bit.
SEEDS = {"pair/1.0": 705544039, "pair/1.1": 1648177561, "pair/1.2.0": 1678555301}


class Peer:
    """Says who and where it is, and asks others."""

    def __init__(self, *others: Any, ask_first: bool = False):
        self._others = others
        self._first = [other.who() for other in others] if ask_first else []

    def who(self) -> tuple[str, int, int]:
        """Returns name, seed and process of whoever answers."""
        info = lp.node_info()
        return info.name, info.seed, os.getpid()

    def others(self) -> list[tuple[str, int, int]]:
        """Returns what the others say."""
        return [other.who() for other in self._others]

    def first(self) -> list[tuple[str, int, int]]:
        """Returns what they said when this was built."""
        return self._first

    def raise_error(self) -> None:
        """Raises."""
        raise CustomError(lp.node_info().name)


def ask_all(path: str, peers: list[Any]) -> None:
    """Writes down who the peers are, and stops the program."""
    for peer in peers:
        write(path, repr((peer.who(), peer.others())))
    lp.stop("asked")


def wait_and_write(path: str) -> None:
    """Writes when it's told to stop."""
    write(path, f"{lp.node_info().name} waits")
    lp.wait_for_stop()
    write(path, f"{lp.node_info().name} stopped")


def finish(path: str, wait_for: int = 0) -> None:
    """Finishes once so many others wait."""
    wait_until(lambda: len(lines(Path(path))) >= wait_for)
    write(path, f"{lp.node_info().name} finished")


def die_times(path: str, times: int, wait: bool = False) -> None:
    """Dies in its first epochs."""
    info = lp.node_info()
    write(path, f"{info.name} epoch {info.epoch}")
    if info.epoch <= times:
        os._exit(3)
    if wait:
        lp.wait_for_stop()


class TestThreads:
    """`MultiThreadingColocation`."""

    def test_all_call_each_other(self, launcher: str, start: Start) -> None:
        program = lp.Program("p")
        outside = program.add_node(lp.CourierNode(Peer), label="outside")
        with program.group("pair"):
            for _ in range(2):
                one = lp.CourierNode(Peer)
                two = lp.CourierNode(Peer, one.create_handle(), outside, ask_first=True)
                nested = lp.MultiThreadingColocation([lp.CourierNode(Peer, one.create_handle())])
                one.configure(two.create_handle(), nested.inner[0].create_handle())
                program.add_node(lp.MultiThreadingColocation([one, two, nested]))
        peers = [node.create_handle() for node in program.nodes["pair/1"].leaves()]
        user = program.add_node(lp.CourierNode(Peer, *peers), label="user")
        run = start(program, launcher)
        found = run.client(user).others()
        assert [name for name, _, _ in found] == ["pair/1.0", "pair/1.1", "pair/1.2.0"]
        assert [seed for _, seed, _ in found] == [SEEDS[name] for name, _, _ in found]
        first, second, inner = (run.client(peer) for peer in peers)
        assert [name for name, _, _ in second.first()] == ["pair/1.0", "outside/0"]
        assert [name for name, _, _ in first.others()] == ["pair/1.1", "pair/1.2.0"]
        assert [name for name, _, _ in inner.others()] == ["pair/1.0"]
        processes = {pid for _, _, pid in found}
        assert len(processes) == 1
        assert (run.client(outside).who()[2] in processes) == (launcher != "processes")
        names = ["outside/0", *(f"pair/{i}.{inner}" for i in range(2) for inner in ("0", "1", "2.0")), "user/0"]
        assert list(run.status()) == names
        if launcher != "inline":  # which builds what is needed when it's needed
            wait_until(lambda: all(status.state == "running" for status in run.status().values()))
        with pytest.raises(CustomError, match=r"pair/1\.2\.0"):
            inner.raise_error()
        run.stop("enough", "completed")
        assert end(run).status == "completed"

    def test_ends_with_the_program(self, launcher: str, start: Start, tmp_path: Path) -> None:
        path = tmp_path / "out"
        program = lp.Program("p")
        colocation = lp.MultiThreadingColocation()
        peers = [colocation.add_node(lp.CourierNode(Peer)) for _ in range(2)]
        colocation.add_node(lp.PyClassNode(Runner, str(path), "inside"))
        program.add_node(colocation, label="c")
        program.add_node(lp.PyNode(ask_all, str(path), peers), label="user")
        run = start(program, launcher)
        assert (end(run).status, run.outcome and run.outcome.reason) == ("completed", "asked")
        assert sorted(line.split("'")[1] if "'" in line else line for line in lines(path)) == [
            "c/0.0",
            "c/0.1",
            "close inside",
            "inside",
        ]

    def test_all_finish(self, launcher: str, start: Start, tmp_path: Path) -> None:
        path = tmp_path / "out"
        program = lp.Program("p")
        program.add_node(lp.MultiThreadingColocation([lp.PyNode(finish, str(path)) for _ in range(3)]), label="c")
        assert end(start(program, launcher)).reason == "every node has finished"
        assert sorted(lines(path)) == [f"c/0.{i} finished" for i in range(3)]

    def test_first_completed(self, concurrent: str, start: Start, tmp_path: Path) -> None:
        path = tmp_path / "out"
        program = lp.Program("p")
        inner = lp.MultiThreadingColocation(
            [lp.PyNode(finish, str(path), wait_for=3), lp.PyNode(wait_and_write, str(path))],
            return_on_first_completed=True,
        )
        waiting = lp.PyNode(wait_and_write, str(path))
        service = lp.CourierNode(Peer)
        colocation = lp.MultiThreadingColocation([inner, waiting, service], return_on_first_completed=True)
        program.add_node(colocation, label="c")
        program.add_node(lp.PyNode(wait_and_write, str(path)), label="other")
        run = start(program, concurrent)
        wait_until(lambda: len(lines(path)) == 6)
        # All inside were told to stop, the node outside wasn't.
        assert sorted(lines(path)) == [
            "c/0.0.0 finished",
            "c/0.0.1 stopped",
            "c/0.0.1 waits",
            "c/0.1 stopped",
            "c/0.1 waits",
            "other/0 waits",
        ]
        assert run.status()["other/0"].state == "running"
        run.stop("enough", "completed")
        assert end(run).status == "completed"
        assert lines(path)[-1] == "other/0 stopped"

    def test_first_completed_inline(self, start: Start, tmp_path: Path) -> None:
        path = tmp_path / "out"
        program = lp.Program("p")
        nodes = [lp.PyNode(finish, str(path)), lp.PyNode(finish, str(path))]
        program.add_node(lp.MultiThreadingColocation(nodes, return_on_first_completed=True), label="c")
        program.add_node(lp.PyNode(finish, str(path)), label="other")
        assert end(start(program, "inline")).status == "completed"
        # The second one's turn comes after the first one is done.
        assert lines(path) == ["c/0.0 finished", "other/0 finished"]

    @pytest.mark.parametrize("when", ["built", "run"])
    def test_failure(self, launcher: str, start: Start, when: str) -> None:
        program = lp.Program("p")
        bad = lp.PyClassNode(int, "three") if when == "built" else lp.PyNode(int, "three")
        program.add_node(lp.MultiThreadingColocation([lp.CourierNode(Peer), bad]), label="c")
        program.add_node(lp.CourierNode(Peer), label="other")
        run = start(program, launcher)
        with pytest.raises(ValueError, match="invalid literal") as info:
            run.wait(LONG)
        assert info.value.__notes__ == ["raised in node c/0.1"]
        assert run.outcome is not None
        assert run.outcome.reason.startswith("node c/0.1 failed: ValueError: invalid literal")

    def test_restart(self, start: Start, tmp_path: Path) -> None:
        path = tmp_path / "out"
        program = lp.Program("p")
        with program.group("c", on_failure=lp.Restart(max_restarts=2, backoff_s=0.01)):
            colocation = lp.MultiThreadingColocation(
                [lp.PyNode(die_times, str(path), 1, wait=True), lp.CourierNode(Peer)]
            )
            program.add_node(colocation)
        run = start(program, "processes")
        client = run.client(colocation.inner[1].create_handle())
        wait_until(lambda: lines(path) == ["c/0.0 epoch 1", "c/0.0 epoch 2"])
        assert client.who(retry=3)[0] == "c/0.1"
        assert {status.epoch for status in run.status().values()} == {2}
        run.stop("enough", "completed")
        assert end(run).status == "completed"


class TestProcesses:
    """`MultiProcessingColocation`."""

    def test_each_has_a_process(self, launcher: str, start: Start) -> None:
        program = lp.Program("p")
        one = lp.CourierNode(Peer)
        two = lp.CourierNode(Peer, one.create_handle())
        shared = lp.MultiThreadingColocation([lp.CourierNode(Peer), lp.CourierNode(Peer)])
        colocation = lp.MultiProcessingColocation([one, two, shared])
        program.add_node(colocation, label="c")
        run = start(program, launcher)
        found = [run.client(node.create_handle()).who() for node in colocation.leaves()]
        assert [name for name, _, _ in found] == ["c/0.0", "c/0.1", "c/0.2.0", "c/0.2.1"]
        assert len({pid for _, _, pid in found}) == (3 if launcher == "processes" else 1)
        assert run.client(two.create_handle()).others() == found[:1]
        run.stop("enough", "completed")
        assert end(run).status == "completed"

    def test_inside_of_threads(self, start: Start, tmp_path: Path) -> None:
        path = tmp_path / "out"
        program = lp.Program("p")
        inner = lp.MultiProcessingColocation([lp.CourierNode(Peer)])
        outer = lp.MultiThreadingColocation([lp.CourierNode(Peer), inner, lp.PyNode(finish, str(path), 1)])
        program.add_node(outer, label="c")
        run = start(program, "processes")
        found = {name: pid for name, _, pid in (run.client(n.create_handle()).who() for n in outer.leaves()[:2])}
        assert len(set(found.values())) == 2
        assert set(found) == {"c/0.0", "c/0.1.0"}
        write(str(path), "asked")
        assert end(run).reason == "every node has finished"

    def test_retries_are_each_ones_own(self, start: Start, tmp_path: Path) -> None:
        path = tmp_path / "out"
        program = lp.Program("p")
        nodes = [lp.PyNode(die_times, str(path), times) for times in (0, 1, 2)]
        program.add_node(lp.MultiProcessingColocation(nodes, num_retries_on_failure=2), label="c")
        assert end(start(program, "processes")).status == "completed"
        assert sorted(lines(path)) == [f"c/0.{i} epoch {epoch + 1}" for i in range(3) for epoch in range(i + 1)]

    def test_no_more_retries(self, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        with program.group("c", on_failure=lp.Ignore()):
            node = lp.PyNode(die_times, str(tmp_path / "out"), 9)
            program.add_node(lp.MultiProcessingColocation([node], num_retries_on_failure=1))
        run = start(program, "processes")
        with pytest.raises(RuntimeError, match=r"node c/0\.0 exited with code 3") as info:
            run.wait(LONG)
        assert "num_retries_on_failure (=1) is reached." in info.value.__notes__
        assert lines(tmp_path / "out") == ["c/0.0 epoch 1", "c/0.0 epoch 2"]


@pytest.mark.parametrize("kind", [lp.MultiThreadingColocation, lp.MultiProcessingColocation])
class TestMistakes:
    """What is refused before anything starts."""

    def test_no_nodes(self, kind: type, launcher: str) -> None:
        program = lp.Program("p")
        program.add_node(kind([]), label="c")
        with pytest.raises(lp.LaunchError, match=f"c/0: {kind.__name__} holds no nodes"):
            lp.launch(program, launcher)

    def test_no_node(self, kind: type) -> None:
        with pytest.raises(lp.LaunchError, match=f"{kind.__name__} needs nodes such as PyNode"):
            kind([print])

    def test_twice(self, kind: type) -> None:
        program = lp.Program("p")
        node = lp.PyNode(print)
        with pytest.raises(lp.LaunchError, match=r"PyNode\(print\) is in a program already"):
            program.add_node(kind([node, node]), label="c")
        assert program.nodes == {}
        program.add_node(kind([node]), label="c")
        with pytest.raises(lp.LaunchError, match=r"c/0.0\(print\) is in a program already"):
            program.add_node(kind([node]), label="c")
        with pytest.raises(lp.LaunchError, match="add its nodes before that"):
            program.nodes["c/0"].add_node(lp.PyNode(print))  # type: ignore[attr-defined]

    def test_itself(self, kind: type) -> None:
        colocation = kind([])
        with pytest.raises(lp.LaunchError, match="can't hold itself"):
            colocation.add_node(lp.MultiThreadingColocation([colocation]))

    def test_its_handle(self, kind: type) -> None:
        program = lp.Program("p")
        handle = program.add_node(kind([lp.CourierNode(Peer)]), label="c")
        program.add_node(lp.CourierNode(Peer, handle), label="user")
        with pytest.raises(lp.LaunchError, match="c/0, which is a colocation; pass on the handles of the nodes"):
            lp.launch(program, "inline")

    def test_hidden_handle(self, kind: type) -> None:
        program = lp.Program("p")
        inner = lp.CourierNode(Peer)
        program.add_node(kind([inner, lp.CourierNode(Peer, {inner.create_handle()})]), label="c")
        with pytest.raises(lp.LaunchError, match=r"c/0\.1: argument 0 of Peer hides"):
            lp.launch(program, "inline")


def test_negative_retries() -> None:
    with pytest.raises(lp.LaunchError, match="num_retries_on_failure must be at least 0, got -1"):
        lp.MultiProcessingColocation([lp.PyNode(print)], num_retries_on_failure=-1)


def test_only_processes_inside_of_threads() -> None:
    program = lp.Program("p")
    inner = lp.MultiProcessingColocation([lp.PyNode(threading.active_count)])
    program.add_node(lp.MultiThreadingColocation([inner]), label="c")
    with pytest.raises(lp.LaunchError, match="c/0: MultiThreadingColocation holds no nodes that run in its process"):
        lp.launch(program, "processes")
