"""DQN reaches its levels, over several seeds, launchers and replay backends (`make learning`, an hour or so)."""

import importlib.util

import pytest

from agents.dqn import DQNConfig
from rlpad.experiment import ExperimentConfig, Scale, run_experiment
from rlpad.tracking.plots import evaluation_rows
from rlpad.tracking.run_directory import RunDirectory

pytestmark = pytest.mark.learning

needs_reverb = pytest.mark.skipif(
    importlib.util.find_spec("reverb") is None, reason="the extra `reverb` isn't installed"
)

#: What counts as solving CartPole-v1, whose best return is 500.
SOLVED = 475.0
STEPS = 50_000


def cartpole(path, seed, launcher, backend="embedded", num_actors=1, **settings):
    config = ExperimentConfig(
        agent="dqn", env="CartPole-v1", steps=STEPS, seed=seed, agent_config=DQNConfig(**settings)
    )
    result = run_experiment(config, Scale(num_actors=num_actors), launcher, replay_backend=backend, run_dir=path)
    print(f"{launcher} {backend} {num_actors} actors, seed {seed}: best {result.best_mean}, final {result.final_mean}")
    assert STEPS <= result.actor_steps <= STEPS + 4 * 500
    return result


def solved(results):
    return sum(result.best_mean >= SOLVED for result in results)


def test_cartpole_inline(tmp_path):
    results = [cartpole(tmp_path / str(seed), seed, "inline") for seed in range(5)]
    assert solved(results) >= 4


def test_cartpole_with_prioritised_replay(tmp_path):
    results = [cartpole(tmp_path / str(seed), seed, "inline", priority_exponent=0.6) for seed in range(3)]
    assert solved(results) >= 2


@needs_reverb
def test_cartpole_with_reverb(tmp_path):
    results = [cartpole(tmp_path / str(seed), seed, "inline", "reverb") for seed in range(3)]
    assert solved(results) >= 2


@needs_reverb
def test_cartpole_with_four_actor_processes(tmp_path):
    results = [cartpole(tmp_path / str(seed), seed, "processes", "reverb", 4) for seed in range(3)]
    assert solved(results) >= 2


def test_every_launcher_passes_the_same_bar_with_the_same_updates(tmp_path):
    results = {
        launcher: [cartpole(tmp_path / f"{launcher}{seed}", seed, launcher) for seed in range(2)]
        for launcher in ("inline", "threads", "processes")
    }
    for launcher, runs in results.items():
        assert solved(runs) >= 1, launcher
    updates = [run.learner_steps for runs in results.values() for run in runs]
    assert max(updates) <= 1.05 * min(updates)


def test_lunar_lander_is_better_than_random(tmp_path):
    config = ExperimentConfig(agent="dqn", env="LunarLander-v3", steps=150_000, seed=0)
    run_experiment(config, Scale(), "inline", run_dir=tmp_path / "run")
    rows = [row for row in evaluation_rows(RunDirectory.open(tmp_path / "run")) if row["kind"] == "periodic"]
    print("LunarLander-v3:", [round(row["episode_return_mean"]) for row in rows])
    # A random policy gets about -200. The task is noisy, so the bar is far below what is usual.
    assert rows[-1]["episode_return_mean"] > -100
