"""The command line that the programs share, and how they report what they found."""

from __future__ import annotations

import argparse
import inspect
import json
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import rlpad.launch as lp

LAUNCHERS = ("inline", "threads", "processes")


def command(
    make_program: Callable[..., lp.Program], launchers: Sequence[str] = LAUNCHERS, argv: Sequence[str] | None = None
) -> int:
    """Makes a program as the command line says and runs it.

    Args:
      make_program: makes the program; each of its parameters has a default and becomes a flag.
      launchers: those that can run the program.
      argv: the command line, by default the process's.

    Returns:
      The exit code.

    Raises:
      Exception: what a node raised.
    """
    parser = _parser(make_program, launchers)
    options = vars(parser.parse_args(argv))
    launcher = options.pop("launcher")
    try:
        run = lp.launch(make_program(**options), launcher)
    except lp.LaunchError as error:
        parser.error(str(error))
    run.wait()
    assert run.outcome is not None
    print(f"{run.outcome.status}: {run.outcome.reason}")
    return run.outcome.exit_code


def _parser(make_program: Callable[..., lp.Program], launchers: Sequence[str]) -> argparse.ArgumentParser:
    summary, _, rest = inspect.cleandoc(make_program.__doc__ or "").partition("\n")
    explained = dict(re.findall(r"^  (\w+): (.+(?:\n {4,}.+)*)", rest, re.MULTILINE))
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--launcher", choices=launchers, default="processes", help="how to run it (processes)")
    for name, parameter in inspect.signature(make_program).parameters.items():
        default = parameter.default
        flag = f"--{name.replace('_', '-')}"
        text = f"{' '.join(explained[name].split()).rstrip('.')} ({default!r})"
        if isinstance(default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=text)
        else:
            parser.add_argument(flag, type=type(default), default=default, help=text)
    return parser


def gather(futures: Iterable[Future[Any]]) -> list[Any]:
    """Returns the results of calls; all of them are sent before the first answer is waited for."""
    return [future.result() for future in list(futures)]


def report(results: dict[str, Any], out: str) -> None:
    """Prints results, each in a line of its own.

    Args:
      results: what JSON can express.
      out: file to write them to as well; none if empty.
    """
    for name, value in results.items():
        text = str(value)
        print(f"{name.replace('_', ' ')}: {text if len(text) < 100 else text[:97] + '...'}", flush=True)
    if out:
        with open(out, "w", encoding="utf-8") as file:
            json.dump(results, file)
