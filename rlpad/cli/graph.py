"""`rlpad graph`: draws the graph of an experiment, or of any launch program."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any, Literal

from rlpad.cli.parse import parse
from rlpad.errors import UserError, nearest
from rlpad.launch import Program, to_dot, to_mermaid
from rlpad.launch.graph import COLLAPSE_ABOVE


@dataclasses.dataclass(frozen=True)
class PictureFlags:
    """Flags of `rlpad graph`; for an experiment those of `rlpad train` are added."""

    format: Literal["mermaid", "dot", "svg"] = "mermaid"
    """Mermaid text, text for Graphviz, or an SVG that Graphviz draws (needs its program dot)."""
    collapse_above: int = COLLAPSE_ABOVE
    """Groups of more nodes than this are one box, such as "actor x4"."""
    json: bool = False
    """Print one JSON object with the picture as its text."""


def main(arguments: Sequence[str]) -> int:
    """Prints the picture of the program that the first argument names."""
    if not arguments:
        raise UserError("missing TARGET: expected rlpad graph AGENT --env ENV, or rlpad graph module:function")
    target, *rest = arguments
    if target in ("-h", "--help"):
        print(usage())
        return 0
    if target.startswith("-"):
        raise UserError("the target comes first: rlpad graph AGENT --env ENV, or rlpad graph module:function")
    prog = f"rlpad graph {target}"
    if ":" in target:
        flags = parse(PictureFlags, rest, prog=prog, description=f"Draws the launch program that {target} returns.")
        program = load_program(target)
    else:
        flags, program = experiment(target, rest, prog)
    picture = draw(program, flags)
    if flags.json:
        print(json.dumps({"program": program.name, "format": flags.format, "graph": picture}))
    else:
        print(picture, end="")
    return 0


def usage() -> str:
    """Returns the help text for `rlpad graph` without a target."""
    return "\n".join(
        [
            "usage: rlpad graph AGENT --env ENV [FLAGS]",
            "       rlpad graph MODULE:FUNCTION [FLAGS]",
            "",
            "Draws the graph of an experiment, from the flags that rlpad train takes, or of the launch program that a",
            "function returns. Arrows lead from a node to those that it can call.",
            "",
            "  rlpad graph dqn --env CartPole-v1 --num-actors 4          Mermaid text, as GitHub draws it",
            "  rlpad graph dqn --env CartPole-v1 --format svg > dqn.svg  a picture, by Graphviz",
            "  rlpad graph my_program:make_program --format dot          text for Graphviz",
            "  rlpad graph dqn --help                                    every flag, with its help text",
            "",
            "Exit codes: 0 if it was drawn, 2 for a request that can't be carried out.",
        ]
    )


def draw(program: Program, flags: PictureFlags) -> str:
    """Returns the picture of a program.

    Raises:
      UserError: the program couldn't be launched as it stands, or Graphviz is needed and isn't there.
    """
    if flags.collapse_above < 1:
        raise UserError(f"--collapse-above must be at least 1, got {flags.collapse_above}")
    if flags.format == "mermaid":
        return to_mermaid(program, collapse_above=flags.collapse_above)
    text = to_dot(program, collapse_above=flags.collapse_above)
    if flags.format == "dot":
        return text
    if shutil.which("dot") is None:
        raise UserError(
            "--format svg needs Graphviz, whose program dot isn't installed (apt install graphviz); "
            "--format dot and mermaid need nothing"
        )
    done = subprocess.run(["dot", "-Tsvg"], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(f"Graphviz can't draw it: {' '.join(done.stderr.split())}")
    return done.stdout


def experiment(agent: str, arguments: Sequence[str], prog: str) -> tuple[PictureFlags, Program]:
    """Returns the flags and the program of an experiment; nothing is started or written."""
    from rlpad.cli.train import experiment_config, run_flags
    from rlpad.registry import get_agent

    entry = get_agent(agent)
    kind = dataclasses.make_dataclass("GraphFlags", [], bases=(PictureFlags, run_flags(entry)), frozen=True)
    flags: Any = parse(kind, arguments, prog=prog, description=f"Draws the graph of {agent}: {entry.summary}")
    from rlpad.experiment.program import make_program
    from rlpad.experiment.run import prepare, resolve_launcher, resolve_replay

    backend = resolve_replay(flags.replay, resolve_launcher(flags.launcher, flags.scale, flags.debug))
    config = experiment_config(agent, flags)
    setup = prepare(config, flags.scale, replay_backend=backend, run_dir=flags.run_dir or "runs")
    return flags, make_program(setup).program


def load_program(target: str) -> Program:
    """Calls the function that `module:function` names.

    Raises:
      UserError: there is none, it takes arguments, or doesn't return a program.
    """
    module_name, _, name = target.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), name]):
        raise UserError(f"program {target!r} is malformed; expected module:function, such as my_package.programs:make")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(f"program {target!r}: can't import module {module_name!r}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UserError(f"module {module_name!r} has no function {name!r}{nearest(name, known)}")
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError) as error:
        raise UserError(f"program {target!r} must be a function without arguments: {error}") from error
    program = function()
    if not isinstance(program, Program):
        raise UserError(f"{target} returned {type(program).__name__}, expected a rlpad.launch.Program")
    return program
