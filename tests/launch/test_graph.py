"""Programs as pictures, written out in full."""

from __future__ import annotations

import pytest

import rlpad.launch as lp

from .example_nodes import Service, Waits


def call(*others: object) -> None:
    """Takes handles."""


def evolution(evaluators: int) -> lp.Program:
    """Makes a program with a group of many, one of two, and some that stand alone."""
    program = lp.Program("evolution")
    with program.group("evaluator"):
        handles = [program.add_node(lp.CourierNode(Service)) for _ in range(evaluators)]
    cache = program.add_node(lp.CacherNode(handles[0], 10, 20), label="cache")
    with program.group("evolver"):
        program.add_node(lp.PyNode(call, {"all": handles}, lp.Deferred(call, cache)))
        program.add_node(lp.PyNode(lambda other: None, cache))
    program.add_node(lp.PyClassNode(Waits), label="watcher")
    return program


MERMAID = """\
---
title: "evolution"
---
flowchart LR
  n0["evaluator x4<br/>Service"]
  n1["cache/0<br/>Cacher"]
  subgraph g2["evolver"]
    n2["evolver/0<br/>call"]
    n3["evolver/1<br/>evolution.#lt;locals#gt;.#lt;lambda#gt;"]
  end
  n4["watcher/0<br/>Waits"]
  n1 --> n0
  n2 --> n0
  n2 --> n1
  n3 --> n1
"""

DOT = """\
digraph "evolution" {
  graph [rankdir=LR, fontname="sans-serif"];
  node [shape=box, style=rounded, fontname="sans-serif"];
  subgraph cluster_0 {
    label="evaluator";
    n0 [label="evaluator/0\\nService"];
    n1 [label="evaluator/1\\nService"];
  }
  n2 [label="cache/0\\nCacher"];
  subgraph cluster_2 {
    label="evolver";
    n3 [label="evolver/0\\ncall"];
    n4 [label="evolver/1\\nevolution.<locals>.<lambda>"];
  }
  n5 [label="watcher/0\\nWaits"];
  n2 -> n0;
  n3 -> n0;
  n3 -> n1;
  n3 -> n2;
  n4 -> n2;
}
"""


def test_mermaid() -> None:
    assert lp.to_mermaid(evolution(4)) == MERMAID


def test_dot() -> None:
    assert lp.to_dot(evolution(2)) == DOT


def test_the_number_above_which_groups_are_one_box() -> None:
    assert "evaluator x4" not in lp.to_mermaid(evolution(4), collapse_above=4)
    assert "evolver x2<br/>call, evolution." in lp.to_mermaid(evolution(4), collapse_above=1)
    assert '"evaluator x2\\nService"' in lp.to_dot(evolution(2), collapse_above=1)


def test_a_group_that_calls_itself_and_a_cycle() -> None:
    program = lp.Program("ring")
    nodes = [lp.CourierNode(call) for _ in range(4)]
    for node, following in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
        node.configure(following.create_handle())
    with program.group("ring"):
        for node in nodes:
            program.add_node(node)
    assert [line for line in lp.to_mermaid(program).splitlines() if "-->" in line] == ["  n0 --> n0"]
    arrows = [line.strip() for line in lp.to_mermaid(program, collapse_above=4).splitlines() if "-->" in line]
    assert arrows == ["n0 --> n1", "n1 --> n2", "n2 --> n3", "n3 --> n0"]


def test_what_the_languages_would_misread() -> None:
    class Odd:
        def __repr__(self) -> str:
            return 'odd "one" #1 \\ &\n<b>'

        def __call__(self) -> None:
            pass

    program = lp.Program('say "hi" \\')
    program.add_node(lp.PyNode(Odd()), label="end")
    mermaid = lp.to_mermaid(program).splitlines()
    assert mermaid[1] == 'title: "say \\"hi\\" \\\\"'
    assert mermaid[-1] == '  n0["end/0<br/>odd #quot;one#quot; #35;1 \\ #amp; #lt;b#gt;"]'
    dot = lp.to_dot(program).splitlines()
    assert dot[0] == 'digraph "say \\"hi\\" \\\\" {'
    assert dot[-2] == '  n0 [label="end/0\\nodd \\"one\\" #1 \\\\ & <b>"];'


def test_what_cannot_be_launched_is_not_drawn() -> None:
    with pytest.raises(lp.LaunchError, match="has no nodes"):
        lp.to_mermaid(lp.Program("empty"))
    program, other = lp.Program("p"), lp.Program("other")
    program.add_node(lp.PyNode(call, other.add_node(lp.CourierNode(Service), label="s")), label="n")
    with pytest.raises(lp.LaunchError, match="of another program"):
        lp.to_dot(program)
