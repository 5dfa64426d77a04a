"""Faults for as long as it takes (`make chaos`): actors are killed at random, and the run still ends as it should."""

import json
import os
import random
import signal
import time

import pytest

from tests.support_training import Training, gone

pytestmark = pytest.mark.chaos


def test_actors_killed_at_random_don_t_keep_the_run_from_its_goal(tmp_path):
    steps = 60_000
    training = Training(tmp_path, "--steps", str(steps), "--num-actors", "3", "--max-restarts", "1000")
    nodes = training.wait_until_learning()
    draw = random.Random(0)
    kills = 0
    deadline = time.monotonic() + 1200
    while training.process.poll() is None and time.monotonic() < deadline:
        time.sleep(draw.uniform(1.0, 4.0))
        actors = [pid for name, pid in training.nodes_if_alive().items() if name.startswith("actor/")]
        if actors and kills < 25:
            os.kill(draw.choice(actors), signal.SIGKILL)
            kills += 1
    code, _, errors = training.end()
    assert code == 0, errors
    record = training.record()
    assert (record["status"], record["actor_steps"]) == ("completed", steps)
    assert kills - 3 <= record["restarts"] <= kills
    assert kills >= 5
    assert gone(nodes.values(), 1.0)
    assert training.left_behind() == []
    rows = [json.loads(line) for line in (training.run_dir / "metrics" / "evaluator.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows][-2:] == ["final", "best"]


@pytest.mark.parametrize("round_", range(10))
def test_the_launcher_is_killed_at_a_random_moment(tmp_path, round_):
    training = Training(tmp_path)
    time.sleep(random.Random(round_).uniform(0.5, 12.0))
    nodes = training.nodes_if_alive()
    training.process.kill()
    training.process.communicate(timeout=60)
    assert gone(nodes.values(), 5.0)
    time.sleep(0.5)
    assert training.left_behind() == []
