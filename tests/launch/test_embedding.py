"""Programs in processes that do other things as well: several threads, several programs, forks and children."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import rlpad.launch as lp

from .conftest import LONG, Start, end, wait_until
from .example_nodes import Service, Waits, one, serve
from .scripts import alive, running


def waits(folder: str) -> None:
    """Says that it's up, and waits to be let go or for the stop."""
    (Path(folder) / "up").touch()
    while not (Path(folder) / "go").exists():
        if lp.wait_for_stop(0.01):
            (Path(folder) / "stopped").touch()
            return
    (Path(folder) / "done").touch()


class TestThreads:
    """Any thread may launch, also while others do."""

    def test_at_the_same_time(self) -> None:
        barrier = threading.Barrier(4)
        ended: dict[int, tuple[Any, ...]] = {}

        def launch(number: int, launcher: str) -> None:
            program = one(lp.PyClassNode(Waits), label="waits")
            handle = program.add_node(lp.CourierNode(Service), label="service")
            barrier.wait(LONG)
            with lp.launch(program, launcher) as run:
                answer = run.client(handle).add(number, 10)
                barrier.wait(LONG)
                # They stop one after the other, and each alone.
                time.sleep(0.1 * number)
                goes_on = run.outcome is None
                run.stop(f"number {number}", "completed")
                ended[number] = answer, goes_on, end(run)

        launchers = ("threads", "processes", "threads", "processes")
        threads = [threading.Thread(target=launch, args=each) for each in enumerate(launchers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert ended == {n: (n + 10, True, lp.Outcome("completed", f"number {n}", 0)) for n in range(4)}

    def test_handlers_of_signals_do_not_pile_up(self, concurrent: str) -> None:
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
        for _ in range(3):
            run = lp.launch(one(lp.PyNode(int)), concurrent)
            thread = threading.Thread(target=run.wait)  # which can't give them back
            thread.start()
            thread.join(LONG)
        run = lp.launch(one(lp.PyNode(int)), concurrent)
        assert run.wait(LONG)
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


@pytest.fixture
def forked() -> Iterator[Callable[[Callable[[], object]], int]]:
    """Forks children that call a function; those that live are killed at the end."""
    pids: list[int] = []

    def fork(function: Callable[[], object]) -> int:
        begun, begins = os.pipe()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                os.write(begins, b".")
                function()
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
        assert os.read(begun, 1)  # before that, Python drops signals
        os.close(begun)
        os.close(begins)
        return pid

    yield fork
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX warns of all forks, if it is loaded
class TestForks:
    """What the launching process forks is no part of the program."""

    def test_it_does_not_keep_the_program(self, concurrent: str, start: Start, forked: Any) -> None:
        run, client = serve(start, concurrent)
        assert client.add(1) == 2
        child = forked(lambda: time.sleep(LONG))
        run.stop("enough", "completed")
        began = time.monotonic()
        assert end(run).reason == "enough"
        assert time.monotonic() - began < 3
        assert os.waitpid(child, os.WNOHANG) == (0, 0)

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_signals_are_its_own(self, concurrent: str, start: Start, forked: Any, number: int) -> None:
        run, client = serve(start, concurrent)
        assert client.add(1) == 2
        child = forked(lambda: time.sleep(LONG))
        os.kill(child, number)
        began = time.monotonic()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == (-signal.SIGTERM if number == signal.SIGTERM else 1)  # KeyboardInterrupt, as ever
        assert time.monotonic() - began < 3
        assert (run.outcome, client.add(1)) == (None, 2)

    def test_it_can_launch_programs_of_its_own(self, concurrent: str, start: Start, forked: Any) -> None:
        run, client = serve(start, concurrent)
        assert client.add(1) == 2

        def child() -> None:
            with pytest.raises(lp.LaunchError, match="no program runs here"):
                lp.node_info()
            for launcher in ("threads", "processes"):
                program = one(lp.PyNode(lp.wait_for_stop, 0.1))
                assert end(lp.launch(program, launcher)).status == "completed"
            run.stop("of no effect")

        _, status = os.waitpid(forked(child), 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert (run.outcome, client.add(1)) == (None, 2)

    def test_nodes_die_with_the_launcher_though_its_fork_lives(self, tmp_path: Path) -> None:
        body = """
            def wait():
                touch("up")
                lp.wait_for_stop()
            lp.launch(program(lp.PyNode(wait)), LAUNCHER)
            wait_for("up")
            if not os.fork():
                touch("forked")
                time.sleep(20)
                os._exit(0)
            wait_for("forked")
            touch("over")
        """
        with running(tmp_path, "processes", body) as script:
            script.wait_for("over")
            children = psutil.Process(script.process.pid).children(recursive=True)
            nodes = [child for child in children if child.cmdline()[0].startswith("rlpad")]
            assert len(nodes) == 2
            script.process.kill()
            wait_until(lambda: not any(alive(node) for node in nodes), 5.0)
            wait_until(lambda: not os.listdir(script.temporary), 5.0)
            assert sum(alive(child) for child in children) == 1


def launch_and(how: str, launcher: str, folder: str) -> None:
    """Launches a program in a child process, and goes on in some way."""
    tempfile.tempdir = folder
    run = lp.launch(one(lp.PyNode(waits, folder)), launcher)
    wait_until((Path(folder) / "up").exists)
    if how == "wait":
        assert run.wait(LONG)
    elif how == "raise":
        raise LookupError("of the child")
    elif how == "_exit":
        os._exit(3)


#: How the launching child goes on; what is done to it; its exit code; what its node has left.
ENDS = {
    "wait": ("wait", lambda child, folder: (folder / "go").touch(), 0, "done"),
    "return": ("return", lambda child, folder: (folder / "go").touch(), 0, "done"),
    "raise": ("raise", lambda child, folder: None, 1, "stopped"),
    "terminate": ("wait", lambda child, folder: child.terminate(), 0, "stopped"),
    "_exit": ("_exit", lambda child, folder: None, 3, ""),
    "kill": ("wait", lambda child, folder: child.kill(), -9, ""),
}
CASES = [("fork", "processes", end) for end in ENDS]
CASES += [("fork", "threads", "return"), ("fork", "threads", "raise")]
CASES += [("spawn", "processes", "return"), ("spawn", "processes", "raise"), ("spawn", "threads", "return")]


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.parametrize(("method", "launcher", "ends"), CASES)
def test_in_a_child_of_multiprocessing(method: Any, launcher: str, ends: str) -> None:
    how, act, code, left = ENDS[ends]
    # Short, as sockets are bound there: pytest's own folders lie too deep.
    folder = Path(tempfile.mkdtemp(prefix="t"))
    child = multiprocessing.get_context(method).Process(target=launch_and, args=(how, launcher, str(folder)))
    child.start()
    try:
        wait_until(lambda: (folder / "up").exists() or not child.is_alive())
        with contextlib.suppress(psutil.NoSuchProcess):  # one that ends at once
            nodes = psutil.Process(child.pid).children(recursive=True)
        if ends == "return":
            child.join(0.3)
            assert child.is_alive()
        act(child, folder)
        child.join(LONG)
        assert child.exitcode == code
        wait_until(lambda: not any(alive(node) for node in nodes), 5.0)
        expected = {"up", left, *(["go"] if left == "done" else [])} - {""}
        wait_until(lambda: set(os.listdir(folder)) == expected, 5.0)
    finally:
        child.kill()
        child.join(LONG)
        shutil.rmtree(folder)
