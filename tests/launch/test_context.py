"""What code of a node finds out about its node and its program."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import rlpad.launch as lp
from rlpad.launch import context as context_lib

from .conftest import LONG, Start, end, wait_until


def write_info(folder: str) -> None:
    """Writes down what the node knows of itself."""
    info = lp.node_info()
    values = [info.name, info.group, info.index, info.size, info.run_dir, info.seed, info.epoch]
    (Path(folder) / info.name.replace("/", "-")).write_text(json.dumps(values))


class Informed:
    """Knows what it found in its constructor, and serves what it finds in a call."""

    def __init__(self) -> None:
        self._built = lp.node_info()

    def built(self) -> str:
        """Returns the name found when it was built."""
        return self._built.name

    def called(self) -> str:
        """Returns the name found by the call."""
        return lp.node_info().name

    def from_another_thread(self) -> str:
        """Returns what a thread of its own finds."""
        found = []

        def look() -> None:
            try:
                found.append(lp.node_info().name)
            except lp.LaunchError as error:
                found.append(str(error))

        thread = threading.Thread(target=look)
        thread.start()
        thread.join(LONG)
        return found[0]


class Stopper:
    """Stops the program in its third step; serves the ways to stop it."""

    finished = False
    stall_grace_s = 30.0

    def __init__(self, stops: bool, other_thread: bool = False, mark: str = "", after: str = ""):
        self._stops, self._other_thread, self._mark, self._after = stops, other_thread, mark, after
        self._steps = 0

    def step(self) -> bool:
        """Does nothing, but stops the program at the third time."""
        self._steps += 1
        if self._stops and self._steps == 3:
            if self._after:
                wait_until(Path(self._after).exists)
            if self._other_thread:
                thread = threading.Thread(target=lp.stop, args=("enough", "failed"))
                thread.start()
                thread.join(LONG)
            else:
                lp.stop("enough", "failed")
            assert lp.wait_for_stop(LONG)
            # The caller lives on.
            if self._mark:
                Path(self._mark).write_text("alive")
            return True
        return self._steps < 3

    def idle(self, timeout: float) -> None:
        """Waits."""
        lp.wait_for_stop(timeout)

    def waiting_on(self) -> str:
        """Waits for others."""
        return "the stop"

    def close(self) -> None:
        """Holds nothing."""


def run_infos(start: Start, launcher: str, folder: Path, seed: int) -> dict[str, list[Any]]:
    """Runs four nodes and returns what each found."""
    folder.mkdir()
    program = lp.Program("p")
    with program.group("a"):
        for _ in range(3):
            program.add_node(lp.PyNode(write_info, str(folder)))
    program.add_node(lp.PyNode(write_info, str(folder)), label="b")
    end(start(program, launcher, seed=seed, run_dir=str(folder)))
    return {path.name: json.loads(path.read_text()) for path in folder.glob("*-*")}


class TestInfo:
    """`node_info`."""

    def test_fields(self, launcher: str, start: Start, tmp_path: Path) -> None:
        folder = tmp_path / "one"
        found = run_infos(start, launcher, folder, 7)
        assert {name: [*v[:5], v[6]] for name, v in found.items()} == {
            "a-0": ["a/0", "a", 0, 3, str(folder), 1],
            "a-1": ["a/1", "a", 1, 3, str(folder), 1],
            "a-2": ["a/2", "a", 2, 3, str(folder), 1],
            "b-0": ["b/0", "b", 0, 1, str(folder), 1],
        }

    def test_seeds(self, launcher: str, start: Start, tmp_path: Path) -> None:
        def seeds(name: str, seed: int) -> dict[str, int]:
            return {k: v[5] for k, v in run_infos(start, launcher, tmp_path / name, seed).items()}

        first, again, other = seeds("one", 7), seeds("two", 7), seeds("three", 8)
        assert first == again
        assert len({*first.values(), *other.values()}) == 8

    def test_no_run_dir(self, launcher: str, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        program.add_node(lp.PyNode(write_info, str(tmp_path)), label="a")
        end(start(program, launcher))
        assert json.loads((tmp_path / "a-0").read_text())[4] is None

    def test_in_constructor_and_calls(self, launcher: str, start: Start) -> None:
        program = lp.Program("p")
        handles = [program.add_node(lp.CourierNode(Informed), label="a") for _ in range(2)]
        run = start(program, launcher)
        for index, handle in enumerate(handles):
            client = run.client(handle)
            assert client.built() == client.called() == f"a/{index}"
            assert client.futures.called().result(LONG) == f"a/{index}"
            assert client.called(timeout=LONG) == f"a/{index}"

    def test_other_thread_of_one_among_several(self, launcher: str, start: Start) -> None:
        program = lp.Program("p")
        handles = [program.add_node(lp.CourierNode(Informed), label="a") for _ in range(2)]
        run = start(program, launcher)
        # Where it has a process of its own it can be told; never is another node's name returned.
        found = run.client(handles[1]).from_another_thread()
        assert found == "a/1" or "belongs to no node" in found

    def test_other_thread_of_the_only_one(self, launcher: str, start: Start) -> None:
        program = lp.Program("p")
        handle = program.add_node(lp.CourierNode(Informed), label="a")
        assert start(program, launcher).client(handle).from_another_thread() == "a/0"


class TestStop:
    """`lp.stop`, from anywhere."""

    @pytest.mark.parametrize("other_thread", [False, True])
    def test_by_worker(self, launcher: str, start: Start, tmp_path: Path, other_thread: bool) -> None:
        program = lp.Program("p")
        program.add_node(lp.PyClassNode(Stopper, stops=False), label="waits")
        mark = tmp_path / "alive"
        program.add_node(lp.PyClassNode(Stopper, True, other_thread, str(mark)), label="stops")
        outcome = end(start(program, launcher))
        assert (outcome.status, outcome.reason, outcome.exit_code) == ("failed", "enough", 1)
        assert outcome.error is None
        assert outcome.killed == ()
        assert mark.read_text() == "alive"

    def test_by_run(self, concurrent: str, start: Start) -> None:
        program = lp.Program("p")
        program.add_node(lp.PyClassNode(Stopper, stops=False), label="waits")
        run = start(program, concurrent)
        assert run.wait(0.05) is False
        assert run.outcome is None
        run.stop("had enough")
        run.stop("too late", "failed")
        outcome = end(run)
        assert (outcome.status, outcome.reason, outcome.exit_code) == ("interrupted", "had enough", 0)

    def test_exit_code(self, launcher: str, start: Start) -> None:
        for status, given, expected in [("completed", None, 0), ("failed", None, 1), ("failed", 9, 9)]:
            program = lp.Program("p")
            program.add_node(lp.PyClassNode(Stopper, stops=False), label="waits")
            run = start(program, launcher)
            run.stop("x", status, given)
            outcome = end(run)
            assert (outcome.status, outcome.exit_code) == (status, expected)

    def test_unknown_status(self, launcher: str, start: Start) -> None:
        program = lp.Program("p")
        program.add_node(lp.PyClassNode(Stopper, stops=False), label="waits")
        run = start(program, launcher)
        for stop in (run.stop, lp.stop):
            with pytest.raises(lp.LaunchError, match="must be completed, interrupted or failed, got 'done'"):
                stop("x", "done")
        assert run.outcome is None

    def test_by_unknown_status_in_node(self, launcher: str, start: Start) -> None:
        program = lp.Program("p")
        program.add_node(lp.PyNode(lp.stop, "x", "done"), label="a")
        with pytest.raises(lp.LaunchError, match="got 'done'"):
            start(program, launcher).wait(LONG)

    def test_handlers(self, launcher: str, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        program.add_node(lp.PyNode(register, str(tmp_path)), label="a")
        registered = str(tmp_path / "registered")
        program.add_node(lp.PyClassNode(Stopper, stops=True, after=registered), label="stops")
        end(start(program, launcher))
        written = tmp_path / "handler"
        wait_until(written.exists)
        assert wait_until(written.read_text) == "a/0\n"

    def test_handler_that_takes_too_long(self, concurrent: str, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        program.add_node(lp.PyNode(register_wait, str(tmp_path)), label="a")
        program.add_node(lp.PyNode(lp.wait_for_stop), label="b")
        run = start(program, concurrent, stop_notice_s=0.5)
        wait_until((tmp_path / "registered").exists)
        run.stop("enough", "completed")
        assert end(run).killed == ("a/0",)
        (tmp_path / "go").touch()

    def test_wait_for_stop(self, concurrent: str, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        program.add_node(lp.PyNode(wait_for_it, str(tmp_path)), label="a")
        run = start(program, concurrent)
        wait_until((tmp_path / "False").exists)
        run.stop(status="completed")
        end(run)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["False", "True"]


def register(folder: str) -> None:
    """Registers a handler that writes down where it's called."""

    def handle() -> None:
        with open(Path(folder) / "handler", "a") as file:
            print(lp.node_info().name, file=file)

    lp.register_stop_handler(handle)
    (Path(folder) / "registered").touch()


def register_wait(folder: str) -> None:
    """Registers a handler that waits for a file."""
    lp.register_stop_handler(lambda: wait_until((Path(folder) / "go").exists))
    (Path(folder) / "registered").touch()


def wait_for_it(folder: str) -> None:
    """Writes down what each wait says."""
    (Path(folder) / str(lp.wait_for_stop(0.01))).touch()
    (Path(folder) / str(lp.wait_for_stop())).touch()


class TestOutside:
    """Outside of a program."""

    @pytest.mark.parametrize(
        "call",
        [
            lp.node_info,
            lp.stop,
            lp.stop_event,
            lambda: lp.wait_for_stop(0.0),
            lambda: lp.register_stop_handler(lambda: None),
        ],
    )
    def test_error(self, call: Any) -> None:
        with pytest.raises(lp.LaunchError, match="not called from a node: no program runs here"):
            call()

    def test_error_after_the_end(self, launcher: str, start: Start) -> None:
        program = lp.Program("p")
        program.add_node(lp.PyNode(int), label="a")
        end(start(program, launcher))
        with pytest.raises(lp.LaunchError, match="no program runs here"):
            lp.stop()


def in_thread(call: Any) -> Any:
    """Calls something in a thread that belongs to no node; returns the result or the exception."""
    found = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(LONG)
    return found[0]


class TestTwoPrograms:
    """Two programs at once in one process."""

    def test_independent(self, start: Start, concurrent: str) -> None:
        runs, handles = [], []
        for _ in range(2):
            program = lp.Program("p")
            handles.append(program.add_node(lp.CourierNode(Stopper, stops=False), label="waits"))
            program.add_node(lp.CourierNode(Informed), label="a")
            runs.append(start(program, concurrent))
        runs[0].stop("the first only")
        assert end(runs[0]).reason == "the first only"
        assert runs[1].wait(0.1) is False
        assert runs[1].client(handles[1]).waiting_on() == "the stop"
        with pytest.raises(lp.PeerGone):
            runs[0].client(handles[0]).waiting_on()
        runs[1].stop("the second")
        assert end(runs[1]).reason == "the second"

    def test_launched_by_a_thread(self, concurrent: str) -> None:
        def launch() -> lp.Outcome:
            program = lp.Program("p")
            program.add_node(lp.PyClassNode(Stopper, stops=True), label="a")
            with lp.launch(program, concurrent) as run:
                return end(run)

        assert in_thread(launch).reason == "enough"

    def test_thread_that_belongs_to_none(self, start: Start) -> None:
        for _ in range(2):
            program = lp.Program("p")
            program.add_node(lp.PyClassNode(Stopper, stops=False), label="waits")
            start(program, "threads")
        error = in_thread(lp.stop)
        assert isinstance(error, lp.LaunchError)
        assert "2 programs run here" in str(error)

    def test_inline_beside_threads(self, start: Start) -> None:
        program = lp.Program("p")
        program.add_node(lp.PyClassNode(Stopper, stops=False), label="waits")
        beside = start(program, "threads")
        program = lp.Program("q")
        program.add_node(lp.PyClassNode(Stopper, stops=True), label="stops")
        assert end(start(program, "inline")).reason == "enough"
        assert beside.outcome is None


def test_wait_event() -> None:
    event, stop = threading.Event(), threading.Event()
    began = time.monotonic()
    assert context_lib.wait_event(event, stop, 0.06) is False
    assert time.monotonic() - began >= 0.06
    stop.set()
    assert context_lib.wait_event(event, stop, LONG) is False
    event.set()
    assert context_lib.wait_event(event, stop, LONG) is True
