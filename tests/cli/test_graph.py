"""`rlpad graph`, of an experiment and of programs that functions return."""

import json
import os
import sys
import types

import pytest

import rlpad.launch as lp
from rlpad.cli.main import main
from tests.support_launching import waiting

EXPERIMENT = """\
---
title: "dqn-CartPole-v1"
---
flowchart LR
  n0["counter/0<br/>Coordinator"]
  n1["replay/0<br/>ReplayService"]
  n2["actor x4<br/>ActorWorker"]
  n3["learner/0<br/>LearnerWorker"]
  subgraph g4["evaluator"]
    n4["evaluator/0<br/>EvaluatorWorker"]
    n5["evaluator/1<br/>EvaluatorWorker"]
  end
  n2 --> n1
  n2 --> n3
  n2 --> n0
  n3 --> n1
  n3 --> n0
  n4 --> n0
  n5 --> n0
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path


@pytest.fixture
def programs(monkeypatch):
    module = types.ModuleType("my_programs")
    module.make = waiting
    module.takes = lambda number: waiting(number)
    module.empty = lambda: lp.Program("empty")
    module.other = lambda: 5
    monkeypatch.setitem(sys.modules, "my_programs", module)


def drawn(capsys, *arguments):
    assert main(["graph", *arguments]) == 0
    return capsys.readouterr().out


def test_an_experiment_takes_the_flags_of_train(capsys, folder):
    scale = ["--num-actors", "4", "--num-evaluators", "2"]
    flags = ["--env", "CartPole-v1", *scale, "--replay", "embedded", "--agent.n-step", "3", "--run-dir", "r"]
    assert drawn(capsys, "dqn", *flags) == EXPERIMENT
    assert list(folder.iterdir()) == []


def test_a_program(capsys, programs):
    assert drawn(capsys, "my_programs:make") == lp.to_mermaid(waiting())
    assert drawn(capsys, "my_programs:make", "--format", "dot", "--collapse-above", "1") == (
        lp.to_dot(waiting(), collapse_above=1)
    )
    assert json.loads(drawn(capsys, "my_programs:make", "--json")) == {
        "program": "waiting",
        "format": "mermaid",
        "graph": lp.to_mermaid(waiting()),
    }


@pytest.mark.parametrize("fails", [False, True])
def test_svg_is_drawn_by_graphviz(capsys, programs, folder, monkeypatch, fails):
    (folder / "dot").write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "print(sys.argv[1:], sys.stdin.read())\n" + ("sys.exit('no\\nfont')" if fails else "")
    )
    os.chmod(folder / "dot", 0o755)
    monkeypatch.setenv("PATH", str(folder))
    if not fails:
        assert drawn(capsys, "my_programs:make", "--format", "svg") == f"['-Tsvg'] {lp.to_dot(waiting())}\n"
        return
    assert main(["graph", "my_programs:make", "--format", "svg"]) == 2
    assert capsys.readouterr() == ("", "rlpad: error: Graphviz can't draw it: no font\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "missing TARGET: expected rlpad graph AGENT --env ENV, or rlpad graph module:function"),
        (["--env", "CartPole-v1"], "the target comes first: rlpad graph AGENT"),
        (["my_programs:mak"], "module 'my_programs' has no function 'mak'; did you mean 'make'?"),
        (["my_programs:takes"], "must be a function without arguments: missing a required argument: 'number'"),
        (["my_programs:other"], "my_programs:other returned int, expected a rlpad.launch.Program"),
        (["my_programs:empty"], "program 'empty' has no nodes"),
        (["no_module_at_all:make"], "can't import module 'no_module_at_all': No module named"),
        (["./file.py:make"], "program './file.py:make' is malformed; expected module:function"),
        (["my_programs:make", "--num-actors", "3"], "unknown flag '--num-actors'"),
        (["my_programs:make", "--collapse-above", "0"], "--collapse-above must be at least 1, got 0"),
        (["my_programs:make", "--format", "sgv"], "isn't one of mermaid, dot, svg; did you mean 'svg'?"),
        (["my_programs:make", "--format", "svg"], "--format svg needs Graphviz, whose program dot isn't installed"),
        (["dqm", "--env", "CartPole-v1"], "unknown agent 'dqm'; did you mean 'dqn'?"),
        (["dqn"], "missing --env"),
    ],
)
def test_refused(capsys, programs, monkeypatch, arguments, says):
    monkeypatch.setenv("PATH", "")
    assert main(["graph", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err and captured.err.count("\n") == 1


def test_help(capsys):
    assert "rlpad graph MODULE:FUNCTION" in drawn(capsys, "--help")
