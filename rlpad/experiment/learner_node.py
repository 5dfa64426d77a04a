"""The learner node: the agent's learner with counting, logging and policy snapshots around it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from rlpad import core, replay
from rlpad import launch as lp
from rlpad.experiment.seeds import Seeds
from rlpad.experiment.setup import Setup
from rlpad.tracking import make_logger
from rlpad.tracking.snapshots import write_snapshot
from rlpad.types import Variables


class LearnerWorker(core.Worker, core.VariableSource):
    """Learns until it has had every sample that it is owed for the program's step goal."""

    def __init__(self, setup: Setup, replay_service: Any, coordinator: Any):
        """Builds the agent's learner."""
        import jax

        node = lp.node_info()
        seeds = Seeds(node.seed)
        builder, spec = setup.builder, setup.spec
        networks = builder.make_networks(spec)
        policy = builder.make_policy(networks, spec)
        tables = builder.make_replay_tables(spec, policy)
        self._setup = setup
        self._name = node.name
        self.stall_grace_s = setup.stall_grace_s
        self._coordinator = coordinator
        self._replay = replay.make_client(setup.replay_backend, replay_service, tables)
        self._tables = [table.name for table in tables]
        self._variables = policy.variables
        self._dataset = builder.make_dataset_iterator(self._replay)
        self._learner = builder.make_learner(
            jax.random.PRNGKey(seeds.integer("learner")), networks, self._dataset, spec, self._replay
        )
        self._logger = make_logger("learner", setup.run_dir, tensorboard=setup.tensorboard, wandb=setup.wandb)
        self._next_eval = setup.config.eval_period
        self._next_log = setup.config.log_every
        self._counted = 0
        self._counts: dict[str, int] = {"actor_steps": 0}
        self._logged_at = (time.monotonic(), 0)

    def step(self) -> bool:
        """Takes one learner step if a batch is there; ends the learning once no more can come."""
        progressed = self._learner.step()
        self._count()
        self._write_due_snapshots()
        if self._learner.learner_steps >= self._next_log:
            self._log()
        if progressed:
            return True
        if self._coordinator.acting() or not self._dataset.drained():
            return False
        self._finish()
        return True

    def _count(self) -> None:
        # One call both counts and brings the actors' progress.
        new = self._learner.learner_steps - self._counted
        self._counted += new
        self._counts = self._coordinator.increment(learner_steps=new)

    def _write_due_snapshots(self) -> None:
        actor_steps = self._counts["actor_steps"]
        if actor_steps < self._next_eval or actor_steps >= self._setup.config.steps:
            return
        self._queue_snapshot(final=False)
        period = self._setup.config.eval_period
        self._next_eval = (actor_steps // period + 1) * period

    def _write_snapshot(self, final: bool) -> str:
        variables = self._learner.get_variables(self._variables)
        assert variables is not None
        snapshot = write_snapshot(
            self._setup.run_dir,
            dict(zip(self._variables, variables.values, strict=True)),
            actor_steps=self._counts["actor_steps"],
            learner_steps=variables.version,
            final=final,
        )
        return snapshot.path.name

    def _queue_snapshot(self, final: bool) -> None:
        name = self._write_snapshot(final)
        self._coordinator.add_snapshot(name, self._counts["actor_steps"], self._learner.learner_steps, final)

    def _log(self) -> None:
        steps = self._learner.learner_steps
        self._next_log = (steps // self._setup.config.log_every + 1) * self._setup.config.log_every
        now, (then, steps_then) = time.monotonic(), self._logged_at
        self._logged_at = (now, steps)
        row = {
            "actor_steps": self._counts["actor_steps"],
            "learner_steps": steps,
            **self._learner.metrics(),
            "learner_steps_per_second": (steps - steps_then) / max(now - then, 1e-9),
        }
        for name, value in row.items():
            if not math.isfinite(value):
                raise FloatingPointError(
                    f"{name} is {value} after {steps:,} learner steps; "
                    "a lower learning rate or gradient clipping usually mends this"
                )
        gauges: dict[str, Any] = {}
        for name, info in self._replay.info().items():
            if name in self._tables:
                prefix = "replay" if len(self._tables) == 1 else f"replay_{name}"
                row[f"{prefix}_size"] = info.size
                row[f"{prefix}_samples_per_insert"] = info.samples / max(info.inserts, 1)
                gauges = {"size": info.size, "inserts": info.inserts, "samples": info.samples}
        self._logger.write(row)
        self._coordinator.report(self._name, gauges)

    def _finish(self) -> None:
        self._log()
        self._queue_snapshot(final=True)
        self.finished = True

    def get_variables(self, names: Sequence[str], have_version: int = -1) -> Variables | None:
        """Serves the learner's variables; see `core.VariableSource`."""
        return self._learner.get_variables(names, have_version)

    def idle(self, timeout: float) -> None:
        """Waits for a batch."""
        self._learner.idle(timeout)

    def waiting_on(self) -> str:
        """Says what replay is waiting for."""
        return self._learner.waiting_on() + "; " + "; ".join(self._replay.describe(name) for name in self._tables)

    def close(self) -> None:
        """Stops sampling, and saves the policy if the run was cut short."""
        if not self.finished and self._learner.learner_steps:
            self._write_snapshot(final=False)
        self._learner.close()
        self._logger.close()
        self._replay.close()
