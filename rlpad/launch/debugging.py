"""A node under a debugger."""

from __future__ import annotations

import pdb
import sys
import traceback
from collections.abc import Callable

from rlpad.launch import context as context_lib
from rlpad.launch.foreground import DEBUGPY_ADDRESS
from rlpad.launch.messages import Spawn


def debugged(spawn: Spawn, function: Callable[[], object]) -> None:
    """Calls a function under the debugger that a node is asked to run under, if it is."""
    if spawn.debugger is None:
        function()
    elif spawn.debugger == "debugpy":
        import debugpy

        debugpy.listen(DEBUGPY_ADDRESS)
        host, port = DEBUGPY_ADDRESS
        print(f"rlpad: {spawn.name} waits for a debugger at {host}:{port}", file=sys.stderr, flush=True)
        debugpy.wait_for_client()
        function()
    else:
        _under_pdb(spawn.name, function)


def _under_pdb(name: str, function: Callable[[], object]) -> None:
    # Ctrl-C is for the whole program.
    debugger = pdb.Pdb(nosigint=True)
    debugger.prompt = f"({name}) "
    print(
        f"rlpad: {name} stops here before it's built; set breakpoints (b file.py:line), then go on with c",
        file=sys.stderr,
        flush=True,
    )
    # Who quits is thrown out of the function, and `runcall` returns as if nothing had happened.
    returned = []
    try:
        debugger.runcall(lambda: returned.append(function()))
        if not returned:
            context_lib.stop(f"quit in the debugger of {name}", "interrupted")
    except Exception as error:
        traceback.print_exception(error)
        print(f"rlpad: {name} raised this; q ends the program", file=sys.stderr, flush=True)
        inspector = pdb.Pdb(nosigint=True)
        inspector.prompt = debugger.prompt
        inspector.reset()
        inspector.interaction(None, error.__traceback__)
        raise
