"""Every program as a user starts it: by its module name, under every launcher that can run it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

import rlpad.launch as lp
from experiments.launch import evolution_strategies, map_reduce
from experiments.launch.command import command, gather
from tests.launch.conftest import LONG

#: What to ask of each program, so that it's done soon, and something that it says then.
PROGRAMS = {
    "batched_inference": ("--clients 3 --requests 2 --batch-size 3", "batch sizes: ["),
    "clean_termination": ("--after 0.3 --cleanup 0.1", "watch/0 has cleaned up"),
    "consumer_producers": ("--producers 2 --steps 2 --seconds 0", "last step: [[2, 0], [2, 1]]"),
    "evolution_strategies": ("--evaluators 2 --generations 40", "value: 0.000"),
    "hello_world": ("--name reader", "Hello, reader! This is node greeter/0"),
    "map_reduce": ("--files docs/concepts.md", "lines: "),
    "parameter_server": ("--workers 2 --steps 5 --refresh-ms 2", "updates: [10, 10]"),
    "peer_cycle": ("--messages 5", "received: [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]"),
}
ROOT = Path(__file__).parents[3]


def run_module(name: str, launcher: str, flags: str) -> tuple[int, str, str]:
    """Runs a program as a command; fails if it leaves a process behind that holds its output open."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"experiments.launch.{name}", "--launcher", launcher, *flags.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    code = process.wait(LONG)  # it says less than a pipe holds
    # All nodes write to these pipes, which therefore end when the last of them does.
    output, errors = process.communicate(timeout=1.0)
    return code, output, errors


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_processes(name: str) -> None:
    flags, expected = PROGRAMS[name]
    code, output, errors = run_module(name, "processes", flags)
    assert code == 0, errors
    assert expected in output
    assert errors == ""


@pytest.mark.parametrize("launcher", ["inline", "threads"])
def test_hello_world_in_one_process(launcher: str) -> None:
    code, output, _ = run_module("hello_world", launcher, "")
    assert code == 0
    assert output.startswith("Hello, world! This is node greeter/0 in process ")
    assert output.endswith("\ncompleted: every node has finished\n")


# One thread can't run nodes that wait for each other.
IN_ONE_PROCESS = [(n, c) for n in PROGRAMS for c in ("inline", "threads") if (n, c) != ("clean_termination", "inline")]


@pytest.mark.parametrize(("name", "launcher"), IN_ONE_PROCESS)
def test_in_one_process(name: str, launcher: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags, expected = PROGRAMS[name]
    module = importlib.import_module(f"experiments.launch.{name}")
    assert command(module.make_program, argv=["--launcher", launcher, *flags.split()]) == 0
    assert expected in capsys.readouterr().out


def test_a_launcher_that_will_not_do_is_refused() -> None:
    code, _, errors = run_module("clean_termination", "inline", "")
    assert code == 2
    assert "invalid choice: 'inline'" in errors


def test_help_explains_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    for name in PROGRAMS:
        module = importlib.import_module(f"experiments.launch.{name}")
        with pytest.raises(SystemExit):
            command(module.make_program, argv=["--help"])
    output = " ".join(capsys.readouterr().out.split())
    assert "--producers PRODUCERS how many producers there are (4)" in output
    assert "--pad, --no-pad whether the model always gets full batches, for models compiled for one size" in output


def test_a_request_that_cannot_be_carried_out_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command(map_reduce.make_program, argv=["--files", "nowhere/*.txt"])
    assert caught.value.code == 2
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .endswith("error: no file is called 'nowhere/*.txt'; expected a pattern such as 'docs/*.md'")
    )


def test_what_a_node_raises_is_raised() -> None:
    argv = ["--launcher", "threads", "--evaluators", "1", "--lag", "20", "--patience", "0.1"]
    with pytest.raises(lp.CallTimeout, match="'evaluate' on evaluator/0 wasn't answered in time") as caught:
        command(evolution_strategies.make_program, argv=argv)
    assert caught.value.__notes__ == ["raised in node evolver/0"]


def test_gather_sends_all_before_it_waits() -> None:
    futures: list[Future[int]] = [Future() for _ in range(3)]

    def send(number: int) -> Future[int]:
        if number == 2:  # the last to be sent answers all
            for answer, future in enumerate(futures):
                future.set_result(10 * answer)
        return futures[number]

    assert gather(send(number) for number in range(3)) == [0, 10, 20]


def test_every_program_is_there_and_short() -> None:
    helpers = {"__init__", "command", "problems"}
    found = {path.stem: path for path in (ROOT / "experiments" / "launch").glob("*.py") if path.stem not in helpers}
    assert found.keys() == PROGRAMS.keys()
    assert all(len(path.read_text().splitlines()) < 100 for path in found.values())
