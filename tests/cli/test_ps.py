"""`rlpad ps` on programs that run, have ended, were killed or can't be asked."""

import json
import os
import re
import socket
import time

import psutil
import pytest

import rlpad.launch as lp
from rlpad.cli import ps
from rlpad.cli.main import main
from rlpad.launch import control, linux
from tests.launch.conftest import end, wait_until
from tests.support_launching import made_up, waiting, write_record


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield tmp_path
    monkeypatch.undo()
    time.tzset()


def rows(capsys, *arguments):
    assert main(["ps", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def all_up(run):
    wait_until(lambda: all(status.up for status in run.status().values()))
    return run.status()


def test_nothing_runs(capsys, folder):
    assert rows(capsys) == ["nothing runs below runs"]
    write_record(folder / "runs" / "old", made_up(status="completed"))
    assert rows(capsys) == ["nothing runs below runs (1 run ended: rlpad ps --all)"]
    assert rows(capsys, "--json") == ["[]"]


def test_the_list(capsys, start, folder):
    runs = folder / "runs"
    write_record(runs / "done", made_up(status="completed", reason="every node has finished", launcher="inline"))
    write_record(runs / "sweep" / "lost", made_up(pid=4321, start_ticks=1))
    write_record(runs / "far", made_up(host="elsewhere"))
    (runs / "done" / "run.json").write_text(json.dumps({"status": "completed", "actor_steps": 5000, "reason": "r"}))
    # What lies in run directories and hidden folders is nobody's run.
    write_record(runs / "done" / "copy", made_up(program="not shown"))
    write_record(runs / ".trash", made_up(program="not shown"))
    run = start(waiting(), "threads", run_dir="runs/sweep/now")
    all_up(run)
    since = run_since("runs/sweep/now")
    assert rows(capsys) == [
        "RUN             PROGRAM  LAUNCHER  SINCE                NODES  STATUS",
        f"runs/sweep/now  waiting  threads   {since}    3/3  running",
    ]
    lines = rows(capsys, "--all", "--root", str(runs))
    assert lines[0].split() == ["RUN", "PROGRAM", "LAUNCHER", "SINCE", "NODES", "STATUS"]
    assert [re.split(r"  +", line, maxsplit=3) for line in lines[1:]] == [
        ["runs/sweep/now", "waiting", "threads", f"{since}    3/3  running"],
        [
            *("runs/done", "made-up", "inline"),
            "2025-01-01 00:00:00    0/1  completed: every node has finished · 5,000 actor steps",
        ],
        [
            *("runs/far", "made-up", "threads"),
            "2025-01-01 00:00:00    -/1  launched on host elsewhere, where alone it can be seen",
        ],
        [
            *("runs/sweep/lost", "made-up", "threads"),
            "2025-01-01 00:00:00    0/1  killed: its launching process 4321 is gone",
        ],
    ]
    found = {row["run"]: row for row in json.loads("\n".join(rows(capsys, "--all", "--json")))}
    assert {name: row["status"] for name, row in found.items()} == {
        "runs/sweep/now": "running",
        "runs/done": "completed",
        "runs/far": "elsewhere",
        "runs/sweep/lost": "killed",
    }
    assert found["runs/done"]["experiment"] == {
        "status": "completed",
        "reason": "r",
        "actor_steps": 5000,
        "learner_steps": None,
        "restarts": None,
    }
    assert found["runs/sweep/now"]["experiment"] is None
    assert found["runs/sweep/now"]["pid"] == os.getpid()


def run_since(run_dir):
    return control.read_launch(run_dir).started[:19].replace("T", " ")


def test_a_run_of_processes(capsys, start):
    run = start(waiting(), "processes", run_dir="run")
    status = all_up(run)
    head, how, process, empty, names, *nodes = rows(capsys, "run")
    assert head == f"run · waiting · processes · since {run_since('run')}"
    assert re.fullmatch(r"running for 0:\d\d · 3/3 nodes up", how)
    assert re.fullmatch(rf"launching process {os.getpid()}: \d+% CPU, [\d,]+ MiB", process)
    assert (empty, names.split()) == ("", ["NODE", "STATE", "RESTARTS", "PID", "CPU", "MEMORY"])
    assert [line.split()[:4] for line in nodes] == [
        [name, "running", "0", str(status[name].pid)] for name in ("service/0", "actor/0", "actor/1")
    ]
    assert all(re.search(r" +\d+% +\d+ MiB$", line) for line in nodes)
    view = json.loads("\n".join(rows(capsys, "run", "--json")))
    assert (view["status"], view["nodes_up"], view["nodes_total"]) == ("running", 3, 3)
    first = view["nodes"][0]
    assert first["memory_bytes"] > 2**20 and first["cpu_percent"] >= 0
    assert (first["name"], first["group"], first["epoch"]) == ("service/0", "service", 1)
    run.stop("enough", "completed")
    end(run)
    assert rows(capsys, "run") == [head, "completed: enough"]


def test_nodes_of_one_process_show_its_use_once(capsys, start):
    all_up(start(waiting(), "threads", run_dir="run"))
    lines = rows(capsys, "run")
    assert re.fullmatch(rf"launching process {os.getpid()}: \d+% CPU, [\d,]+ MiB", lines[2])
    assert [line.split() for line in lines[5:]] == [
        [name, "running", "0", "-", "-", "-"] for name in ("service/0", "actor/0", "actor/1")
    ]


def test_restarts(capsys, start):
    program = lp.Program("p")
    with program.group("service", on_failure=lp.Restart(backoff_s=0.0)):
        program.add_node(lp.PyNode(lp.wait_for_stop))
    run = start(program, "processes", run_dir="run")
    psutil.Process(all_up(run)["service/0"].pid).kill()
    wait_until(lambda: run.status()["service/0"].epoch == 2 and run.status()["service/0"].up)
    assert rows(capsys, "run")[-1].split()[:3] == ["service/0", "running", "1"]


@pytest.mark.parametrize("listens", [True, False])
def test_a_launching_process_that_does_not_answer(capsys, folder, monkeypatch, listens):
    monkeypatch.setattr(control, "ANSWER_SECONDS", 0.3)
    with socket.socket(socket.AF_UNIX) as listener:
        if listens:
            listener.bind("control")
            listener.listen()
        write_record(folder / "runs" / "a", made_up(control=f"unix:{folder}/control"))
        (line,) = rows(capsys)[1:]
        assert line.endswith("  -/1  running, but its launching process doesn't answer")
        assert rows(capsys, "runs/a")[-1].split() == ["n/0", "unknown", "-", "-", "-", "-"]


def test_a_launch_file_that_cannot_be_read_is_told_of(capsys, folder):
    write_record(folder / "runs" / "good", made_up(status="completed"))
    (folder / "runs" / "bad").mkdir()
    (folder / "runs" / "bad" / "launch.json").write_text("{}")
    assert main(["ps", "--all"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 2
    assert captured.err.startswith("rlpad: warning: 'runs/bad/launch.json' isn't what this version of rlpad writes")


@pytest.mark.parametrize("text", ["", "[]"])
def test_a_run_json_that_is_no_experiment(capsys, folder, text):
    write_record(folder / "run", made_up(status="failed", reason="why"))
    (folder / "run" / "run.json").write_text(text)
    assert rows(capsys, "run")[1] == "failed: why"


def test_what_a_process_uses():
    began, before = time.process_time(), linux.cpu_seconds(os.getpid())
    while time.process_time() - began < 0.2:
        pass
    assert 0.1 < linux.cpu_seconds(os.getpid()) - before < 2.0
    used = ps.usages([os.getpid(), 2**22 + 1])
    assert 2**20 < used[os.getpid()].memory_bytes <= 2 * psutil.Process().memory_info().rss
    assert used[2**22 + 1] == ps.Usage(None, None)
