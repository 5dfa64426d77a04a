"""`rlpad logs`: what nodes print comes out whole, in order and under their names."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

import rlpad.launch as lp
from rlpad.cli import logs
from rlpad.cli.main import main
from tests.launch.conftest import LONG, end, wait_until
from tests.launch.example_nodes import one
from tests.support_launching import made_up, waiting, write_record

NODES = {"learner": ["learner/0"], "my-actor": ["my-actor/0", "my-actor/1"]}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return tmp_path


@pytest.fixture
def ended(folder):
    """A run that has ended, and left logs."""
    write_record(folder / "run", record(status="completed", reason="done"))
    write("learner-0", "one\ntwo\nthree\n")
    write("my-actor-0", "a\n\nb")
    write("my-actor-1", "\xff\n")
    return "run"


def record(**changes):
    return made_up(launcher="processes", nodes=NODES, processes=NODES, **changes)


def write(name, text):
    os.makedirs("run/logs", exist_ok=True)
    with open(f"run/logs/{name}.log", "a", encoding="latin-1") as file:
        file.write(text)


def show(capsys, *arguments):
    assert main(["logs", *arguments]) == 0
    return capsys.readouterr().out


def test_merged(capsys, ended):
    assert show(capsys, ended) == (
        "learner/0  | one\n"
        "learner/0  | two\n"
        "learner/0  | three\n"
        "my-actor/0 | a\n"
        "my-actor/0 | \n"
        "my-actor/0 | b\n"
        "my-actor/1 | \ufffd\n"
    )
    assert show(capsys, ended, "--lines", "1") == "learner/0  | three\nmy-actor/0 | b\nmy-actor/1 | \ufffd\n"
    assert show(capsys, ended, "--lines", "0") == ""


def test_some_of_them(capsys, ended):
    assert show(capsys, ended, "learner/0") == show(capsys, ended, "learner") == "one\ntwo\nthree\n"
    assert show(capsys, ended, "my-actor", "--lines", "1") == "my-actor/0 | b\nmy-actor/1 | \ufffd\n"
    assert show(capsys, ended, "my-actor/1", "learner") == (
        "learner/0  | one\nlearner/0  | two\nlearner/0  | three\nmy-actor/1 | \ufffd\n"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "my-actr"], "'run' has no node or group 'my-actr'; did you mean 'my-actor'?"),
        (["run", "learner/1"], "'run' has no node or group 'learner/1'; did you mean 'learner/0'?"),
        (["run", "xyz"], "'run' has no node or group 'xyz'; it has learner, my-actor"),
        (["run", "--lines", "-1"], "--lines must be at least 0, got -1"),
        (["rum"], "no launched run 'rum': it has no launch.json; did you mean 'run'?"),
    ],
)
def test_refused(capsys, ended, arguments, says):
    assert main(["logs", *arguments]) == 2
    assert capsys.readouterr() == ("", f"rlpad: error: {says}\n")


def test_no_logs_yet(capsys, folder):
    write_record(folder / "run", record())
    assert main(["logs", "run", "learner"]) == 2
    assert capsys.readouterr().err == "rlpad: error: 'run' has no logs yet of learner\n"


def test_launchers_without_logs(capsys, start):
    start(waiting(), "threads", run_dir="run")
    assert main(["logs", "run"]) == 2
    assert "'run' has no logs: under the launcher threads all nodes print where" in capsys.readouterr().err


@pytest.mark.parametrize("no_color", [True, False])
def test_colours_are_for_terminals(capsys, ended, monkeypatch, no_color):
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    lines = show(capsys, ended, "--lines", "1").splitlines()
    if no_color:
        assert lines == ["learner/0  | three", "my-actor/0 | b", "my-actor/1 | \ufffd"]
    else:
        assert lines == [
            "\x1b[36mlearner/0  | \x1b[0mthree",
            "\x1b[33mmy-actor/0 | \x1b[0mb",
            "\x1b[32mmy-actor/1 | \x1b[0m\ufffd",
        ]


def test_the_last_lines_of_any_file(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "_BLOCK_BYTES", 4)
    draw = random.Random(0)
    for _ in range(300):
        data = bytes(draw.choice(b"ab\n") for _ in range(draw.randrange(20)))
        (tmp_path / "file").write_bytes(data)
        for number in range(5):
            with open(tmp_path / "file", "rb") as file:
                logs.seek_last_lines(file, number)
                expected = b"".join(data.splitlines(keepends=True)[-number:] if number else [])
                assert file.read() == expected, (data, number)


class Following:
    """`rlpad logs` in a process of its own."""

    def __init__(self, *arguments):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rlpad.cli.main", "logs", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def lines(self, number):
        return [self.process.stdout.readline().rstrip("\n") for _ in range(number)]

    def end(self):
        rest, errors = self.process.communicate(timeout=LONG)
        return self.process.returncode, rest, errors


@pytest.fixture
def following():
    started = []

    def begin(*arguments):
        started.append(Following(*arguments))
        return started[-1]

    yield begin
    for one_of_them in started:
        one_of_them.process.kill()
        one_of_them.process.communicate(timeout=LONG)


def test_following_to_the_end(folder, following):
    write_record(folder / "run", record())
    write("my-actor-0", "".join(f"{i}\n" for i in range(20)) + "beg")
    follower = following("run", "-f")
    assert follower.lines(9) == [f"my-actor/0 | {i}" for i in range(11, 20)]
    write("my-actor-0", "un\n")
    assert follower.lines(1) == ["my-actor/0 | begun"]
    # A log that comes later is shown from its beginning.
    write("learner-0", "".join(f"{i}\n" for i in range(12)))
    assert follower.lines(12) == [f"learner/0  | {i}" for i in range(12)]
    write("my-actor-0", "last\nwords")
    write_record(folder / "run", record(status="failed", reason="node my-actor/0 failed: OSError: away"))
    code, rest, errors = follower.end()
    assert (code, rest) == (0, "my-actor/0 | last\nmy-actor/0 | words\n")
    assert errors == "rlpad: failed: node my-actor/0 failed: OSError: away\n"


def test_following_to_ctrl_c(folder, following):
    write_record(folder / "run", record())
    write("learner-0", "one\ntwo\n")
    follower = following("run", "learner", "-f", "--lines", "1")
    assert follower.lines(1) == ["two"]
    follower.process.send_signal(signal.SIGINT)
    assert follower.end() == (0, "", "")


def talk(path):
    print("one", flush=True)
    wait_until(lambda: os.path.exists(path))
    print("two")


def test_a_real_run(capsys, start, folder):
    program = lp.Program("talking")
    with program.group("actor"):
        for _ in range(2):
            program.add_node(lp.PyNode(talk, str(folder / "gate")))
    run = start(program, "processes", run_dir="run")

    def open_gate():
        wait_until(lambda: all((folder / f"run/logs/actor-{i}.log").exists() for i in range(2)))
        time.sleep(0.3)
        (folder / "gate").touch()

    opener = threading.Thread(target=open_gate)
    opener.start()
    assert main(["logs", "run", "--follow"]) == 0
    opener.join(LONG)
    captured = capsys.readouterr()
    assert captured.err == "rlpad: completed: every node has finished\n"
    for index in range(2):
        mine = [line for line in captured.out.splitlines() if line.startswith(f"actor/{index} | ")]
        assert mine[0].startswith(f"actor/{index} | -- actor/{index} started at ")
        assert mine[1:] == [f"actor/{index} | one", f"actor/{index} | two"]
    end(run)


def test_without_tmux(capsys, ended, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert main(["logs", ended, "--tmux"]) == 2
    line = "--tmux needs tmux, which isn't installed; rlpad logs --follow shows all nodes in one terminal"
    assert capsys.readouterr().err == f"rlpad: error: {line}\n"


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_tmux_only_looks(capsys, ended, monkeypatch, tmp_path):
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    monkeypatch.delenv("TMUX", raising=False)

    def tmux(*arguments):
        return subprocess.run(["tmux", *arguments], capture_output=True, text=True, timeout=LONG, check=True).stdout

    os.rename("run", "run.1")
    try:
        assert show(capsys, "run.1", "--tmux") == (
            "tmux session rlpad-logs-run_1 is open: tmux attach -t rlpad-logs-run_1\n"
        )
        windows = tmux("list-windows", "-t", "rlpad-logs-run_1", "-F", "#{window_name}")
        assert windows.split() == ["learner/0", "my-actor/0", "my-actor/1"]
        wait_until(lambda: "three" in tmux("capture-pane", "-p", "-t", "rlpad-logs-run_1:learner/0"))
        with open("run.1/logs/learner-0.log", "a") as file:
            file.write("later\n")
        wait_until(lambda: "later" in tmux("capture-pane", "-p", "-t", "rlpad-logs-run_1:learner/0"))
        assert main(["logs", "run.1", "--tmux"]) == 2
        assert "duplicate session" in capsys.readouterr().err
    finally:
        tmux("kill-server")


def test_what_is_begun_is_not_lost(capsys, start, folder):
    run = start(one(lp.PyNode(print, "no end", end="")), "processes", run_dir="run")
    end(run)
    assert show(capsys, "run", "--lines", "1") == "no end\n"
