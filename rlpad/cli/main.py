"""The `rlpad` command."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from rlpad.cli.interrupts import ends_at_once
from rlpad.errors import UserError, nearest

#: Command: the module with its `main(arguments) -> exit code`, and what it does.
COMMANDS = {
    "train": ("rlpad.cli.train", "train an agent on an environment"),
    "evaluate": ("rlpad.cli.evaluate", "run the policy that a run saved, optionally to video"),
    "agents": ("rlpad.cli.agents", "list the agents that can be trained"),
    "doctor": ("rlpad.cli.doctor", "say which stack, devices and extras are there and what is missing"),
    "ps": ("rlpad.cli.ps", "show which launched programs run, and where their nodes stand"),
    "logs": ("rlpad.cli.logs", "show what the nodes of a launched program print, and follow it"),
    "stop": ("rlpad.cli.stop", "stop a launched program, and say how it ended"),
    "graph": ("rlpad.cli.graph", "draw the graph of an experiment, or of any launch program"),
}

#: Exit code of a request that can't be carried out as asked.
USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code. Errors about the request are one line on stderr."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as for `python -m`: agents and environments of one's own are found
    try:
        with ends_at_once():
            return _dispatch(arguments)
    except UserError as error:
        print(f"rlpad: error: {error}", file=sys.stderr)
        return USAGE
    except BrokenPipeError:
        # Whoever read our output (`| head`) has seen enough.
        sys.stderr.close()
        return 0


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(help_text())
        return 0
    if arguments[0] == "--version":
        from rlpad import __version__

        print(f"rlpad {__version__}")
        return 0
    command, *rest = arguments
    if command not in COMMANDS:
        raise UserError(f"unknown command {command!r}{nearest(command, COMMANDS)} (known: {', '.join(COMMANDS)})")
    module = importlib.import_module(COMMANDS[command][0])
    return int(module.main(rest))


def help_text() -> str:
    """Returns the overview of commands."""
    rows = [f"  {name:<10} {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: rlpad COMMAND [ARGUMENTS]",
            "",
            "Reinforcement learning on JAX, from one process to fleets of actors.",
            "",
            *rows,
            "",
            "rlpad COMMAND --help tells more; a first run: rlpad train dqn --env CartPole-v1",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
