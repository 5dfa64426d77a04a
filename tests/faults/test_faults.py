"""What a user sees when something dies: exit codes, run.json, one clear line, and nothing left behind."""

import os
import re
import shutil
import signal
import time

import pytest

from tests.support_training import TIMEOUT, Training, children, gone


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
        shutil.rmtree(training.folder)


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
    flags = ["--env", "broken_world:make", "--max-restarts", "0", "--num-actors", "1", "--launcher", "processes"]
    training = train(*flags, cwd=tmp_path)
    code, _, errors = training.end()
    assert code == 1
    assert errors.count("Traceback (most recent call last)") == 1
    assert errors.count("ZeroDivisionError: the cart fell off") == 2  # in the traceback and in the closing line
    assert re.search(r"rlpad: error: node actor/0 failed: ZeroDivisionError: the cart fell off", errors)
    assert "broken_world.py" in errors
