"""Signals and lost outputs, at moments when no run is under way to be stopped."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
TRAIN = [
    *(sys.executable, "-m", "rlpad.cli.main", "train", "dqn", "--env", "CartPole-v1", "--launcher", "inline"),
    *("--agent.min-replay-size", "100", "--agent.hidden-sizes", "8", "--eval-episodes", "1"),
]


def start(*flags, **options):
    return subprocess.Popen(
        [*TRAIN, *flags], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("delay", [0.3, 0.9, 1.5])
def test_a_signal_at_the_start_ends_the_command(tmp_path, number, delay):
    process = start("--steps", "1000000", "--run-dir", str(tmp_path / "run"))
    time.sleep(delay)
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert process.returncode in (128 + number, -number)  # the latter while Python itself still starts
    assert "Exception ignored" not in errors
    record = tmp_path / "run" / "run.json"
    if record.exists() and record.read_text():
        assert json.loads(record.read_text())["status"] == "interrupted"


def test_who_has_seen_enough_does_not_end_the_run(tmp_path):
    process = start("--steps", "600", "--run-dir", str(tmp_path / "run"))
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "completed"
