"""What a user sees when something dies: exit codes, run.json, one clear line, and nothing left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

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
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rlpad.cli.main", "train", "dqn", *FLAGS, "--run-dir", str(self.run_dir), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "TMPDIR": str(path)},
            start_new_session=True,
        )
        self.folder = path

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

    def end(self):
        """Waits for the end; returns exit code, stdout and stderr."""
        output, errors = self.process.communicate(timeout=TIMEOUT)
        return self.process.returncode, output, errors

    def record(self):
        return json.loads((self.run_dir / "run.json").read_text())

    def left_behind(self):
        """Temporary files and folders."""
        return [p.name for p in self.folder.iterdir() if p != self.run_dir and p.name.startswith(("rlpad", "tmp", "reverb"))]


@pytest.fixture
def train(tmp_path):
    started = []

    def start(*flags, **options):
        started.append(Training(tmp_path, *flags, **options))
        return started[-1]

    yield start
    for training in started:
        for process in [training.process, *children(training.process.pid)]:
            if process.poll() is None if hasattr(process, "poll") else process.is_running():
                process.kill()
        training.process.communicate(timeout=TIMEOUT)


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


def gone(pids, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


NODES = {"fork server", "counter/0", "replay/0", "learner/0", "actor/0", "actor/1", "evaluator/0"}


def test_sigkill_of_the_launcher_leaves_no_child(train):
    training = train()
    nodes = training.wait_until_learning()
    assert set(nodes) == NODES
    training.process.kill()
    assert gone(nodes.values(), 5.0)
    training.process.wait(TIMEOUT)
    time.sleep(0.2)
    assert training.left_behind() == []


@pytest.mark.parametrize("node", ["learner/0", "replay/0", "actor/1"])
def test_sigkill_of_a_node_ends_the_run_and_names_it(train, node):
    training = train("--max-restarts", "0")
    nodes = training.wait_until_learning()
    os.kill(nodes[node], signal.SIGKILL)
    started = time.monotonic()
    code, _, errors = training.end()
    assert time.monotonic() - started < 10
    assert code == 1
    (line,) = [line for line in errors.splitlines() if "rlpad: error:" in line]
    assert f"node {node} was killed by SIGKILL" in line
    assert "Traceback" not in errors
    record = training.record()
    assert record["status"] == "failed"
    assert f"node {node} was killed by SIGKILL" in record["reason"]
    assert gone(nodes.values(), 1.0)
    assert training.left_behind() == []


def test_an_actor_that_dies_is_started_again(train):
    training = train("--max-restarts", "2")
    nodes = training.wait_until_learning()
    os.kill(nodes["actor/0"], signal.SIGKILL)
    deadline = time.monotonic() + TIMEOUT
    while training.record()["restarts"] == 0 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert training.record()["restarts"] == 1
    steps = training.record()["actor_steps"]
    while training.record()["actor_steps"] < steps + 100 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert training.nodes()["actor/0"] != nodes["actor/0"]
    training.process.send_signal(signal.SIGINT)
    code, _, errors = training.end()
    assert code == 130
    assert "node actor/0 was killed by SIGKILL; restart 1 of 2" in errors


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_saves_and_says_so(train, number, code):
    training = train()
    nodes = training.wait_until_learning()
    training.process.send_signal(number)
    started = time.monotonic()
    returned, output, errors = training.end()
    assert time.monotonic() - started < 10
    assert returned == code
    assert "Traceback" not in errors
    record = training.record()
    assert record["status"] == "interrupted"
    assert record["actor_steps"] > 0
    assert gone(nodes.values(), 1.0)
    assert training.left_behind() == []
    # What was learnt is there.
    assert any(path.name.startswith("policy-") for path in (training.run_dir / "checkpoints").iterdir())


def test_a_second_interrupt_kills_at_once(train):
    training = train()
    nodes = training.wait_until_learning()
    os.kill(nodes["learner/0"], signal.SIGSTOP)  # so that it can't stop by itself
    training.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert training.process.poll() is None
    started = time.monotonic()
    training.process.send_signal(signal.SIGINT)
    code, _, errors = training.end()
    assert time.monotonic() - started < 3
    assert code == 130
    assert "Traceback" not in errors
    assert training.record()["status"] == "interrupted"
    assert gone(nodes.values(), 1.0)


@pytest.mark.parametrize("launcher", ["inline", "threads"])
def test_interrupts_in_one_process(train, launcher):
    training = train("--launcher", launcher, "--replay", "embedded")
    training.wait_until_learning()
    training.process.send_signal(signal.SIGINT)
    started = time.monotonic()
    code, _, errors = training.end()
    assert time.monotonic() - started < 10
    assert code == 130
    assert "Traceback" not in errors
    assert training.record()["status"] == "interrupted"


def test_an_exception_in_a_node_is_shown_once(train, tmp_path):
    (tmp_path / "broken_world.py").write_text(
        "import gymnasium\n"
        "class Broken(gymnasium.Wrapper):\n"
        "    steps = 0\n"
        "    def step(self, action):\n"
        "        self.steps += 1\n"
        "        if self.steps == 150:\n"
        "            raise ZeroDivisionError('the cart fell off')\n"
        "        return super().step(action)\n"
        "def make(seed):\n"
        "    return Broken(gymnasium.make('CartPole-v1'))\n"
    )
    training = train("--env", "broken_world:make", "--max-restarts", "0", "--num-actors", "1", "--launcher", "processes", cwd=tmp_path)
    code, _, errors = training.end()
    assert code == 1
    assert errors.count("Traceback (most recent call last)") == 1
    assert errors.count("ZeroDivisionError: the cart fell off") == 2  # in the traceback and in the closing line
    assert re.search(r"rlpad: error: node actor/0 failed: ZeroDivisionError: the cart fell off", errors)
    assert "broken_world.py" in errors
