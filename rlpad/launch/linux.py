"""What Linux offers to keep processes together, and says of them."""

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
        if name.isdigit() and (stat := _stat(int(name))) and int(stat[1]) == process:
            found.append(int(name))
    return found


def _stat(process: int) -> list[str] | None:
    """Returns what /proc/PID/stat holds from the state on, or None for a process that has ended."""
    try:
        with open(f"/proc/{process}/stat") as file:
            # The command is in parentheses and may hold anything.
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return fields if fields[0] not in "ZX" else None


def start_ticks(process: int) -> int | None:
    """Returns when a process began, in clock ticks since the machine did, or None if it has ended.

    Together with the boot's id this tells a process from later ones of the same number.
    """
    stat = _stat(process)
    return int(stat[19]) if stat else None


def boot_id() -> str:
    """Returns the id of this machine's boot; empty where the kernel has none, as in some sandboxes."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def cpu_seconds(process: int) -> float | None:
    """Returns the CPU time that a process has used, or None if it has ended."""
    stat = _stat(process)
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK") if stat else None


def memory_bytes(process: int) -> int | None:
    """Returns a process's memory, its share of pages that it shares with others; None if that can't be read."""
    try:
        with open(f"/proc/{process}/smaps_rollup") as file:
            kilobytes = next(line.split()[1] for line in file if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return None
    return int(kilobytes) * 1024


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
