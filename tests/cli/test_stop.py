"""`rlpad stop`: the exit code says whether the run has ended, the line how."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

import rlpad.launch as lp
from rlpad.cli.main import main
from rlpad.launch import control, linux
from tests.launch.conftest import LAUNCHERS, LONG, end, wait_until
from tests.launch.example_nodes import one
from tests.support_launching import made_up, record_of, waiting, write_record


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_it_ends_and_says_how(capsys, start, launcher, folder):
    run = start(waiting(), launcher, run_dir="run")
    waits = threading.Thread(target=run.wait, args=(LONG,))
    waits.start()
    assert main(["stop", "run"]) == 0
    assert capsys.readouterr().out.startswith("run: interrupted: stopped by rlpad stop (")
    waits.join(LONG)
    assert run.outcome == lp.Outcome("interrupted", "stopped by rlpad stop", 143)
    assert main(["stop", "run"]) == 2
    assert capsys.readouterr().err == "rlpad: error: 'run' isn't running: interrupted: stopped by rlpad stop\n"


def test_a_run_that_fails_on_the_way(capsys, start):
    def fail():
        lp.wait_for_stop(LONG)
        raise KeyError("unsaved")

    run = start(one(lp.PyNode(fail)), "processes", run_dir="run")
    wait_until(lambda: run.status()["n/0"].up)
    assert main(["stop", "run", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["run"], row["ended"], row["status"]) == ("run", True, "failed")
    assert row["description"] == "failed: node n/0 failed when it was closed: KeyError: 'unsaved'"
    assert 0 < row["seconds"] < LONG
    with pytest.raises(KeyError):
        run.wait(LONG)


def test_a_run_that_takes_longer(capsys, start):
    release = threading.Event()
    run = start(one(lp.PyNode(release.wait, LONG)), "threads", run_dir="run")
    assert main(["stop", "run", "--timeout", "0.2"]) == 1
    assert capsys.readouterr().out == "run: still running after 0.2 s; --kill kills it\n"
    release.set()
    assert end(run).reason == "stopped by rlpad stop"


STUBBORN = """
import sys, time
import rlpad.launch as lp

if __name__ == "__main__":
    program = lp.Program("stubborn")
    with program.group("sleeper"):
        for _ in range(2):
            program.add_node(lp.PyNode(time.sleep, 60))
    run = lp.launch(program, "processes", run_dir="run", stop_notice_s=60)
    while not all(status.up for status in run.status().values()):
        time.sleep(0.01)
    print(*[status.pid for status in run.status().values()], flush=True)
    run.wait()
"""


def test_kill_is_for_who_asks_for_it(capsys, folder):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    (folder / "script.py").write_text(STUBBORN)
    process = subprocess.Popen([sys.executable, "script.py"], stdout=subprocess.PIPE, env=environment, text=True)
    try:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert main(["stop", "run", "--timeout", "0.3"]) == 1
        assert process.poll() is None
        assert main(["stop", "run", "--timeout", "0.3", "--kill"]) == 0
        # Nothing of it is left by then.
        assert [linux.start_ticks(pid) for pid in (process.pid, *pids)] == [None] * 3
        assert process.wait(LONG) == -9
    finally:
        process.kill()
        process.communicate(timeout=LONG)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith(f"run: killed: its launching process {process.pid} is gone (")
    assert not os.path.exists(record_of(folder / "run").control.removeprefix("unix:"))
    assert main(["stop", "run"]) == 2


def test_a_launching_process_that_does_not_answer(capsys, folder, monkeypatch):
    monkeypatch.setattr(control, "ANSWER_SECONDS", 0.2)
    write_record(folder / "run", made_up(control=f"unix:{folder}/control"))
    assert main(["stop", "run", "--timeout", "0.1"]) == 1
    line = "run: still running after 0.1 s, its launching process doesn't answer; --kill kills it\n"
    assert capsys.readouterr().out == line


def test_another_program_in_its_place(capsys, folder, monkeypatch):
    monkeypatch.setattr(control, "ANSWER_SECONDS", 0.2)
    write_record(folder / "run", made_up(control=f"unix:{folder}/control"))

    def replace():
        time.sleep(0.5)
        write_record(folder / "run", made_up(started="2025-01-02T00:00:00.000+00:00"))

    later = threading.Thread(target=replace)
    later.start()
    assert main(["stop", "run", "--timeout", "10"]) == 0
    later.join()
    assert capsys.readouterr().out.startswith("run: interrupted: another program runs there now (")


def test_elsewhere(capsys, folder):
    write_record(folder / "run", made_up(host="elsewhere"))
    assert main(["stop", "run"]) == 2
    line = "rlpad: error: 'run' isn't running here: launched on host elsewhere, where alone it can be seen\n"
    assert capsys.readouterr().err == line
