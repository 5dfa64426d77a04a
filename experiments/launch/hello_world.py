"""The smallest program: one node, which greets and is done.

python -m experiments.launch.hello_world --launcher processes
"""

from __future__ import annotations

import os

import rlpad.launch as lp
from experiments.launch.command import command


class Greeter:
    """Greets once."""

    def __init__(self, name: str):
        # Called in the node, not in the process that builds the program.
        self._name = name

    def run(self) -> None:
        """Greets."""
        print(f"Hello, {self._name}! This is node {lp.node_info().name} in process {os.getpid()}.", flush=True)


def make_program(name: str = "world") -> lp.Program:
    """Makes a program that says hello.

    Args:
      name: whom to greet.
    """
    program = lp.Program("hello-world")
    program.add_node(lp.PyClassNode(Greeter, name), label="greeter")
    return program


if __name__ == "__main__":
    raise SystemExit(command(make_program))
