"""What others see of a launched program through its run directory, whatever becomes of its launcher."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rlpad.launch as lp
from rlpad.launch import linux
from rlpad.launch.control import ELSEWHERE, KILLED, LAUNCH_FILE, RUNNING, LaunchRecord, read_launch
from tests.support_launching import made_up, record_of, waiting, write_record

from .conftest import LONG, Start, end, wait_until
from .example_nodes import one

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


#: Nothing of this machine.
ELSEWHERE_JSON = json.dumps(dataclasses.asdict(made_up(control="tcp://host:1")))


def control_threads() -> list[str]:
    """Lists the threads of control services in this process."""
    return [thread.name for thread in threading.enumerate() if "rlpad-control" in thread.name]


@pytest.fixture
def beside() -> Iterator[Callable[[Callable[[], Any]], list[Any]]]:
    """Calls a function in another thread, which is waited for at the end; what it returns comes into a list."""
    threads: list[threading.Thread] = []

    def call(function: Callable[[], Any]) -> list[Any]:
        answers: list[Any] = []
        threads.append(threading.Thread(target=lambda: answers.append(function())))
        threads[-1].start()
        return answers

    yield call
    for thread in threads:
        thread.join(LONG)


def test_seen_and_stopped_from_outside(launcher: str, start: Start, tmp_path: Path, beside: Any) -> None:
    run_dir = tmp_path / "runs" / "one"
    run = start(waiting(), launcher, run_dir=str(run_dir))
    record = record_of(run_dir)
    assert (record.program, record.launcher, record.state) == ("waiting", launcher, RUNNING)
    assert (record.pid, record.host) == (os.getpid(), socket.gethostname())
    names = {"service": ["service/0"], "actor": ["actor/0", "actor/1"]}
    assert record.nodes == names
    assert record.processes == (names if launcher == "processes" else {})
    assert run_dir.stat().st_mode & 0o777 == 0o700
    path = Path(record.control.removeprefix("unix:"))
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert run_dir not in path.parents

    def stop_when_up() -> dict[str, lp.NodeStatus]:
        with record.client() as client:
            wait_until(lambda: all(status.up for status in client.status().values()))
            status = client.status()
            with contextlib.suppress(lp.PeerGone):  # the run may be faster than the answer
                client.stop("enough")
        return status

    seen = beside(stop_when_up)
    outcome = end(run)  # inline, this is where it runs
    assert outcome == lp.Outcome("interrupted", "enough", 143)
    status = wait_until(lambda: seen)[0]
    assert list(status) == ["service/0", "actor/0", "actor/1"]
    assert {(s.state, s.epoch) for s in status.values()} == {("running", 1)}
    pids = {s.pid for s in status.values()}
    assert len(pids) == 3 if launcher == "processes" else pids == {None}
    # Nothing is left but the truth.
    assert not path.parent.exists()
    assert control_threads() == []
    after = record_of(run_dir)
    assert (after.state, after.reason, after.exit_code) == ("interrupted", "enough", 143)
    assert after.ended is not None and after.ended >= after.started
    assert dataclasses.replace(after, ended=None, status=None, reason="", exit_code=None) == record


def test_without_run_dir_nobody_listens(start: Start) -> None:
    run = start(waiting(), "threads")
    assert control_threads() == []
    run.stop()
    end(run)


@pytest.mark.parametrize("attempt", range(5))
def test_however_early_the_end(start: Start, tmp_path: Path, attempt: int) -> None:
    end(start(one(lp.PyNode(int)), "threads", run_dir=str(tmp_path)))
    assert record_of(tmp_path).status == "completed"
    assert control_threads() == []


def test_how_it_failed(launcher: str, start: Start, tmp_path: Path) -> None:
    run = start(one(lp.PyNode(int, "x")), launcher, run_dir=str(tmp_path))
    with pytest.raises(ValueError, match="invalid literal"):
        run.wait(LONG)
    record = record_of(tmp_path)
    assert (record.status, record.exit_code) == ("failed", 1)
    assert record.reason.startswith("node n/0 failed: ValueError: invalid literal")


def test_a_folder_that_is_there_keeps_its_mode(start: Start, tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    end(start(one(lp.PyNode(int)), "inline", run_dir=str(tmp_path)))
    assert tmp_path.stat().st_mode & 0o777 == 0o750


def test_a_run_directory_has_one_run_at_a_time(launcher: str, start: Start, tmp_path: Path) -> None:
    run = start(waiting(), launcher, run_dir=str(tmp_path))
    before = (tmp_path / LAUNCH_FILE).read_bytes()
    with pytest.raises(lp.LaunchError, match=r"^program 'waiting' runs in run directory .* already \(process \d+ on "):
        lp.launch(one(lp.PyNode(int)), "threads", run_dir=str(tmp_path))
    assert (tmp_path / LAUNCH_FILE).read_bytes() == before
    with record_of(tmp_path).client() as client:
        assert set(client.status()) == {"service/0", "actor/0", "actor/1"}
    run.kill()
    end(start(one(lp.PyNode(int)), "threads", run_dir=str(tmp_path)))
    assert (record_of(tmp_path).program, record_of(tmp_path).state) == ("p", "completed")


class TestStates:
    """What is told of a launch from its record."""

    def test_states(self) -> None:
        assert made_up().state == RUNNING
        assert made_up(start_ticks=1).state == KILLED  # a later process of the same number
        assert made_up(boot_id="another").state == KILLED
        assert made_up(host="another").state == ELSEWHERE
        assert made_up(host="another", status="completed").state == "completed"

    def test_a_zombie_has_ended(self) -> None:
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        record = made_up(pid=process.pid, start_ticks=linux.start_ticks(process.pid))
        assert record.state == RUNNING
        process.kill()
        assert wait_until(lambda: record.state == KILLED)  # though nobody has waited for it yet
        process.communicate(timeout=LONG)

    def test_elsewhere_is_not_overwritten(self, tmp_path: Path) -> None:
        before = write_record(tmp_path, made_up(host="another"))
        with pytest.raises(lp.LaunchError, match="process .* on another"):
            lp.launch(one(lp.PyNode(int)), "threads", run_dir=str(tmp_path))
        assert (tmp_path / LAUNCH_FILE).read_bytes() == before

    @pytest.mark.parametrize("text", ['{"request": "launch"}', "not JSON", "[]", ELSEWHERE_JSON])
    def test_a_file_of_somebody_else(self, tmp_path: Path, text: str) -> None:
        (tmp_path / LAUNCH_FILE).write_text(text)
        with pytest.raises(lp.LaunchError, match=r"launch\.json' isn't what this version of rlpad writes"):
            lp.launch(one(lp.PyNode(int)), "threads", run_dir=str(tmp_path))
        assert (tmp_path / LAUNCH_FILE).read_text() == text
        assert control_threads() == []

    def test_no_launch(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        assert [read_launch(tmp_path / name) for name in ("", "none", "file")] == [None] * 3


class TestRefused:
    """A launch that comes to nothing changes nothing."""

    @pytest.fixture
    def unpicklable(self) -> lp.Program:
        return one(lp.PyNode(len, threading.Lock()))

    def test_no_folder_is_made(self, tmp_path: Path, unpicklable: lp.Program) -> None:
        with pytest.raises(lp.LaunchError, match="can't be sent to a process"):
            lp.launch(unpicklable, "processes", run_dir=str(tmp_path / "run"))
        assert list(tmp_path.iterdir()) == []
        assert control_threads() == []

    def test_an_earlier_record_stays(self, tmp_path: Path, unpicklable: lp.Program) -> None:
        earlier = made_up(status="completed", reason="done", exit_code=0, ended="2025-01-02T00:00:00.000+00:00")
        write_record(tmp_path, earlier)
        with pytest.raises(lp.LaunchError, match="can't be sent to a process"):
            lp.launch(unpicklable, "processes", run_dir=str(tmp_path))
        assert record_of(tmp_path) == earlier

    @pytest.mark.parametrize(("name", "says"), [("file", "can't be written"), ("file/run", "can't be made")])
    def test_at_or_under_a_file(self, tmp_path: Path, name: str, says: str) -> None:
        (tmp_path / "file").write_text("mine")
        with pytest.raises(lp.LaunchError, match=f"{says}: Not a directory"):
            lp.launch(one(lp.PyNode(int)), "threads", run_dir=str(tmp_path / name))
        assert (tmp_path / "file").read_text() == "mine"
        assert control_threads() == []


SCRIPT = """
    import os, sys
    import rlpad.launch as lp
    from rlpad.launch.control import read_launch

    if __name__ == "__main__":
        launcher, run_dir = sys.argv[1:]
        program = lp.Program("script")
        with program.group("actor"):
            for _ in range(2):
                program.add_node(lp.PyNode(lp.wait_for_stop, 60))
        run = lp.launch(program, launcher, run_dir=run_dir)
        child = os.fork()
        if child == 0:
            sys.exit(0)  # with all that's registered for the end of its parent
        os.waitpid(child, 0)
        with read_launch(run_dir).client() as client:
            while not all(status.up for status in client.status().values()):
                pass
            print(*[status.pid or 0 for status in client.status().values()], flush=True)
        input()
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Callable[[str], tuple[subprocess.Popen[str], LaunchRecord, list[int]]]]:
    """Starts a launcher of its own in `run`; gives its process, its record and the processes of its nodes."""
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    processes: list[subprocess.Popen[str]] = []

    def launch(launcher: str) -> tuple[subprocess.Popen[str], LaunchRecord, list[int]]:
        command = [sys.executable, str(tmp_path / "script.py"), launcher, str(tmp_path / "run")]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=ENVIRONMENT, text=True)
        processes.append(process)
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split() if pid != "0"]
        return process, record_of(tmp_path / "run"), pids

    yield launch
    for process in processes:
        process.kill()
        process.communicate(timeout=LONG)


def test_killed_and_what_it_leaves(concurrent: str, script: Any, start: Start, tmp_path: Path) -> None:
    process, record, pids = script(concurrent)
    assert (record.state, record.pid, len(pids)) == (RUNNING, process.pid, 2 if concurrent == "processes" else 0)
    assert record.kill(LONG)
    assert process.wait(LONG) == -9
    wait_until(lambda: all(linux.start_ticks(pid) is None for pid in pids))
    assert record.state == record_of(tmp_path / "run").state == KILLED
    assert record.kill(LONG)  # there's nothing left to kill
    with record.client() as client, pytest.raises(lp.PeerGone):
        client.status()
    folder = Path(record.control.removeprefix("unix:")).parent
    if concurrent == "processes":  # the fork server clears up
        wait_until(lambda: not folder.exists())
    else:  # who launches there next does
        assert folder.is_dir()
    end(start(one(lp.PyNode(int)), "inline", run_dir=str(tmp_path / "run")))
    assert not folder.exists()
    assert record_of(tmp_path / "run").state == "completed"


def test_a_launcher_that_ends_without_waiting(concurrent: str, script: Any, tmp_path: Path) -> None:
    process, record, pids = script(concurrent)
    process.stdin.write("\n")
    process.stdin.flush()
    # The script is over, but the program isn't.
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    with record.client() as client:
        client.stop("stopped from outside")
    assert process.wait(LONG) == 143
    wait_until(lambda: all(linux.start_ticks(pid) is None for pid in pids))
    assert not Path(record.control.removeprefix("unix:")).parent.exists()
    after = record_of(tmp_path / "run")
    assert (after.state, after.reason) == ("interrupted", "stopped from outside")


def test_what_isnt_left_behind_is_not_cleared_away(tmp_path: Path, start: Start) -> None:
    listener = socket.socket(socket.AF_UNIX)
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "control").write_text("mine")
    with listener:
        (tmp_path / "live").mkdir()
        listener.bind(str(tmp_path / "live" / "control"))
        listener.listen()
        for name in ("plain", "live", "none"):
            made_up(start_ticks=1, control=f"unix:{tmp_path / name / 'control'}").clear_remains()
        assert (tmp_path / "plain" / "control").read_text() == "mine"
        assert (tmp_path / "live" / "control").exists()
        made_up(control=f"unix:{tmp_path / 'live' / 'control'}").clear_remains()
    made_up(control=f"unix:{tmp_path / 'live' / 'control'}").clear_remains()  # its launcher lives
    assert (tmp_path / "live" / "control").exists()


def test_a_run_directory_that_was_moved_is_left_alone(start: Start, tmp_path: Path) -> None:
    run = start(waiting(), "threads", run_dir=str(tmp_path / "run"))
    (tmp_path / "run").rename(tmp_path / "moved")
    other = write_record(tmp_path / "run", made_up())
    run.stop()
    end(run)
    assert (tmp_path / "run" / LAUNCH_FILE).read_bytes() == other
