"""What a process holds: descriptors, threads, children; for tests that it doesn't gather any."""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

import psutil


def descriptors() -> list[str]:
    """Lists what this process holds open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # that of the listing itself
            continue
    return sorted(found)


def holdings() -> dict[str, Any]:
    """Returns what a process must not gather: descriptors (sockets, pipes, files), threads and children."""
    gc.collect()
    # The timer is one for the process, made when it's first needed.
    threads = sorted(thread.name for thread in threading.enumerate() if thread.name != "rpc-timer")
    return {
        "descriptors": len(descriptors()),
        "sockets": sum(link.startswith("socket:") for link in descriptors()),
        "threads": threads,
        "tasks": len(os.listdir("/proc/self/task")) - (threading.active_count() - len(threads)),
        "children": len(psutil.Process().children(recursive=True)),
    }
