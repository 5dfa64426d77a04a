"""`rlpad train` from the command line to the files that it leaves behind."""

import dataclasses
import json
import sys
import types

import dm_env
import numpy as np
import pytest
from dm_env import specs

from agents.dqn.config import DQNConfig
from rlpad.cli.main import main
from rlpad.experiment.config import ExperimentConfig, Scale, Schedule

SMALL = [
    "--steps",
    "600",
    "--agent.min-replay-size",
    "100",
    "--eval-episodes",
    "2",
    "--final-eval-episodes",
    "2",
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


class Failing(dm_env.Environment):
    """Episodes of ten steps; the fiftieth step of a training environment fails."""

    def __init__(self, fails_at):
        self.steps, self.fails_at = 0, fails_at

    def reset(self):
        return dm_env.restart(np.zeros(2, np.float32))

    def step(self, action):
        self.steps += 1
        if self.steps == self.fails_at:
            raise ValueError("the arm fell off\nand rolled away")
        make = dm_env.termination if self.steps % 10 == 0 else dm_env.transition
        return make(1.0, np.zeros(2, np.float32))

    def observation_spec(self):
        return specs.Array((2,), np.float32)

    def action_spec(self):
        return specs.DiscreteArray(2)


@pytest.fixture
def failing_env(monkeypatch):
    module = types.ModuleType("failing_environment")
    module.make = lambda seed, evaluation=False: Failing(0 if evaluation else 50)
    monkeypatch.setitem(sys.modules, "failing_environment", module)
    return "failing_environment:make"


def test_a_run_leaves_all_its_files(capsys, folder):
    assert main(["train", "dqn", "--env", "CartPole-v1", *SMALL, "--run-dir", "first"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == "dqn on CartPole-v1 · inline · embedded replay · 1 actor x 1 env · seed 0 · first"
    assert lines[-2] == "learning curve: first/learning_curve.png"
    assert lines[-1] == "rlpad evaluate first"
    assert any(line.startswith("completed: ") for line in lines)
    assert any(line.startswith("600 actor steps, ") for line in lines)
    assert any(line.startswith("final policy: mean return ") and "2 fresh" in line for line in lines)
    assert "\x1b" not in captured.out

    run = folder / "first"
    status = json.loads((run / "run.json").read_text())
    assert (status["status"], status["actor_steps"]) == ("completed", 600)
    assert status["learner_steps"] > 0
    config = json.loads((run / "config.json").read_text())
    assert config["experiment"]["steps"] == 600
    assert config["experiment"]["agent_config"]["min_replay_size"] == 100
    assert config["launcher"] == "inline" and config["replay_backend"] == "embedded"
    assert {path.name for path in (run / "metrics").iterdir()} == {
        "actor-0.jsonl",
        "counter.jsonl",
        "evaluator.jsonl",
        "learner.jsonl",
    }
    assert (run / "learning_curve.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")

    # What the last line says works.
    assert main(["evaluate", "first", "--episodes", "1"]) == 0
    # And nothing is ever overwritten.
    assert main(["train", "dqn", "--env", "CartPole-v1", *SMALL, "--run-dir", "first"]) == 2


def test_json_is_all_that_stdout_gets(capsys):
    arguments = [
        "train",
        "dqn",
        "--env",
        "CartPole-v1",
        *SMALL,
        "--steps",
        "300",
        "--run-dir",
        "run",
        "--json",
    ]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result["status"] == "completed" and result["exit_code"] == 0
    assert result["actor_steps"] == 300
    assert result["run_dir"].endswith("run")
    assert captured.err.splitlines()[-1] == "rlpad evaluate run"


def test_without_evaluators_the_latest_snapshot_is_named(capsys):
    arguments = ["train", "dqn", "--env", "CartPole-v1", *SMALL, "--num-evaluators", "0", "--run-dir", "run"]
    assert main(arguments) == 0
    command = capsys.readouterr().out.splitlines()[-1]
    assert command == "rlpad evaluate run --snapshot latest"
    assert main(command.split()[1:] + ["--episodes", "1"]) == 0


def test_a_failing_environment_is_explained_once(capsys, folder, failing_env):
    assert main(["train", "dqn", "--env", failing_env, *SMALL, "--run-dir", "run"]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("Traceback (most recent call last)") == 1
    lines = captured.err.splitlines()
    assert lines.count("and rolled away") == 1
    assert "run_watched" not in captured.err and "raised in node" not in captured.err
    assert lines[0] == "node actor/0:"
    assert "in step" in captured.err and "raise ValueError" in captured.err
    assert lines[-1] == "rlpad: error: node actor/0 failed: ValueError: the arm fell off; logs: run/logs"
    status = json.loads((folder / "run" / "run.json").read_text())
    assert status["status"] == "failed"
    assert "the arm fell off" in status["reason"]


def test_a_failing_run_is_one_json_object(capsys, failing_env):
    assert main(["train", "dqn", "--env", failing_env, *SMALL, "--run-dir", "run", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["status"], result["exit_code"]) == ("failed", 1)
    assert result["reason"] == "node actor/0 failed: ValueError: the arm fell off"


def test_help_shows_every_field(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", "dqn", "--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for config, prefix in ((Schedule, "--"), (Scale, "--"), (DQNConfig, "--agent.")):
        for field in dataclasses.fields(config):
            assert f"{prefix}{field.name.replace('_', '-')}" in text, field.name
    for words in (
        "Environment steps that all actors together take",
        "Actor nodes; more than one makes",
        "Chance of a random action at the first actor step.",
        "Replay backend; auto is embedded for inline",
    ):
        assert words in text


def test_every_config_field_has_help_text():
    import inspect

    for config in (Schedule, ExperimentConfig, Scale, *DQNConfig.__mro__[:-1]):
        if not dataclasses.is_dataclass(config):
            continue
        lines = [line.strip() for line in inspect.getsource(config).splitlines()]
        for name in config.__annotations__:
            at = next(i for i, line in enumerate(lines) if line.startswith(f"{name}:"))
            assert lines[at + 1].startswith('"""'), f"{config.__name__}.{name}"
