"""`rlpad train` as a user runs it, for tests that then break it."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time

import psutil

FLAGS = [
    *("--env", "CartPole-v1", "--steps", "1000000", "--num-actors", "2", "--eval-episodes", "2"),
    *("--agent.min-replay-size", "200", "--agent.batch-size", "16", "--agent.samples-per-insert", "8"),
    *("--agent.sgd-steps-per-learner-call", "4", "--agent.hidden-sizes", "16"),
]
TIMEOUT = 60


class Training:
    """`rlpad train` in a process of its own."""

    def __init__(self, path, *flags, cwd=None):
        self.run_dir = path / "run"
        # Short, as sockets are bound there: pytest's own folders lie too deep.
        self.folder = tempfile.mkdtemp(prefix="t")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rlpad.cli.main", "train", "dqn", *FLAGS, "--run-dir", str(self.run_dir), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "TMPDIR": self.folder},
            start_new_session=True,
        )

    def wait_until_learning(self):
        """Waits until actors act and the learner learns; returns the pids of all processes by name."""
        path = self.run_dir / "run.json"
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.process.communicate()
            if path.exists() and (text := path.read_text()) and json.loads(text)["learner_steps"] > 0:
                return self.nodes()
            time.sleep(0.05)
        raise TimeoutError("the run didn't begin to learn")

    def nodes(self):
        """Processes by the name that `ps` shows."""
        found = {}
        for process in psutil.Process(self.process.pid).children(recursive=True):
            name = process.cmdline()[0]
            assert name.startswith("rlpad: "), name
            found[name.removeprefix("rlpad: ").partition(" (")[0]] = process.pid
        return found

    def nodes_if_alive(self):
        """Processes by name, for a run that may end, or not be up yet, at any moment."""
        found = {}
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess, IndexError):
                    name = process.cmdline()[0].removeprefix("rlpad: ").partition(" (")[0]
                    found[name] = process.pid
        return found

    def end(self):
        """Waits for the end; returns exit code, stdout and stderr."""
        output, errors = self.process.communicate(timeout=TIMEOUT)
        return self.process.returncode, output, errors

    def record(self):
        return json.loads((self.run_dir / "run.json").read_text())

    def left_behind(self):
        """Temporary files and folders."""
        return os.listdir(self.folder)


def children(pid):
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pids, seconds=5.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False
