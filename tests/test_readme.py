"""What the README shows is run as it stands."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def run(arguments, cwd):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_agent_of_twenty_lines_trains(tmp_path):
    (block,) = [block for block in BLOCKS if "register_agent" in block]
    assert len([line for line in block.splitlines() if line.strip()]) <= 20
    (tmp_path / "softmax_dqn.py").write_text(block)
    flags = ["--steps", "400", "--agent.min-replay-size", "100", "--eval-episodes", "2", "--final-eval-episodes", "2"]
    small = ["--agent.batch-size", "16", "--agent.samples-per-insert", "8", "--agent.temperature", "0.5"]
    train = ["-m", "rlpad.cli.main", "train", "softmax_dqn", "--env", "CartPole-v1"]
    run([*train, *flags, *small, "--run-dir", "run", "--num-actors", "2", "--replay", "embedded"], tmp_path)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["status"], record["actor_steps"]) == ("completed", 400)


def test_the_graph_as_a_library_runs(tmp_path):
    (block,) = [block for block in BLOCKS if "lp.Program" in block]
    (tmp_path / "counting.py").write_text(block)
    totals = [int(total) for total in re.findall(r"total: (\d+)", run(["counting.py"], tmp_path))]
    assert len(totals) == 4
    assert max(totals) == 400


def test_links_lead_somewhere():
    for link in re.findall(r"\]\(((?!http)[^)]+)\)", README):
        assert (Path(__file__).parents[1] / link).is_file(), link
