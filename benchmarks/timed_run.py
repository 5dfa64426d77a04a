"""One timed run of rlpad's DQN on CartPole-v1: `python -m benchmarks.timed_run STEPS SEED` prints one JSON line.

It is the experiment that `rlpad train dqn --launcher inline` runs, without evaluation; the clock starts once everything
is compiled. The parts of the loop are timed by wrapping their methods, and the compiled update is waited for, so that
what the device does isn't counted as somebody else's time.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import jax

from agents.dqn import DQNConfig
from environments.gym import GymEnvironment
from rlpad.acting.actors import BatchedActor
from rlpad.acting.environment_loop import EnvironmentLoop
from rlpad.acting.variable_client import VariableClient
from rlpad.experiment import ExperimentConfig, Scale, run_experiment
from rlpad.learning import ReplayLearner
from rlpad.replay.adders import NStepTransitionAdder
from rlpad.replay.embedded.client import DirectSampler

#: Steps before the clock starts: learning has begun, and everything is compiled.
WARM_UP_STEPS = 1_500

#: As in RL-Zoo's settings for CartPole: plain one-step Q-learning; 256 environment steps, then 128 SGD steps of 64.
CONFIG = DQNConfig(
    double_q=False,
    n_step=1,
    batch_size=64,
    samples_per_insert=32.0,
    sgd_steps_per_learner_call=128,
    hidden_sizes=(256, 256),
    min_replay_size=1_000,
    max_replay_size=100_000,
    target_update_period=128,
    epsilon_end=0.04,
)

#: Part of the loop: the methods whose time it is.
PARTS: dict[str, tuple[tuple[type, str], ...]] = {
    "policy": ((BatchedActor, "select_actions"),),
    "environment": ((GymEnvironment, "step"), (GymEnvironment, "reset")),
    "adder and replay writes": ((NStepTransitionAdder, "add"), (NStepTransitionAdder, "add_first")),
    "replay samples": ((DirectSampler, "wait_ready"),),
    "variables": ((VariableClient, "update"),),
}


class Clock:
    """Adds up seconds by name, from the end of the warm-up on."""

    def __init__(self, steps: int):
        self._goal = WARM_UP_STEPS + steps
        self._taken = 0
        self._started = 0.0
        self.seconds: dict[str, float] = defaultdict(float)
        self.elapsed = 0.0

    def count_step(self) -> None:
        """Counts an environment step; starts and stops the clock."""
        self._taken += 1
        if self._taken == WARM_UP_STEPS:
            self.seconds.clear()
            self._started = time.perf_counter()
        elif self._taken == self._goal:
            self.elapsed = time.perf_counter() - self._started

    @contextmanager
    def timing(self, name: str, kind: type, method: str) -> Iterator[None]:
        """Times a method of a class under `name`."""
        original = getattr(kind, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self.seconds[name] += time.perf_counter() - started

        setattr(kind, method, timed)
        try:
            yield
        finally:
            setattr(kind, method, original)

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Counts environment steps, and waits for each compiled update."""
        step, init = EnvironmentLoop.step, ReplayLearner.__init__
        clock = self

        def counting_step(loop: EnvironmentLoop) -> bool:
            stepped = step(loop)
            if stepped:
                clock.count_step()
            return stepped

        def waiting_init(learner: Any, *args: Any, **kwargs: Any) -> None:
            init(learner, *args, **kwargs)
            learner._update = clock.waiting(learner._update)

        with (
            mock.patch.object(EnvironmentLoop, "step", counting_step),
            mock.patch.object(ReplayLearner, "__init__", waiting_init),
        ):
            yield

    def waiting(self, update: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps the compiled update so that its time is all its own."""

        def timed(*args: Any) -> Any:
            started = time.perf_counter()
            result = jax.block_until_ready(update(*args))
            self.seconds["jitted update"] += time.perf_counter() - started
            return result

        return timed


def timed_dqn(steps: int, seed: int) -> dict[str, float]:
    """Runs DQN inline; returns `steps_per_second`, and each part's share of the wall time."""
    clock = Clock(steps)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(clock.hooked())
        for name, methods in PARTS.items():
            for kind, method in methods:
                stack.enter_context(clock.timing(name, kind, method))
        experiment = ExperimentConfig(
            agent="dqn",
            env="CartPole-v1",
            steps=WARM_UP_STEPS + steps,
            seed=seed,
            agent_config=CONFIG,
            log_every=10**9,
        )
        run_experiment(experiment, Scale(num_evaluators=0), "inline", run_dir=Path(folder) / "run")
    shares = {name: seconds / clock.elapsed for name, seconds in clock.seconds.items()}
    shares["everything else"] = 1.0 - sum(shares.values())
    return {
        "steps_per_second": steps / clock.elapsed,
        **dict(sorted(shares.items(), key=lambda item: -item[1])),
        "all but the jitted update": 1.0 - shares["jitted update"],
    }


if __name__ == "__main__":
    print(json.dumps(timed_dqn(int(sys.argv[1]), int(sys.argv[2]))))
