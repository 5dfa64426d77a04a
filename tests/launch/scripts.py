"""Scripts that launch programs, run in processes of their own, for tests that then end them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from .conftest import wait_until

#: Seconds after which a script that should have ended fails the test.
TIMEOUT = 30.0

_HEAD = """
import os, sys, threading, time
from pathlib import Path
import rlpad.launch as lp

FOLDER, LAUNCHER = Path(sys.argv[1]), sys.argv[2]

def touch(name):
    (FOLDER / name).touch()

def wait_for(name):
    deadline = time.monotonic() + 20
    while not (FOLDER / name).exists():
        assert time.monotonic() < deadline, name
        time.sleep(0.01)

def program(*nodes):
    made = lp.Program("script")
    for node in nodes:
        made.add_node(node, label="n")
    return made

"""


class Script:
    """A script that runs; it says with `touch` where it is."""

    def __init__(self, folder: Path, launcher: str, body: str, options: tuple[str, ...] = ()):
        self.folder = folder
        # Short, as sockets are bound there: pytest's own folders lie too deep.
        self.temporary = tempfile.mkdtemp(prefix="t")
        path = folder / "script.py"
        path.write_text(_HEAD + textwrap.dedent(body))
        self.process = subprocess.Popen(
            [sys.executable, *options, str(path), str(folder), launcher],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "TMPDIR": self.temporary},
            start_new_session=True,
        )
        self._seen: set[psutil.Process] = set()

    def wait_for(self, name: str) -> None:
        """Waits until the script has touched a file."""
        wait_until(lambda: (self.folder / name).exists() or self.process.poll() is not None)
        assert (self.folder / name).exists(), self.process.communicate()
        self._see()

    def touch(self, name: str) -> None:
        """Touches a file for which the script waits."""
        (self.folder / name).touch()

    def signal(self, number: int) -> None:
        """Sends a signal to the script, and to nobody else."""
        self._see()
        self.process.send_signal(number)

    def goes_on(self, seconds: float = 0.25) -> bool:
        """Says whether the script still runs a moment later."""
        time.sleep(seconds)
        self._see()
        return self.process.poll() is None

    def end(self) -> tuple[int, str, str]:
        """Waits for the end, and checks that nothing is left of it; returns exit code, stdout and stderr."""
        output, errors = self.process.communicate(timeout=TIMEOUT)
        wait_until(lambda: not any(alive(process) for process in self._seen), 5.0)
        wait_until(lambda: not os.listdir(self.temporary), 5.0)
        return self.process.returncode, output, errors

    def close(self) -> None:
        """Kills what is left."""
        for process in self._seen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.kill()
        self.process.communicate(timeout=TIMEOUT)
        with contextlib.suppress(OSError):
            os.rmdir(self.temporary)

    def _see(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self._seen.update(psutil.Process(self.process.pid).children(recursive=True))


@contextlib.contextmanager
def running(folder: Path, launcher: str, body: str, options: tuple[str, ...] = ()) -> Iterator[Script]:
    """Runs a script, and kills what a test has left of it."""
    script = Script(folder, launcher, body, options)
    try:
        yield script
    finally:
        script.close()


def alive(process: psutil.Process) -> bool:
    """Says whether a process runs."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


#: The signals that stop a program, and the exit codes that tell of them.
STOPPING = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
