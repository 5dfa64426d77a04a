"""What Linux offers to keep processes together."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def die_with_parent(parent: int) -> None:
    """Has this process killed when its parent dies, and ends it at once if that has happened already.

    Args:
      parent: the process that is expected to be the parent.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Makes orphaned descendants of this process its children (subreaper)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children_of(process: int) -> list[int]:
    """Lists the live children of a process."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        # Processes may end while the list is read.
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            # The command is in parentheses and may hold anything.
            state, parent = file.read().rpartition(")")[2].split()[:2]
            if int(parent) == process and state != "Z":
                found.append(int(name))
    return found


def number_of_threads() -> int:
    """Returns the number of threads of this process, those of C libraries included."""
    return len(os.listdir("/proc/self/task"))


def describe_exit(code: int) -> str:
    """Says how a process ended, from the return code as `subprocess` has it (negative for signals)."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"


def kill_group(group: int, number: int = signal.SIGKILL) -> None:
    """Sends a signal to a process group; one that is gone doesn't matter."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
