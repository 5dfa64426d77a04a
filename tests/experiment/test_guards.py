"""Runs that would mislead or never end are stopped with a word."""

import dataclasses
import json

import dm_env
import numpy as np
import pytest

from agents.dqn import DQNConfig
from rlpad.errors import UserError
from rlpad.experiment import ExperimentConfig, Scale, run_experiment
from rlpad.experiment.load import config_from_json, load_policy

SMALL = DQNConfig(
    min_replay_size=50, batch_size=8, samples_per_insert=4.0, sgd_steps_per_learner_call=2, hidden_sizes=(8,)
)


class Endless(dm_env.Environment):
    """Never ends; pays what it's told."""

    def __init__(self, reward):
        self._reward = np.float32(reward)

    def reset(self):
        return dm_env.restart(np.zeros(2, np.float32))

    def step(self, action):
        return dm_env.transition(self._reward, np.zeros(2, np.float32))

    def observation_spec(self):
        return dm_env.specs.Array((2,), np.float32)

    def action_spec(self):
        return dm_env.specs.DiscreteArray(2)

    def reward_spec(self):
        return dm_env.specs.Array((), np.float32)

    def discount_spec(self):
        return dm_env.specs.BoundedArray((), np.float32, 0.0, 1.0)


def run(path, env, **changes):
    config = ExperimentConfig(
        agent="dqn", env=env, steps=300, agent_config=SMALL, eval_episodes=2, final_eval_episodes=2, **changes
    )
    return run_experiment(config, Scale(), "inline", run_dir=path)


def test_evaluation_episodes_that_never_end_are_cut(tmp_path):
    result = run(tmp_path / "run", lambda seed: Endless(1.0), eval_max_steps=40)
    assert (result.status, result.final_mean, result.best_mean) == ("completed", 40.0, 40.0)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics" / "evaluator.jsonl").read_text().splitlines()]
    assert {(row["episode_length_mean"], row["episodes_cut"]) for row in rows} == {(40.0, 2)}


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path):
    with pytest.raises(FloatingPointError, match="is nan after .* learner steps") as caught:
        run(tmp_path / "run", lambda seed: Endless(float("nan")), eval_max_steps=10, log_every=10)
    assert "raised in node learner/0" in caught.value.__notes__
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"


def test_inline_lets_all_actors_act(tmp_path):
    config = ExperimentConfig(agent="dqn", env="CartPole-v1", steps=900, agent_config=SMALL, eval_episodes=1)
    run_experiment(config, Scale(num_actors=3), "inline", run_dir=tmp_path / "run")
    for actor in range(3):
        rows = (tmp_path / "run" / "metrics" / f"actor-{actor}.jsonl").read_text().splitlines()
        assert 100 <= sum(json.loads(row)["episode_length"] for row in rows) <= 400


def test_damaged_runs_are_named_in_one_line(tmp_path):
    run(tmp_path / "run", "CartPole-v1")
    for name, text in (("checkpoints/best.json", "garbage"), ("config.json", '{"experiment"')):
        (tmp_path / "run" / name).write_text(text)
        with pytest.raises(UserError, match="can't be read") as caught:
            load_policy(tmp_path / "run")
        assert "\n" not in str(caught.value)


def make_broken(seed):
    raise RuntimeError("no licence\nfor the simulator")


def test_an_environment_that_cannot_be_made_is_one_line(tmp_path):
    with pytest.raises(UserError, match="RuntimeError: no licence for the simulator .*test_guards.py"):
        run(tmp_path / "run", make_broken)
    assert not (tmp_path / "run").exists()


def test_nested_configs_are_rebuilt():
    @dataclasses.dataclass(frozen=True)
    class Inner:
        k: int = 1

    @dataclasses.dataclass(frozen=True)
    class Outer:
        inner: "Inner" = dataclasses.field(default_factory=Inner)
        sizes: tuple[int, ...] = (1,)

    Outer.__annotations__["inner"] = Inner
    assert config_from_json(Outer, {"inner": {"k": 5}, "sizes": [2, 3]}) == Outer(Inner(5), (2, 3))
