"""A node in the foreground of the launcher's terminal, for a debugger."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlpad.errors import nearest
from rlpad.launch.errors import LaunchError
from rlpad.launch.messages import Spawn

if TYPE_CHECKING:
    from rlpad.launch.program import Program

DEBUGGERS = ("pdb", "debugpy")
#: Where debugpy listens.
DEBUGPY_ADDRESS = ("127.0.0.1", 5678)


class Foreground:
    """Runs one node in a process of the launcher's own group, with its terminal."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, spawn: Spawn) -> int:
        """Starts the node's process; returns its number."""
        self._process = start_anew(spawn, sys.path)
        return self._process.pid

    def poll(self) -> int | None:
        """Returns the exit code once it has ended; negative for signals."""
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """Kills it, if it lives."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def start_anew(spawn: Spawn, path: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts a node in a new interpreter, whose parent is this process.

    Args:
      spawn: the node.
      path: where modules are looked for.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(name for name in path if name)}
    # No pipe: a node that is stopped at once would have its parent wait for it to read.
    with open(os.memfd_create("rlpad-node"), "wb") as file:
        pickle.dump(spawn, file)
        file.flush()
        file.seek(0)
        command = [sys.executable, "-m", "rlpad.launch.child", str(os.getpid()), str(file.fileno())]
        return subprocess.Popen(command, pass_fds=[file.fileno()], env=environment)


def check_debug(program: Program, launcher: str, debug: str, debugger: str) -> None:
    """Checks that a node can be debugged.

    Raises:
      LaunchError: the launcher can't, there's no such node or debugger, or the debugger isn't installed.
    """
    if launcher != "processes":
        raise LaunchError(f"debug is for the launcher 'processes'; under {launcher!r}, breakpoint() will do")
    names = [str(node.name) for top in program.nodes.values() for node, _ in top.processes()]
    if debug not in names:
        raise LaunchError(f"there is no node {debug!r} to debug{nearest(debug, names)}")
    if debugger not in DEBUGGERS:
        raise LaunchError(f"unknown debugger {debugger!r}; expected {' or '.join(DEBUGGERS)}")
    if debugger == "debugpy" and importlib.util.find_spec("debugpy") is None:
        raise LaunchError("debugger 'debugpy' isn't installed: pip install debugpy")
