"""The evaluator node: works through the queue of policy snapshots with an environment and a key of its own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from rlpad import core
from rlpad import launch as lp
from rlpad.acting.device import run_on_calling_thread
from rlpad.experiment.config import EVALUATION_STREAMS
from rlpad.experiment.coordinator import EvaluationResult, EvaluationTask
from rlpad.experiment.policy import EvaluationPolicy
from rlpad.experiment.seeds import Seeds
from rlpad.experiment.setup import Setup
from rlpad.tracking import make_logger
from rlpad.tracking.snapshots import mark_best, read_snapshot


class EvaluatorWorker(core.Worker):
    """Evaluates one snapshot per step: a fixed number of episodes on fixed parameters."""

    def __init__(self, setup: Setup, coordinator: Any):
        """Builds the environments and the evaluation policy."""
        run_on_calling_thread()
        node = lp.node_info()
        seeds = Seeds(node.seed)
        self._setup = setup
        self._name = node.name
        self._coordinator = coordinator
        streams = min(EVALUATION_STREAMS, setup.config.eval_episodes)
        self._environments = [
            setup.make_environment(seeds.integer("environment", i), evaluation=True) for i in range(streams)
        ]
        self._policy = EvaluationPolicy(setup.builder, setup.spec, seeds.integer("policy"), streams)
        label = "evaluator" if setup.scale.num_evaluators == 1 else f"evaluator-{node.index}"
        self._logger = make_logger(label, setup.run_dir, tensorboard=setup.tensorboard, wandb=setup.wandb)

    def step(self) -> bool:
        """Evaluates the next snapshot, if there is one."""
        task = self._coordinator.next_evaluation(self._name)
        if task is None:
            return False
        self._evaluate(task)
        return True

    def _evaluate(self, task: EvaluationTask) -> None:
        started = time.monotonic()
        path = Path(self._setup.run_dir) / "checkpoints" / task.snapshot
        variables, _ = read_snapshot(path)
        self._policy.set_variables(variables)
        returns, lengths = self._policy.run_episodes(
            self._environments, task.episodes, lp.stop_event().is_set, self._setup.config.eval_max_steps
        )
        if len(returns) < task.episodes:
            return  # the program was stopped in the middle; half an evaluation is none
        result = EvaluationResult(task, float(np.mean(returns)), float(np.std(returns)), len(returns))
        self._logger.write(
            {
                "kind": task.kind,
                "actor_steps": task.actor_steps,
                "learner_steps": task.learner_steps,
                "episodes": result.episodes,
                "episode_return_mean": result.mean,
                "episode_return_std": result.std,
                "episode_return_min": float(np.min(returns)),
                "episode_return_max": float(np.max(returns)),
                "episode_length_mean": float(np.mean(lengths)),
                "episodes_cut": sum(length >= self._setup.config.eval_max_steps for length in lengths),
                "snapshot": task.snapshot,
                "duration_seconds": time.monotonic() - started,
            }
        )
        if self._coordinator.finish_evaluation(self._name, result):
            mark_best(self._setup.run_dir, task.snapshot, result.mean, result.episodes)

    def idle(self, timeout: float) -> None:
        """Waits a little for the next snapshot."""
        lp.wait_for_stop(timeout)

    def waiting_on(self) -> str:
        """Says that the queue is empty."""
        return "the next policy snapshot"

    def close(self) -> None:
        """Closes environments and logger."""
        for environment in self._environments:
            environment.close()
        self._logger.close()
