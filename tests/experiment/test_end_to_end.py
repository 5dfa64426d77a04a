"""The whole thing, small: the same experiment under every launcher and on both replay backends."""

import datetime
import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest

from agents.dqn import DQNConfig
from rlpad.errors import UserError
from rlpad.experiment import ExperimentConfig, Scale, run_experiment
from rlpad.experiment.load import load_policy
from rlpad.experiment.program import make_program
from rlpad.experiment.run import prepare
from rlpad.tracking.run_directory import RunDirectory
from rlpad.tracking.snapshots import list_snapshots, read_snapshot

HAS_REVERB = importlib.util.find_spec("reverb") is not None
needs_reverb = pytest.mark.skipif(not HAS_REVERB, reason="the extra `reverb` isn't installed")

SMALL = DQNConfig(
    min_replay_size=100,
    batch_size=16,
    samples_per_insert=8.0,
    sgd_steps_per_learner_call=4,
    hidden_sizes=(16,),
)
STEPS = 600


def run(path, launcher, *, seed=0, backend="embedded", scale=None, **changes):
    config = ExperimentConfig(
        **{
            "agent": "dqn",
            "env": "CartPole-v1",
            "steps": STEPS,
            "seed": seed,
            "agent_config": SMALL,
            "eval_every": 250,
            "eval_episodes": 3,
            "final_eval_episodes": 4,
            "log_every": 50,
            **changes,
        }
    )
    return run_experiment(config, scale, launcher, replay_backend=backend, run_dir=path)


#: Measurements of time; everything else must be reproducible.
TIMES = re.compile(r"^time$|second|duration|_sec$|_fraction$")


def metrics(path):
    return {
        file.name: [
            {name: value for name, value in json.loads(line).items() if not TIMES.search(name)}
            for line in file.read_text().splitlines()
        ]
        for file in sorted((path / "metrics").iterdir())
    }


def final_variables(path):
    (final,) = [s for s in list_snapshots(path) if s.path.name.endswith("-final")]
    return read_snapshot(final.path)[0]["policy"]


def leaves(nest):
    return [leaf for child in nest.values() for leaf in leaves(child)] if isinstance(nest, dict) else [nest]


@pytest.mark.parametrize("envs_per_actor", [1, 3])
def test_inline_is_reproducible_bit_for_bit(tmp_path, envs_per_actor):
    scale = Scale(num_actors=2, envs_per_actor=envs_per_actor)
    config = DQNConfig(**{**vars(SMALL), "priority_exponent": 0.6})
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        run(tmp_path / name, "inline", seed=seed, scale=scale, agent_config=config)
    first, again, other = (metrics(tmp_path / name) for name in "abc")
    assert first == again
    assert set(first) == {"actor-0.jsonl", "actor-1.jsonl", "counter.jsonl", "evaluator.jsonl", "learner.jsonl"}
    assert all(first.values())
    assert first["learner.jsonl"] != other["learner.jsonl"]
    variables = [leaves(final_variables(tmp_path / name)) for name in "abc"]
    for one, two, three in zip(*variables, strict=True):
        assert one.tobytes() == two.tobytes()
        assert one.size == 1 or one.tobytes() != three.tobytes()


def test_every_launcher_takes_the_same_steps_and_updates(tmp_path):
    results = {
        launcher: run(tmp_path / launcher, launcher, scale=Scale(num_actors=2))
        for launcher in ("inline", "threads", "processes")
    }
    for result in results.values():
        assert (result.status, result.exit_code, result.actor_steps) == ("completed", 0, STEPS)
    updates = {launcher: result.learner_steps for launcher, result in results.items()}
    assert updates["inline"] > 200
    assert max(updates.values()) <= 1.05 * min(updates.values()), updates


@needs_reverb
@pytest.mark.parametrize("launcher", ["inline", "threads", "processes"])
def test_reverb_takes_as_many_updates_as_embedded(tmp_path, launcher):
    result = run(tmp_path / "reverb", launcher, backend="reverb")
    assert (result.status, result.actor_steps) == ("completed", STEPS)
    # Per transition 8 samples, of which 100 transitions are free; 16 make an update.
    expected = (STEPS - 100) * 8 / 16
    assert 0.9 * expected <= result.learner_steps <= 1.25 * expected


def test_the_run_directory_tells_the_whole_story(tmp_path):
    path = tmp_path / "run"
    result = run(path, "processes", scale=Scale(num_actors=2), seed=3)
    directory = RunDirectory.open(path)
    record = directory.read()
    assert (record["status"], record["reason"]) == ("completed", "step goal reached")
    assert (record["actor_steps"], record["learner_steps"]) == (STEPS, result.learner_steps)
    goal_reached = min(row["time"] for row in directory.read_metrics("learner") if row["actor_steps"] == STEPS)
    assert 0 <= datetime.datetime.fromisoformat(record["updated"]).timestamp() - goal_reached < 10
    assert record["restarts"] == 0
    assert {"jax", "numpy", "python", "rlpad"} <= set(record["versions"])
    assert directory.config["experiment"]["agent_config"]["hidden_sizes"] == [16]
    assert directory.config["scale"]["num_actors"] == 2
    assert (directory.config["launcher"], directory.config["replay_backend"]) == ("processes", "embedded")
    rows = directory.read_metrics("evaluator")
    assert [row["kind"] for row in rows][-2:] == ["final", "best"]
    assert [row["kind"] for row in rows[:-2]] == ["periodic"] * (len(rows) - 2)
    assert len(rows) >= 3
    for row in rows:
        assert row["episodes"] == (3 if row["kind"] == "periodic" else 4)
        assert row["episode_return_min"] <= row["episode_return_mean"] <= row["episode_return_max"]
    final, best = rows[-2:]
    assert (final["actor_steps"], final["learner_steps"]) == (STEPS, result.learner_steps)
    candidates = rows[:-1]
    winner = max(candidates, key=lambda row: (row["episode_return_mean"], row["actor_steps"]))
    assert winner["snapshot"] == best["snapshot"]
    assert result.best_mean == best["episode_return_mean"]
    assert result.final_mean == final["episode_return_mean"]
    episodes = [row for i in range(2) for row in directory.read_metrics(f"actor-{i}")]
    assert STEPS - 2 * 500 <= sum(row["episode_length"] for row in episodes) <= STEPS
    assert all(row["episode_return"] == row["episode_length"] for row in episodes)
    logs = {file.name for file in (path / "logs").iterdir()}
    assert logs == {
        "actor-0.log",
        "actor-1.log",
        "counter-0.log",
        "evaluator-0.log",
        "learner-0.log",
        "replay-0.log",
    }
    policy = load_policy(path)
    assert policy.snapshot == best["snapshot"]
    environment = policy.make_environment(0)
    timestep = environment.reset()
    while not timestep.last():
        timestep = environment.step(policy(timestep.observation))
    environment.close()


def test_steps_are_exact_however_many_actors_and_environments(tmp_path):
    result = run(tmp_path / "run", "inline", steps=257, scale=Scale(num_actors=3, envs_per_actor=5))
    assert result.actor_steps == 257


def test_accelerators_are_left_to_the_learner(tmp_path):
    config = ExperimentConfig(agent="dqn", env="CartPole-v1", steps=STEPS, agent_config=SMALL)
    setup = prepare(config, Scale(num_actors=3), replay_backend="embedded", run_dir=tmp_path)
    nodes = make_program(setup).program.nodes
    platforms = {name: node.resources.jax_platform for name, node in nodes.items()}
    others = ["counter/0", "replay/0", "actor/0", "actor/1", "actor/2", "evaluator/0"]
    assert platforms == {"learner/0": None, **dict.fromkeys(others, "cpu")}


def test_no_evaluators(tmp_path):
    result = run(tmp_path / "run", "inline", scale=Scale(num_evaluators=0))
    assert (result.status, result.best_mean, result.final_mean) == ("completed", None, None)
    assert [s.actor_steps for s in list_snapshots(tmp_path / "run")][-1] == STEPS
    assert load_policy(tmp_path / "run", snapshot="latest").actor_steps == STEPS
    with pytest.raises(UserError, match="no evaluated snapshot"):
        load_policy(tmp_path / "run")


def test_a_used_run_directory_is_left_as_it_was(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="already used"):
        run(tmp_path / "run", "inline")
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["mine.txt"]


def make_failing_environment(seed):
    """A factory as a user would pass it: fails at the thirtieth step."""
    from rlpad.environment_factory import environment_factory

    environment = environment_factory("CartPole-v1")(seed)
    step, steps = environment.step, [0]

    def failing_step(action):
        steps[0] += 1
        if steps[0] == 30:
            raise ZeroDivisionError("the cart fell off")
        return step(action)

    environment.step = failing_step
    return environment


@pytest.mark.parametrize("launcher", ["inline", "threads", "processes"])
def test_an_exception_in_an_actor_is_raised_with_its_node(tmp_path, launcher):
    with pytest.raises(ZeroDivisionError, match="the cart fell off") as caught:
        run(tmp_path / "run", launcher, env=make_failing_environment, scale=Scale(max_restarts=0, num_evaluators=0))
    assert "raised in node actor/0" in caught.value.__notes__
    record = RunDirectory.open(tmp_path / "run").read()
    assert record["status"] == "failed"
    assert "actor/0" in record["reason"] and "the cart fell off" in record["reason"]


class BinaryTarget:
    """Shows a nest of spaces; the reward is 1 for repeating the bit that is shown."""

    def __new__(cls, seed):
        import gymnasium
        from gymnasium import spaces

        class Environment(gymnasium.Env):
            observation_space = spaces.Dict(
                {"bits": spaces.MultiBinary(3), "pair": spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (2,))))}
            )
            action_space = spaces.Discrete(2)

            def _observation(self):
                self._bit = int(self.np_random.integers(2))
                self._count += 1
                bits = np.full(3, self._bit, np.int8)
                return {"bits": bits, "pair": (np.int64(self._bit), np.zeros(2, np.float32))}

            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                self._count = 0
                return self._observation(), {}

            def step(self, action):
                reward = float(action == self._bit)
                observation = self._observation()
                return observation, reward, False, self._count > 20, {}

        return Environment()


def make_binary_target(seed):
    return BinaryTarget(seed)


def test_nested_observations_are_learnt_from(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    module = Path(__file__).stem
    result = run(
        tmp_path / "run",
        "inline",
        env=f"{module}:make_binary_target",
        steps=1500,
        agent_config=DQNConfig(**{**vars(SMALL), "discount": 0.0, "n_step": 1, "epsilon_decay_steps": 500}),
    )
    assert result.final_mean == 20.0
