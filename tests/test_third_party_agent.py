"""An agent from a package of its own: found by entry point and by module path, run untouched by every launcher."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent / "fixtures" / "agent_package"
FLAGS = [
    *("--env", "CartPole-v1", "--steps", "400", "--eval-episodes", "2", "--final-eval-episodes", "2"),
    *("--agent.min-replay-size", "100", "--agent.batch-size", "16", "--agent.samples-per-insert", "8"),
    *("--agent.sgd-steps-per-learner-call", "2", "--replay", "embedded", "--eval-every", "200"),
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The package as pip installs it, in a folder of its own."""
    folder = tmp_path_factory.mktemp("agent")
    shutil.copytree(PACKAGE, folder / "source")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(folder / "site"), str(folder / "source")], check=True, timeout=120)
    return folder


def rlpad(*arguments, cwd, path=""):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in (path, *sys.path) if p)}
    return subprocess.run(
        [sys.executable, "-m", "rlpad.cli.main", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize("launcher", ["inline", "threads", "processes"])
def test_found_by_entry_point(installed, tmp_path, launcher):
    site = str(installed / "site")
    done = rlpad(
        "train", "linear-q", *FLAGS, "--launcher", launcher, "--run-dir", "run", "--agent.epsilon", "0.3",
        cwd=tmp_path, path=site,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["status"], record["actor_steps"]) == ("completed", 400)
    assert record["learner_steps"] > 100
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["experiment"]["agent_config"]["epsilon"] == 0.3
    evaluated = rlpad("evaluate", "run", "--episodes", "3", "--json", cwd=tmp_path, path=site)
    assert evaluated.returncode == 0, evaluated.stderr
    assert json.loads(evaluated.stdout)["episodes"] == 3


def test_found_by_module_path(installed, tmp_path):
    # Not installed: the module lies where the command is run.
    shutil.copytree(PACKAGE / "rlpad_linear_q", tmp_path / "rlpad_linear_q")
    done = rlpad("train", "rlpad_linear_q", *FLAGS, "--launcher", "processes", "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["actor_steps"] == 400


def test_listed(installed, tmp_path):
    done = rlpad("agents", "--json", cwd=tmp_path, path=str(installed / "site"))
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["linear-q"] == {
        "name": "linear-q",
        "module": "rlpad_linear_q",
        "summary": "Linear Q-learning with a fixed epsilon.",
        "error": None,
    }
    assert "dqn" in rows
